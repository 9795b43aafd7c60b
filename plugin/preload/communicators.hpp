// The communicators of this process and what is measured on them. Nothing here throws, and nothing calls a function
// that this library interposes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "communicator.hpp"
#include "preload/comm_table.hpp"
#include "preload/nccl_abi.hpp"
#include "preload/real_nccl.hpp"

namespace gradprobe::preload {

// The real functions that are only asked, never passed on to.
struct RealQueries {
  Real<nccl::CommQuery> user_rank{"ncclCommUserRank"}, count{"ncclCommCount"}, device{"ncclCommCuDevice"};
  Real<nccl::CommGetAsyncError> async_error{"ncclCommGetAsyncError"};
  Real<nccl::GetVersion> version{"ncclGetVersion"};
};
RealQueries& real_queries();

// How communicators are named: from what all their ranks know.
Identity identity_of_ids(const nccl::UniqueId* ids, int count, const nccl::CommConfig* config);
Identity identity_in_this_process();  // one more ncclCommInitAll
Identity identity_of_split(const nccl::Comm* parent, int color, const nccl::CommConfig* config);
Identity identity_of_shrink(const nccl::Comm* parent, const int* excluded, int count, const nccl::CommConfig* config);

// A call that makes communicators goes through this library: from now on a plugin in this process needn't measure.
void note_use();
bool in_use();

// NCCL has made `comm`. `ready`: it can be asked and measured now; else at its first collective. An identity without an
// id (of a parent that isn't known) is not measured.
void comm_made(const nccl::Comm* comm, const Identity& identity, bool ready) noexcept;
// Its calls don't block. (The one that splits it may return a plain success all the same.)
bool returns_early(const nccl::Comm* comm) noexcept;
// Before NCCL ends `comm`: its address means nothing any more. Returns what comm_ended() needs behind that call.
void* comm_ending(const nccl::Comm* comm) noexcept;
void comm_ended(void* context) noexcept;
// Before NCCL ends what is running on `comm`.
void comm_aborting(const nccl::Comm* comm) noexcept;

// One collective call.
struct Call {
  const nccl::Comm* comm = nullptr;
  void* stream = nullptr;
  KnownCall what;
};

// An input pass that was launched, and what is to be done behind NCCL's launch.
struct Pass {
  const nccl::Comm* comm = nullptr;
  void* stream = nullptr;
  void* context = nullptr;  // of the communicator then; null: nothing is to be done
  BegunCalls begun;
};

// Puts an input pass for calls on one communicator and one stream in front of NCCL's launch.
Pass begin(const nccl::Comm* comm, void* stream, std::span<const KnownCall> calls) noexcept;
// `result` is what the NCCL call that launches returned.
void end(const Pass& pass, int result) noexcept;

}  // namespace gradprobe::preload
