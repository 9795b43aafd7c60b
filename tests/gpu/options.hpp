// Command line of the benchmark.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gradprobe/ring_format.hpp"

namespace gradprobe::bench {

struct Options {
  std::vector<std::uint64_t> sizes;  // bytes of a bucket, ascending
  std::vector<Datatype> types;
  std::vector<std::uint32_t> caps;  // CTAs that a pass may use, ascending; empty: 16, 32, 64, multiprocessors, 256
  std::uint32_t sketch_floats = 1024;
  std::uint32_t repeats = 20;  // at most kMaxRepeats
  std::string json;            // empty: no file
  bool real_only = false;      // fail where the driver is the stand-in
};
inline constexpr std::uint32_t kMaxRepeats = 32;

// The program's exit code if it shall end here.
std::optional<int> parse_options(int argc, char** argv, Options& options);

}  // namespace gradprobe::bench
