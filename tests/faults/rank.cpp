// A rank as a process of its own. The argument says what happens beside the training.
#include <cstdio>
#include <cstring>

#include "training.hpp"

namespace {

using gradprobe::faults::number;
using gradprobe::faults::Training;

void train(Training* t) {
  const int steps = number("FAULTS_STEPS", 3);
  t->join();
  for (int i = 0; i < steps; i++) {
    if (i == 1) t->capture();
    t->step(i);
  }
  t->leave();
}

}  // namespace

int main(int argc, char** argv) {
  const char* scenario = argc > 1 ? argv[1] : "train";
  Training t;
  if (std::strcmp(scenario, "train") == 0) {
    train(&t);
  } else {
    std::fprintf(stderr, "faults_rank: unknown scenario %s\n", scenario);
    return 1;
  }
  t.save();
  return 0;
}
