// The parts of NCCL's profiler interface that its struct versions share.
#pragma once

#include <cstdint>

namespace gradprobe::nccl {

enum Result : int { kSuccess = 0 };

// ncclProfile*: bits of the activation mask and values of a descriptor's type.
enum EventType : std::uint64_t {
  kGroup = 1u << 0,
  kColl = 1u << 1,
  kGroupApi = 1u << 8,
  kCollApi = 1u << 9,
  kKernelLaunch = 1u << 11,
  kCeColl = 1u << 12,  // v6
};

}  // namespace gradprobe::nccl
