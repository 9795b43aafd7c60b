// What `no_events` can mean: which calls NCCL announces without reporting a launch, by the version of its profiler
// struct.
#pragma once

#include <cstdint>

namespace gradprobe {

// `profiler_abi` as in the ring's header; 0: the preload library, which sees all launches.
constexpr const char* no_events_causes(std::uint32_t profiler_abi) {
  switch (profiler_abi) {
    case 0:
      return "a call that NCCL refused";
    case 5:
      return "symmetric kernels; copy engines; groups that failed or were only simulated";
    case 6:
      return "symmetric kernels up to NCCL 2.30; broadcasts since 2.29 (PyTorch's DDP makes two when it rebuilds its "
             "buckets); groups that failed or were only simulated";
    default:
      return "broadcasts (PyTorch's DDP makes two when it rebuilds its buckets); groups that failed or were only "
             "simulated";
  }
}

}  // namespace gradprobe
