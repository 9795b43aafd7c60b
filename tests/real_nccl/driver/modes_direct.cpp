// Modes without CUDA graphs: single calls, groups of all kinds, several streams and communicators, bystanders.
#include <atomic>

#include "modes.hpp"

namespace gradprobe::real {
namespace {

constexpr int kCalls = 8;  // of a mode that makes them one by one

// One call after the other, with nothing in between.
void one_by_one(Team& team, Function function) {
  for (int i = 0; i < kCalls; i++) team.run({team.any(function)});
  team.finish();
}

void single(Team& team) {
  one_by_one(team, Function::all_reduce);
  Spec tiny = team.any(Function::all_reduce);
  tiny.count = 1;
  team.run({tiny});
  Spec with_nan = team.any(Function::all_reduce);
  with_nan.op = ncclSum;
  with_nan.special = true;
  with_nan.count = 3001;
  team.run({with_nan});
  team.finish();
}

void reduce_scatter(Team& team) {
  one_by_one(team, Function::reduce_scatter);
}
void reduce(Team& team) {
  one_by_one(team, Function::reduce);
}

void group_of_3(Team& team) {
  for (int i = 0; i < 3; i++) team.run(in_group(team.some(Function::all_reduce, 3)));
  team.run(in_group(team.some(Function::reduce_scatter, 3)));
  team.finish();
}

void group_of_40(Team& team) {
  team.run(in_group(team.some(Function::all_reduce, 40)));
  team.finish();
}

// Reduce-scatters and all-reduces in one group.
void mixed_group(Team& team) {
  for (int i = 0; i < 3; i++) {
    Run run;
    for (int k = 0; k < 3; k++) run = run + team.some(Function::reduce_scatter, 1) + team.some(Function::all_reduce, 1);
    team.run(in_group(run));
  }
  team.finish();
}

void reduce_in_group(Team& team) {
  team.run(in_group(team.some(Function::reduce, 2) + team.some(Function::all_reduce, 2)));
  team.finish();
}

void on_streams(Run* run) {
  int stream = 0;
  for (Item& item : *run) item.spec.stream = stream++ % kStreams;
}

void streams(Team& team) {
  for (int i = 0; i < 3; i++) {
    Run run = team.some(Function::all_reduce, kStreams);
    on_streams(&run);
    for (const Item& item : run) team.run({item});
  }
  team.finish();
}

void streams_in_group(Team& team) {
  for (int i = 0; i < 3; i++) {
    Run run = team.some(Function::all_reduce, 5);
    on_streams(&run);
    team.run(in_group(run));
  }
  team.finish();
}

void two_comms(Team& team) {
  team.need("second");
  for (int i = 0; i < 3; i++) {
    team.run(team.some(Function::all_reduce, 1));
    team.run(on_second(team.some(Function::all_reduce, 1)));
  }
  team.finish();
}

void two_comms_in_group(Team& team) {
  team.need("second");
  for (int i = 0; i < 2; i++) {
    team.run(in_group(team.some(Function::all_reduce, 2) + on_second(team.some(Function::all_reduce, 2)) +
                      team.some(Function::reduce_scatter, 1)));
  }
  team.finish();
}

// Calls of integers; all are bystanders when gradients are measured.
Spec integers(Team& team, Function function, std::size_t count) {
  Spec spec = team.any(function);
  spec.type = ncclInt32;
  spec.op = ncclSum;
  spec.special = false;
  spec.count = count;
  return spec;
}

void bystanders_gather(Team& team) {
  for (int i = 0; i < 2; i++) {
    team.run(team.some(Function::all_gather, 1));
    team.run(team.some(Function::all_reduce, 1));
    team.run({integers(team, Function::all_reduce, 500)});
    team.run(in_group(team.some(Function::all_reduce, 2) + team.some(Function::all_gather, 2)));
    // Small enough to be kept as they are.
    team.run({integers(team, Function::all_reduce, 3)});
    team.run({integers(team, Function::all_gather, 2)});
  }
  team.finish();
}

void bystanders_broadcast(Team& team) {
  for (int i = 0; i < 2; i++) {
    team.run(team.some(Function::broadcast, 1));
    team.run(team.some(Function::all_reduce, 1));
  }
  team.run(in_group(team.some(Function::broadcast, 2)));
  team.run({integers(team, Function::broadcast, 4)});
  team.run(team.some(Function::all_reduce, 1));
  team.finish();
}

void bystanders_p2p(Team& team) {
  for (int i = 0; i < 3; i++) {
    team.run(team.some(Function::exchange, 1));
    team.run(team.some(Function::all_reduce, 1));
  }
  team.finish();
}

void bystanders_p2p_in_group(Team& team) {
  team.run(in_group(team.some(Function::all_reduce, 2) + team.some(Function::exchange, 1)));
  team.run(in_group(team.some(Function::exchange, 1) + team.some(Function::all_reduce, 2)));
  team.finish();
}

void nested_groups(Team& team) {
  const auto ar = [&](int n) { return team.some(Function::all_reduce, n); };
  team.run(in_group(ar(1) + in_group(ar(2)) + ar(1)));
  team.run(in_group(in_group(in_group(ar(2)))));
  team.run(in_group(in_group(ar(1)) + in_group({}) + in_group(ar(1))));
  team.run(in_group(in_group(team.some(Function::reduce_scatter, 2)) + team.some(Function::reduce_scatter, 1)));
  team.run(in_group({}));
  team.finish();
}

void nested_mixed(Team& team) {
  team.run(in_group(team.some(Function::reduce_scatter, 1) + in_group(team.some(Function::all_reduce, 2)) +
                    in_group(team.some(Function::reduce, 1))));
  team.finish();
}

void nested_streams(Team& team) {
  Run run = team.some(Function::all_reduce, 4);
  on_streams(&run);
  team.run(in_group(Run{run[0]} + in_group({run[1], run[2]}) + Run{run[3]}));
  team.finish();
}

void nested_two_comms(Team& team) {
  team.need("second");
  team.run(
      in_group(in_group(team.some(Function::all_reduce, 2)) + in_group(on_second(team.some(Function::all_reduce, 2)))));
  team.finish();
}

// Holds a stream until it is told to go on, so that the host runs ahead.
class Holder {
 public:
  explicit Holder(Team* team) {
    team->each([this](Rank& r) {
      REAL_CHECK(cuLaunchHostFunc(
          r.stream(0), [](void* go) { static_cast<std::atomic<bool>*>(go)->wait(false); }, &go_));
    });
  }
  ~Holder() { release(); }
  void release() {
    go_ = true;
    go_.notify_all();
  }

 private:
  std::atomic<bool> go_{false};
};

void ahead_by_40(Team& team) {
  Holder holder(&team);
  for (int i = 0; i < 40; i++) team.run({team.any(i % 4 == 3 ? Function::reduce_scatter : Function::all_reduce)});
  holder.release();
  team.finish();
}

}  // namespace

std::vector<Mode> direct_modes() {
  return {{"single", single},
          {"reduce_scatter", reduce_scatter},
          {"reduce", reduce},
          {"group_of_3", group_of_3},
          {"group_of_40", group_of_40},
          {"mixed_group", mixed_group},
          {"reduce_in_group", reduce_in_group},
          {"streams", streams},
          {"streams_in_group", streams_in_group},
          {"two_comms", two_comms},
          {"two_comms_in_group", two_comms_in_group},
          {"bystanders_gather", bystanders_gather},
          {"bystanders_broadcast", bystanders_broadcast},
          {"bystanders_p2p", bystanders_p2p},
          {"bystanders_p2p_in_group", bystanders_p2p_in_group},
          {"nested_groups", nested_groups},
          {"nested_mixed", nested_mixed},
          {"nested_streams", nested_streams},
          {"nested_two_comms", nested_two_comms},
          {"ahead_by_40", ahead_by_40}};
}

}  // namespace gradprobe::real
