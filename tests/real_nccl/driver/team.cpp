#include "team.hpp"

#include <algorithm>

namespace gradprobe::real {
namespace {

constexpr std::size_t kMostBytes = 100 << 10;  // of a call on one rank

ncclConfig_t config_of(const std::string& name, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.commName = name.c_str();
  return config;
}

}  // namespace

Run in_group(const Run& inner) {
  Run run{Item(Item::Kind::group_start)};
  run.insert(run.end(), inner.begin(), inner.end());
  for (Item& item : run)
    if (item.spec.function == Function::reduce_scatter && item.spec.op == ncclAvg) item.spec.op = ncclSum;
  run.emplace_back(Item::Kind::group_end);
  return run;
}

Run on_second(Run run) {
  for (Item& item : run) item.spec.comm = "second";
  return run;
}

Run operator+(Run a, const Run& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Team::Team(Meeting* meeting, const Options& options, const std::vector<int>& ranks)
    : meeting_(meeting), options_(options) {
  for (const int r : ranks) ranks_.push_back(std::make_unique<Rank>(r, options.ranks, options.seed, options.folder));
}

void Team::each(const std::function<void(Rank&)>& work) {
  for (const auto& r : ranks_) {
    r->make_current();
    work(*r);
  }
}

void Team::each_grouped(const std::function<void(Rank&)>& work) {
  const bool several = ranks_.size() > 1;
  if (several) REAL_CHECK(ncclGroupStart());
  each(work);
  if (several) REAL_CHECK(ncclGroupEnd());
}

void Team::begin_mode(const std::string& mode) {
  mode_ = mode;
  random_key_ = mixed(options_.seed, mixed(mode));
  random_count_ = 0;
  each([&](Rank& r) { r.set_mode(mode); });
  report("begins");
}

void Team::report(const std::string& doing) {
  each([&](Rank& r) { meeting_->report(r.rank(), "in mode " + mode_ + ": " + doing); });
}

void Team::open(const std::string& comm) {
  report("makes the communicator " + comm);
  open_.push_back(comm);
  const bool makes = ranks_.front()->rank() == 0;
  ncclUniqueId id = meeting_->unique_id(ids_++, makes);
  ncclConfig_t config = config_of(comm, options_.blocking);
  each_grouped([&](Rank& r) {
    Comm& c = r.add_comm({comm, nullptr, r.rank(), r.ranks(), 0, options_.blocking});
    r.note_comm(c);
    REAL_CHECK(ncclCommInitRankConfig(&c.handle, r.ranks(), id, r.rank(), &config));
  });
  each([](Rank& r) { r.settle(); });
}

void Team::split(const std::string& name, const std::function<int(const Rank&)>& colour) {
  report("splits the communicator world");
  std::vector<std::string> names;
  for (const auto& r : ranks_) names.push_back(name + std::to_string(colour(*r)));
  std::size_t i = 0;
  each_grouped([&](Rank& r) {
    const std::string& comm = names[i++];
    ncclConfig_t config = config_of(comm, options_.blocking);
    Comm& c = r.add_comm({comm, nullptr, 0, 0, 0, options_.blocking});
    REAL_CHECK(ncclCommSplit(r.comm("world").handle, colour(r), -r.rank(), &c.handle, &config));
  });
  each([](Rank& r) {
    r.settle();
    r.settle();  // now the new ones
  });
  i = 0;
  each([&](Rank& r) {
    Comm& c = r.comm(names[i++]);
    REAL_CHECK(ncclCommUserRank(c.handle, &c.rank));
    REAL_CHECK(ncclCommCount(c.handle, &c.ranks));
    r.note_comm(c);
  });
}

void Team::need(const std::string& comm) {
  if (std::find(open_.begin(), open_.end(), comm) == open_.end()) open(comm);
}

void Team::close_each(const std::function<std::string(const Rank&)>& comm) {
  each([&](Rank& r) {
    const std::string name = comm(r);
    report("destroys the communicator " + name);
    REAL_CHECK(ncclCommDestroy(r.comm(name).handle));
    r.drop_comm(name);
    std::erase(open_, name);
  });
  meet_after_end();
}

// In one process the last rank's call frees what belongs to all of them, and so may wait for their devices.
void Team::meet_after_end() {
  report("waits for the others to end a communicator");
  meet();
}

void Team::close_all() {
  while (!open_.empty()) close(std::string(open_.back()));
}

void Team::abort(const std::string& comm) {
  report("aborts the communicator " + comm);
  each([&](Rank& r) {
    REAL_CHECK(ncclCommAbort(r.comm(comm).handle));
    r.drop_comm(comm);
  });
  std::erase(open_, comm);
  meet_after_end();
}

Spec Team::any(Function function) {
  static constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64};
  static constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclSum, ncclMax};
  Spec spec;
  spec.function = function;
  spec.type = kTypes[draw(0, 4)];
  spec.op = kOps[draw(0, 3)];
  spec.in_place = draw(0, 1) == 0;
  spec.root = static_cast<int>(draw(0, static_cast<std::uint64_t>(options_.ranks) - 1));
  spec.special = spec.op == ncclSum && draw(0, 5) == 0;
  const std::uint64_t most = kMostBytes / bytes_of(spec.type);
  const std::uint64_t sizes[] = {8, 100, 4000, 4000, most};
  const std::uint64_t size = draw(0, 4);
  spec.count = draw(size == 0 ? 1 : 9, sizes[size]);
  if (function == Function::reduce_scatter || function == Function::all_gather)
    spec.count = std::max<std::size_t>(spec.count / static_cast<std::size_t>(options_.ranks), 9);
  return spec;
}

Run Team::some(Function function, int calls) {
  Run run;
  for (int i = 0; i < calls; i++) run.emplace_back(any(function));
  return run;
}

void Team::issue(Rank* rank, const Run& items, bool captured) {
  for (const Item& item : items) {
    if (item.kind == Item::Kind::group_start)
      REAL_CHECK(ncclGroupStart());
    else if (item.kind == Item::Kind::group_end)
      REAL_CHECK(ncclGroupEnd());
    else
      rank->issue(item.spec, captured);
  }
}

void Team::issue_all(const std::function<Run(const Rank&)>& items, bool captured) {
  each_grouped([&](Rank& r) { issue(&r, items(r), captured); });
  each([](Rank& r) {
    r.settle();
    r.collect();
  });
}

void Team::run_each(const std::function<Run(const Rank&)>& items) {
  report("makes its calls");
  issue_all(items, false);
}

void Team::finish() {
  report("waits for the device");
  each([](Rank& r) { r.finish(); });
  report("has ended");
  meet();  // else a report could name the next mode for some ranks
}

// The other streams into the capture behind the first one, and back.
void Team::fork_streams(const Rank& rank, bool join) {
  for (int i = 1; i < kStreams; i++) {
    const Event event = make_event();
    REAL_CHECK(cuEventRecord(event.get(), rank.stream(join ? i : 0)));
    REAL_CHECK(cuStreamWaitEvent(rank.stream(join ? 0 : i), event.get(), 0));
  }
}

Captured Team::capture(const std::vector<Run>& runs) {
  report("captures a graph");
  each([&](Rank& r) {
    REAL_CHECK(cuStreamBeginCapture(r.stream(0), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fork_streams(r, false);
  });
  for (const Run& items : runs) issue_all([&](const Rank&) { return items; }, true);
  Captured captured;
  each([&](Rank& r) {
    fork_streams(r, true);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REAL_CHECK(cuStreamEndCapture(r.stream(0), &graph));
    const Graph owner(graph);
    REAL_CHECK(cuGraphInstantiate(&exec, graph, 0));
    captured.ranks.push_back({GraphExec(exec), r.take_calls()});
  });
  refresh(&captured);
  return captured;
}

void Team::launch(Captured* graph) {
  std::size_t i = 0;
  each([&](Rank& r) { REAL_CHECK(cuGraphLaunch(graph->ranks[i++].exec.get(), r.stream(0))); });
}

void Team::note(Captured* graph, std::uint32_t times) {
  report("waits for a graph");
  std::size_t i = 0;
  each([&](Rank& r) {
    r.synchronize();
    r.note_replays(&graph->ranks[i++].calls, times);
  });
}

void Team::refresh(Captured* graph) {
  std::size_t i = 0;
  each([&](Rank& r) { r.next_generation(&graph->ranks[i++].calls); });
}

void Team::replay(Captured* graph, std::uint32_t times) {
  report("replays a graph");
  for (std::uint32_t n = 0; n < times; n++) launch(graph);
  note(graph, times);
}

void Team::release(Captured* graph) {
  graph->ranks.clear();
  each([](Rank& r) { r.give_back_calls(); });
}

}  // namespace gradprobe::real
