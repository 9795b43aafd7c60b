// From NCCL's event descriptors to the core, and to a chained plugin. A version's file (profiler_vN.cpp) holds its
// layout and nothing else.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstdint>

#include "chain.hpp"
#include "nccl_types.hpp"
#include "process.hpp"

namespace gradprobe {

// NCCL's names of functions and datatypes, in version 1 their numbers; anything else is `unknown`.
Function function_of(const char* name);
Function function_of(std::uint8_t number);
Datatype datatype_of(const char* name);
Datatype datatype_of(std::uint8_t number);

// Apart: it needs more registers than other events.
template <typename Descriptor>
[[gnu::noinline]] nccl::Result start_call(Communicator* c, void** handle, const Descriptor* d) noexcept {
  const auto& e = d->coll_api;
  Communicator::CallNames& names = c->last_names();
  if (names.function_name != e.func) {
    names.function_name = e.func;
    names.function = function_of(e.func);
  }
  if (names.datatype_name != e.datatype) {
    names.datatype_name = e.datatype;
    names.datatype = datatype_of(e.datatype);
  }
  CollApiEvent event{names.function, names.datatype, e.count, e.root, e.graph_captured, Handle(d->parent)};
  if constexpr (requires { e.user_tag; }) event.user_tag = e.user_tag;
  *handle = c->coll_api_start(event).opaque();
  return nccl::kSuccess;
}

template <typename Descriptor>
[[gnu::noinline]] nccl::Result start_coll(Communicator* c, const Descriptor* d) noexcept {
  bool symmetric = false;
  if constexpr (requires { d->coll.symmetric; }) symmetric = d->coll.symmetric;
  c->coll_start(Handle(d->parent), d->coll.send, d->coll.recv, symmetric);
  return nccl::kSuccess;
}

template <typename Descriptor>
[[gnu::noinline]] nccl::Result start_copy_engine(Communicator* c, const Descriptor* d) noexcept {
  c->copy_engine_start(Handle(d->parent));
  return nccl::kSuccess;
}

template <typename Descriptor>
[[gnu::noinline]] nccl::Result start_launch(Communicator* c, void** handle, const Descriptor* d) noexcept {
  *handle = c->kernel_launch_start(Handle(d->parent), d->kernel_launch.stream).opaque();
  return nccl::kSuccess;
}

// gradprobe's own side of an event, for versions that tell the stream before the launch (5 and later). Most events of
// what isn't measured end in it.
template <typename Descriptor>
[[gnu::always_inline]] inline nccl::Result start_own(Communicator* c, void** handle,
                                                     const Descriptor* d) noexcept requires requires {
  d->coll_api;
}
{
  *handle = nullptr;
  if (c->idle() && (d->type != nccl::kCollApi || c->idly_leaves_out_again(d->coll_api.func))) return nccl::kSuccess;
  switch (d->type) {
    case nccl::kGroupApi:
      *handle = c->group_api_start().opaque();
      return nccl::kSuccess;
    case nccl::kCollApi:
      if (c->leaves_out_again(d->coll_api.func, Handle(d->parent), d->coll_api.graph_captured)) return nccl::kSuccess;
      return start_call(c, handle, d);
    case nccl::kKernelLaunch:
      if (c->awaits_launch()) return start_launch(c, handle, d);
      t_links.phase = LaunchPhase::none;
      return nccl::kSuccess;
    case nccl::kGroup:
      *handle = c->group_start().opaque();
      return nccl::kSuccess;
    case nccl::kColl:
      return Handle(d->parent).type() == HandleType::coll_api ? start_coll(c, d) : nccl::kSuccess;
    case nccl::kCeColl:
      return start_copy_engine(c, d);
    default:
      return nccl::kSuccess;
  }
}

// The same for versions whose first event comes after the launch: Coll events become records without measurement.
template <typename Descriptor>
nccl::Result start_own(Communicator* c, void** handle, const Descriptor* d) noexcept {
  *handle = nullptr;
  if (d->type == nccl::kGroup) {
    *handle = c->group_start().opaque();  // NCCL tells the collectives of groups that have a handle
  } else if (d->type == nccl::kColl) {
    if constexpr (requires { d->coll.comm_hash; })
      c->identify(d->coll.comm_hash, static_cast<std::uint32_t>(d->rank), d->coll.comm_name);
    c->coll_api_start(
        {function_of(d->coll.func), datatype_of(d->coll.datatype), d->coll.count, d->coll.root, false, Handle()});
  }
  return nccl::kSuccess;
}

// An event of a communicator with a chained plugin.
template <typename Descriptor>
[[gnu::noinline, gnu::cold]] nccl::Result start_pair(void* context, void** handle, const Descriptor& d) noexcept {
  const chain::Pair parent = chain::parts(d.parent);
  void* own = nullptr;
  if (Communicator* c = Process::find(Handle(chain::own_context(context)), HandleType::context); c != nullptr) {
    Descriptor mine = d;
    mine.parent = parent.own;
    start_own(c, &own, &mine);
  }
  Descriptor theirs = d;
  // A proxy that serves another process passes that one's handles on: numbers without meaning here.
  if (d.type != nccl::kProxyOp || d.proxy_op.pid == chain::process_id()) theirs.parent = parent.chained;
  if constexpr (requires { d.coll.parent_group; }) {
    if (d.type == nccl::kColl) theirs.coll.parent_group = chain::parts(d.coll.parent_group).chained;
    if (d.type == nccl::kP2p) theirs.p2p.parent_group = chain::parts(d.p2p.parent_group).chained;
  }
  chain::Event event;
  event.type = d.type;
  event.descriptor = &theirs;
  event.orphan = d.parent != nullptr && parent.chained == nullptr;
  if constexpr (requires { d.coll_api; })
    event.captured = (d.type == nccl::kCollApi && d.coll_api.graph_captured) ||
                     (d.type == nccl::kP2pApi && d.p2p_api.graph_captured);
  *handle = chain::start(context, event, own);
  return nccl::kSuccess;
}

// NCCL may hold a stale handle in *handle, so it is written for every event.
template <typename Descriptor>
nccl::Result start_event(void* context, void** handle, const Descriptor* d) noexcept {
  if (Communicator* const c = Process::find(Handle(context), HandleType::context); c != nullptr) [[likely]]
    return start_own(c, handle, d);
  *handle = nullptr;
  return chain::is_pair(context) ? start_pair(context, handle, *d) : nccl::kSuccess;
}

nccl::Result stop_event(void* handle) noexcept;
nccl::Result record_event_state(void* handle, int state, void* arguments) noexcept;
nccl::Result finalize(void* context) noexcept;

// What the init calls of the versions tell.
InitCall identified_call(int version, std::uint64_t comm_id, const char* comm_name, int nnodes, int nranks, int rank,
                         NcclLogger logger);
InitCall anonymous_call(int version);  // 1 to 3: nothing

// Never fails: a communicator that can't be recorded gets no context. `chained_init` calls a chained plugin's init.
nccl::Result open(const InitCall& call, void** context, int* mask, const chain::CallInit& chained_init) noexcept;

}  // namespace gradprobe
