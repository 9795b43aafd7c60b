// Modes with CUDA graphs: what is captured, how often it is replayed, and what runs in between.
#include "modes.hpp"

namespace gradprobe::real {
namespace {

// Twice in a row, then with new inputs three times, then with others once.
void replay_and_refresh(Team& team, Captured* graph) {
  team.replay(graph, 2);
  team.refresh(graph);
  team.replay(graph, 3);
  team.refresh(graph);
  team.replay(graph, 1);
}

void replayed(Team& team, const std::vector<Run>& runs) {
  Captured graph = team.capture(runs);
  replay_and_refresh(team, &graph);
  team.release(&graph);
  team.finish();
}

void graph_of_one(Team& team) {
  replayed(team, {team.some(Function::all_reduce, 1)});
  Spec tiny = team.any(Function::all_reduce);
  tiny.count = 4;
  replayed(team, {{tiny}});
}

void graph_of_three(Team& team) {
  std::vector<Run> runs;
  for (int i = 0; i < 3; i++) runs.push_back(team.some(Function::all_reduce, 1));
  replayed(team, runs);
  replayed(team, {in_group(team.some(Function::all_reduce, 3))});
  replayed(team, {team.some(Function::reduce_scatter, 1), team.some(Function::reduce, 1)});
}

void graph_with_p2p(Team& team) {
  replayed(team,
           {team.some(Function::all_reduce, 1), team.some(Function::exchange, 1), team.some(Function::all_reduce, 1)});
}

void graph_with_p2p_in_group(Team& team) {
  replayed(team, {in_group(team.some(Function::all_reduce, 2) + team.some(Function::exchange, 1))});
}

void graph_of_40(Team& team) {
  std::vector<Run> runs;
  for (int i = 0; i < 40; i++) runs.push_back(team.some(Function::all_reduce, 1));
  Captured graph = team.capture(runs);
  team.replay(&graph, 2);
  team.release(&graph);
  team.finish();
}

void graph_streams(Team& team) {
  std::vector<Run> runs;
  for (int i = 0; i < 2 * kStreams; i++) {
    Spec spec = team.any(Function::all_reduce);
    spec.stream = i % kStreams;
    runs.push_back({spec});
  }
  replayed(team, runs);
}

void graph_two_comms(Team& team) {
  team.need("second");
  replayed(team, {team.some(Function::all_reduce, 1), on_second(team.some(Function::all_reduce, 1)),
                  team.some(Function::all_reduce, 1)});
}

void graph_two_comms_in_group(Team& team) {
  team.need("second");
  replayed(team, {in_group(team.some(Function::all_reduce, 2) + on_second(team.some(Function::all_reduce, 2)))});
}

void graph_nested(Team& team) {
  const auto ar = [&](int n) { return team.some(Function::all_reduce, n); };
  replayed(team, {in_group(ar(1) + in_group(ar(2)) + ar(1)), in_group(in_group(ar(2)) + in_group({}))});
}

// Replays between direct calls, of two graphs in turn.
void graph_interleaved(Team& team) {
  team.run(team.some(Function::all_reduce, 1));
  Captured one = team.capture({team.some(Function::all_reduce, 1)});
  team.run(in_group(team.some(Function::all_reduce, 2)));
  team.launch(&one);
  team.run(team.some(Function::all_reduce, 1));
  Captured two = team.capture({in_group(team.some(Function::all_reduce, 2)), team.some(Function::all_reduce, 1)});
  team.launch(&two);
  team.launch(&one);
  team.run(team.some(Function::reduce_scatter, 1));
  team.launch(&two);
  team.run(team.some(Function::all_reduce, 1));
  team.note(&one, 2);
  team.note(&two, 2);
  team.finish();
  team.refresh(&one);
  team.replay(&one, 2);
  team.release(&one);
  team.run(team.some(Function::all_reduce, 1));
  team.refresh(&two);
  team.replay(&two, 1);
  team.release(&two);
  team.finish();
}

}  // namespace

std::vector<Mode> graph_modes() {
  return {{"graph_of_one", graph_of_one},       {"graph_of_three", graph_of_three},
          {"graph_with_p2p", graph_with_p2p},   {"graph_with_p2p_in_group", graph_with_p2p_in_group},
          {"graph_of_40", graph_of_40},         {"graph_streams", graph_streams},
          {"graph_two_comms", graph_two_comms}, {"graph_two_comms_in_group", graph_two_comms_in_group},
          {"graph_nested", graph_nested},       {"graph_interleaved", graph_interleaved}};
}

}  // namespace gradprobe::real
