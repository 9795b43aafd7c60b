// What the calling thread has done since its outermost ncclGroupStart.
#pragma once

#include <vector>

#include "preload/communicators.hpp"

namespace gradprobe::preload {

// Calls that NCCL makes of its own public functions (ncclBcast calls ncclBroadcast, ncclCommInitAll the group calls)
// come through this library too: they are part of the call that the program made.
bool inside_nccl();

class InsideNccl {
 public:
  InsideNccl();
  ~InsideNccl();
  InsideNccl(const InsideNccl&) = delete;
  InsideNccl& operator=(const InsideNccl&) = delete;
};

// NCCL's group depth on this thread, as seen here.
int group_depth();
void group_entered();
// One level less. True when it was the outermost.
bool group_left();

// A communicator that NCCL makes when the group ends.
struct Making {
  const nccl::Comm* comm = nullptr;
  nccl::Comm** where = nullptr;  // not null: NCCL writes the communicator there at the end
  Identity identity;
  const nccl::Comm* parent = nullptr;  // that it is made of, if any
};

// The open group's parts; all noexcept: what there is no memory for is not measured.
void group_add(const Call& call) noexcept;
void group_failed() noexcept;  // a call in it was refused: NCCL will launch nothing
void group_add(const Making& making) noexcept;
void group_add_ended(void* context) noexcept;

// Around the real ncclGroupEnd of the outermost level: input passes; result passes, communicators made and ended.
void group_begin() noexcept;
void group_end(int result) noexcept;
// Of a simulated end: nothing of what was collected happens.
void group_drop() noexcept;

}  // namespace gradprobe::preload
