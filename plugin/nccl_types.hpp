// The parts of NCCL's profiler interface that its struct versions share.
#pragma once

#include <cstdint>

namespace gradprobe::nccl {

enum Result : int { kSuccess = 0 };

// ncclProfile*: bits of the activation mask and values of a descriptor's type.
enum EventType : std::uint64_t {
  kGroup = 1u << 0,
  kColl = 1u << 1,
  kP2p = 1u << 2,
  kProxyOp = 1u << 3,
  kProxyStep = 1u << 4,
  kProxyCtrl = 1u << 5,
  kKernelCh = 1u << 6,
  kNetPlugin = 1u << 7,
  kGroupApi = 1u << 8,
  kCollApi = 1u << 9,
  kP2pApi = 1u << 10,
  kKernelLaunch = 1u << 11,
  kCeColl = 1u << 12,
  kCeSync = 1u << 13,
  kCeBatch = 1u << 14,
  kKernelPhase = 1u << 15,
};

// Names of the mask's bits, from the lowest.
inline constexpr const char* kEventNames[] = {
    "Group",    "Coll",    "P2p",    "ProxyOp",      "ProxyStep", "ProxyCtrl", "KernelCh", "NetPlugin",
    "GroupApi", "CollApi", "P2pApi", "KernelLaunch", "CeColl",    "CeSync",    "CeBatch",  "KernelPhase"};

// The struct that a plugin exports; its versions differ in the arguments of init and in the descriptor.
template <typename Init, typename Descriptor>
struct Profiler {
  const char* name;
  Init init;
  Result (*start_event)(void* context, void** handle, const Descriptor*);
  Result (*stop_event)(void* handle);
  Result (*record_event_state)(void* handle, int state, void* arguments);
  Result (*finalize)(void* context);
};

}  // namespace gradprobe::nccl
