// The ways of calling NCCL under which gradprobe is tried. Each mode uses the communicator "world", and others that it
// makes itself.
#pragma once

#include <string>
#include <vector>

#include "team.hpp"

namespace gradprobe::real {

struct Mode {
  const char* name;
  void (*run)(Team&);
};

std::vector<Mode> direct_modes();
std::vector<Mode> graph_modes();
std::vector<Mode> ending_modes();
std::vector<Mode> symmetric_modes();

// Null when there is none of that name.
const Mode* find_mode(const std::string& name);
std::vector<std::string> mode_names();

}  // namespace gradprobe::real
