// What the benchmark tells of the device that it ran on.
#pragma once

#include <cstdint>
#include <string>

namespace gradprobe::bench {

struct DeviceInfo {
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int driver = 0;              // CUDA version of the driver: 13000 is 13.0
  std::uint32_t multiprocessors = 0;
  std::uint32_t clock_mhz = 0;  // highest clock of the multiprocessors; 0: not told
  std::uint64_t l2_bytes = 0;
  std::uint64_t memory_bytes = 0;
  bool standin = false;  // not a GPU: results are right, times mean nothing
};

DeviceInfo device_info();

}  // namespace gradprobe::bench
