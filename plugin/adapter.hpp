// From NCCL's event descriptors to the core, for the struct versions that tell the stream before the launch (v5 on).
// A version's file (profiler_vN.cpp) holds its layout and nothing else.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <optional>
#include <string_view>

#include "nccl_types.hpp"
#include "process.hpp"

namespace gradprobe {

// NCCL's names of functions and datatypes; anything else is `unknown`.
Function function_of(const char* name);
Datatype datatype_of(const char* name);

// NCCL may hold a stale handle in *handle, so it is written for every event. Returns at once when not interested.
template <typename Descriptor>
nccl::Result start_event(void* context, void** handle, const Descriptor* d) noexcept {
  *handle = nullptr;
  Communicator* c = Process::get().find(Handle(context), HandleType::context);
  if (c == nullptr) return nccl::kSuccess;
  switch (d->type) {
    case nccl::kGroupApi:
      *handle = c->group_api_start().opaque();
      break;
    case nccl::kCollApi: {
      const auto& e = d->coll_api;
      *handle = c->coll_api_start({function_of(e.func), datatype_of(e.datatype), e.count, e.root, e.graph_captured,
                                   Handle(d->parent)})
                    .opaque();
      break;
    }
    case nccl::kKernelLaunch:
      *handle = c->kernel_launch_start(Handle(d->parent), d->kernel_launch.stream).opaque();
      break;
    case nccl::kGroup:
      *handle = c->group_start().opaque();
      break;
    case nccl::kColl:
      *handle = c->coll_start(Handle(d->parent), d->coll.send, d->coll.recv).opaque();
      break;
    case nccl::kCeColl:
      c->copy_engine_start(Handle(d->parent));
      break;
    default:
      break;
  }
  return nccl::kSuccess;
}

nccl::Result stop_event(void* handle) noexcept;
nccl::Result record_event_state(void* handle, int state, void* arguments) noexcept;
nccl::Result finalize(void* context) noexcept;

// The init call of v5 and v6. Never fails: a communicator that can't be measured gets no context.
nccl::Result init_with_identity(std::uint32_t profiler_abi, void** context, std::uint64_t comm_id, int* mask,
                                const char* comm_name, int nnodes, int nranks, int rank, NcclLogger logger) noexcept;

// For NCCL releases whose events come too late to measure: says so once, asks for no events. Some tell no rank.
nccl::Result init_unsupported(std::uint32_t profiler_abi, void** context, int* mask, NcclLogger logger,
                              std::optional<int> rank) noexcept;
nccl::Result start_nothing(void* context, void** handle, void* descriptor) noexcept;

}  // namespace gradprobe
