// What links consecutive callbacks on one thread: a launch's start and its stop, the Group event that follows at once
// on the same thread, and that one's collectives.
#pragma once

#include <cstdint>

#include "ops.hpp"

namespace gradprobe {

enum class LaunchPhase : std::uint32_t {
  none,
  launching,  // between a launch's start and stop
  launched,   // nothing has come since its stop: a Group event is the launch's own
};

struct ThreadLinks {
  // Of the last launch. Communicators by CommunicatorId::number().
  LaunchPhase phase = LaunchPhase::none;
  std::uint32_t batch = 0;  // whose calls it may carry; 0: none
  std::uint64_t communicator = 0;
  std::uint32_t slot = kNoSlot;         // whose gate waits for its buffers
  std::uint32_t result_slot = kNoSlot;  // whose results it completes
  void* stream = nullptr;
  // Between a group's start and stop.
  std::uint64_t group_communicator = 0;
  std::uint32_t group_batch = 0;  // of the last collective that a host callback told
  bool group_inline = false;      // its collectives are those of the launch above
};

// The initial-exec model keeps the access a plain load: no call into the dynamic linker, no lazy allocation on NCCL's
// path.
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
inline thread_local constinit ThreadLinks t_links;

}  // namespace gradprobe
