// Modes about the lives of communicators: split off, destroyed with work in flight, aborted.
#include <chrono>
#include <thread>

#include "modes.hpp"

namespace gradprobe::real {
namespace {

// Calls on communicators that are split off.
void split_by(Team& team, const std::string& name, int (*colour)(const Rank&)) {
  team.split(name, colour);
  const auto comm_of = [&](const Rank& r) { return name + std::to_string(colour(r)); };
  for (int i = 0; i < 4; i++) {
    Spec spec = team.any(Function::all_reduce);
    // NCCL 2.28's kernel for the average over one rank leaves out the last elements of a buffer at an odd address.
    if (name == "own") spec.op = ncclSum;
    team.run_each([&](const Rank& r) {
      spec.comm = comm_of(r);
      return Run{spec};
    });
  }
  team.finish();
  team.close_each(comm_of);
}

void split(Team& team) {
  split_by(team, "reversed", [](const Rank&) { return 0; });
}
void split_in_two(Team& team) {
  split_by(team, "half", [](const Rank& r) { return r.rank() % 2; });
}
void one_rank(Team& team) {
  split_by(team, "own", [](const Rank& r) { return r.rank(); });
}

void destroy_in_flight(Team& team) {
  team.open("brief");
  // Work of the stream ahead of the calls, so that none of them has ended when the communicator is destroyed.
  team.each([](Rank& r) {
    const auto pause = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
    REAL_CHECK(cuLaunchHostFunc(r.stream(0), pause, nullptr));
  });
  for (int i = 0; i < 5; i++) {
    Spec spec = team.any(i == 3 ? Function::reduce_scatter : Function::all_reduce);
    spec.comm = "brief";
    team.run({spec});
  }
  team.close("brief");
  team.finish();
}

// The last rank never makes its call, so the calls of the others can't end.
void abort_call(Team& team) {
  team.open("doomed");
  Spec good = team.any(Function::all_reduce);
  good.comm = "doomed";
  team.run({good});
  team.finish();
  Spec spec = team.any(Function::all_reduce);
  spec.comm = "doomed";
  team.run_each([&](const Rank& r) { return r.rank() + 1 < r.ranks() ? Run{spec} : Run{}; });
  // Long enough for the device to reach the collective.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  team.meet();
  team.abort("doomed");
  team.report("waits for the aborted call");
  team.each([](Rank& r) {
    r.synchronize();
    r.finish_aborted();
  });
  team.run({team.any(Function::all_reduce)});
  team.finish();
}

}  // namespace

std::vector<Mode> ending_modes() {
  return {{"split", split},
          {"split_in_two", split_in_two},
          {"one_rank", one_rank},
          {"destroy_in_flight", destroy_in_flight},
          {"abort", abort_call}};
}

}  // namespace gradprobe::real
