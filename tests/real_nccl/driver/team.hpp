// One thread of control with its ranks: one (processes, threads) or several (several devices of one thread). It does
// what a mode says for each of them; where there are several, NCCL wants their calls in one group.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meeting.hpp"
#include "rank.hpp"

namespace gradprobe::real {

struct Options {
  int ranks = 2;
  bool blocking = true;  // communicators
  std::uint64_t seed = 0;
  std::string folder;
};

// What a mode asks for, in order: calls, and where groups begin and end.
struct Item {
  enum class Kind { call, group_start, group_end };
  Item(const Spec& s) : kind(Kind::call), spec(s) {}  // NOLINT: a call is an item
  explicit Item(Kind k) : kind(k) {}
  Kind kind;
  Spec spec;
};
using Run = std::vector<Item>;
// Reduce-scatters in it sum instead of averaging: from 2.30 on, NCCL's PAT algorithm leaves the sum instead of the
// average for a group over sockets, also without any plugin (not with NCCL_PAT_ENABLE=0).
Run in_group(const Run& inner);
Run on_second(Run run);  // on the communicator "second"
Run operator+(Run a, const Run& b);

// One captured graph on each of the team's ranks.
struct Captured {
  struct OfRank {
    GraphExec exec;
    std::deque<Issued> calls;
  };
  std::vector<OfRank> ranks;
};

class Team {
 public:
  Team(Meeting* meeting, const Options& options, const std::vector<int>& ranks);

  int all_ranks() const { return options_.ranks; }
  bool blocking() const { return options_.blocking; }
  const std::vector<std::unique_ptr<Rank>>& ranks() { return ranks_; }
  void each(const std::function<void(Rank&)>& work);
  // The same, in a group where there are several ranks.
  void each_grouped(const std::function<void(Rank&)>& work);
  void meet() { meeting_->wait(); }

  void begin_mode(const std::string& mode);
  void report(const std::string& doing);

  // Communicators of all ranks, and their ends.
  void open(const std::string& comm);
  void need(const std::string& comm);  // opens it unless it is open
  // Communicators "NAME<colour>" of the ranks of one colour, in the order opposite to that of "world".
  void split(const std::string& name, const std::function<int(const Rank&)>& colour);
  void close(const std::string& comm) {
    close_each([&](const Rank&) { return comm; });
  }
  void close_each(const std::function<std::string(const Rank&)>& comm);
  void close_all();
  void abort(const std::string& comm);

  // Numbers that are the same in all teams, and a call of random size with them. `in_place` at random.
  std::uint64_t draw() { return mixed(random_key_, random_count_++); }
  std::uint64_t draw(std::uint64_t from, std::uint64_t to) { return from + draw() % (to - from + 1); }
  Spec any(Function function);
  Run some(Function function, int calls);

  void run(const Run& items) {
    run_each([&](const Rank&) { return items; });
  }
  // Calls that differ between the ranks.
  void run_each(const std::function<Run(const Rank&)>& items);
  // Waits until all is done; then checks and notes it.
  void finish();

  // Captures runs, one after the other, in one graph.
  Captured capture(const std::vector<Run>& runs);
  // Launches it so many times in a row; then waits, checks and notes.
  void replay(Captured* graph, std::uint32_t times);
  void launch(Captured* graph);                     // without waiting
  void note(Captured* graph, std::uint32_t times);  // waits for so many launches
  void refresh(Captured* graph);                    // new inputs
  void release(Captured* graph);

 private:
  void issue(Rank* rank, const Run& items, bool captured);
  void issue_all(const std::function<Run(const Rank&)>& items, bool captured);
  void meet_after_end();
  void fork_streams(const Rank& rank, bool join);

  Meeting* meeting_;
  const Options options_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::string> open_;  // communicators of all ranks
  std::uint64_t ids_ = 0;
  std::uint64_t random_key_ = 0, random_count_ = 0;
  std::string mode_;
};

}  // namespace gradprobe::real
