// The ring files of a run, read whole: by communicator and rank, inputs and results by (op, replay).
#pragma once

#include <gradprobe/ring_reader.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gradprobe::real {

using CallId = std::pair<std::uint64_t, std::uint32_t>;  // op, replay

struct Ring {
  std::string file;
  FileHeader header{};
  LiveCounters counters{};
  std::multimap<CallId, Record> inputs, results;
  std::vector<std::uint64_t> direct_order;  // ops outside graphs, as the records stand
};

// By name of the communicator and rank. Throws std::runtime_error for a file that isn't whole.
std::multimap<std::pair<std::string, int>, Ring> read_rings(const std::string& folder);

}  // namespace gradprobe::real
