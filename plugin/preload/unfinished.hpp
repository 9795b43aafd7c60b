// Communicators that NCCL is making of another one after the call has returned: ncclCommSplit and ncclCommShrink where
// calls don't block. Until they are complete NCCL leaves a null pointer where they are to be; the program learns by
// ncclCommGetAsyncError of the parent that it can look there, and only then does this library.
#pragma once

#include "preload/communicators.hpp"

namespace gradprobe::preload {

void unfinished_add(const nccl::Comm* parent, nccl::Comm** where, const Identity& identity) noexcept;
// The program has been told that `parent` has no call in progress any more.
void unfinished_complete(const nccl::Comm* parent, bool succeeded) noexcept;

}  // namespace gradprobe::preload
