// What the rank processes of one run share: anonymous memory, mapped before the fork.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "options.hpp"

namespace gradprobe::demo {

struct SharedState {
  ncclUniqueId id;
  std::atomic<bool> id_ready;
  std::atomic<bool> stop;                             // a rank has failed or died: the others end, too
  std::atomic<int> step[kMaxRanks];                   // the step each rank is enqueuing
  std::atomic<std::uint64_t> weight_hash[kMaxRanks];  // of the trained weights
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

struct Unmap {
  void operator()(SharedState* state) const;
};
std::unique_ptr<SharedState, Unmap> make_shared_state();

}  // namespace gradprobe::demo
