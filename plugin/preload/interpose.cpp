// libgradprobe-preload.so: the functions that a program calls instead of NCCL's. Each calls the real one exactly once,
// with the caller's arguments, and returns what that returned, whatever happens to the measurement.
#include <exception>

#include "preload/communicators.hpp"
#include "preload/group.hpp"
#include "preload/nccl_abi.hpp"
#include "preload/real_nccl.hpp"
#include "preload/unfinished.hpp"

#define GRADPROBE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace gradprobe;
using namespace gradprobe::preload;
using nccl::Comm;
using nccl::CommConfig;
using nccl::Stream;
using nccl::UniqueId;

struct RealNccl {
  Real<nccl::AllReduce> all_reduce{"ncclAllReduce"};
  Real<nccl::ReduceScatter> reduce_scatter{"ncclReduceScatter"};
  Real<nccl::AllGather> all_gather{"ncclAllGather"};
  Real<nccl::Reduce> reduce{"ncclReduce"};
  Real<nccl::Broadcast> broadcast{"ncclBroadcast"};
  Real<nccl::Bcast> bcast{"ncclBcast"};
  Real<nccl::GroupStart> group_start{"ncclGroupStart"};
  Real<nccl::GroupEnd> group_end{"ncclGroupEnd"};
  Real<nccl::GroupSimulateEnd> group_simulate_end{"ncclGroupSimulateEnd"};
  Real<nccl::CommInitRank> init_rank{"ncclCommInitRank"};
  Real<nccl::CommInitRankConfig> init_rank_config{"ncclCommInitRankConfig"};
  Real<nccl::CommInitRankScalable> init_rank_scalable{"ncclCommInitRankScalable"};
  Real<nccl::CommInitAll> init_all{"ncclCommInitAll"};
  Real<nccl::CommSplit> split{"ncclCommSplit"};
  Real<nccl::CommShrink> shrink{"ncclCommShrink"};
  Real<nccl::CommEnd> finalize{"ncclCommFinalize"}, destroy{"ncclCommDestroy"}, abort{"ncclCommAbort"};
  Real<nccl::CommRevoke> revoke{"ncclCommRevoke"};
  Real<nccl::CommGetAsyncError> async_error{"ncclCommGetAsyncError"};
};
constinit RealNccl g_real;

// Calls the real function. What NCCL calls of its own functions meanwhile is passed on.
template <typename Function, typename... Arguments>
int pass_on(Real<Function>& real, Arguments... arguments) {
  const InsideNccl inside;
  return real(arguments...);
}

bool succeeded(int result) {
  return result == nccl::kSuccess || result == nccl::kInProgress;
}

Datatype datatype_of(int number) {
  constexpr int kTypes = static_cast<int>(Datatype::f8e5m2) + 1;
  return number >= 0 && number < kTypes ? static_cast<Datatype>(number) : Datatype::unknown;
}

template <typename Function, typename... Arguments>
int collective(gradprobe::Function function, const void* send, const void* recv, std::size_t count, int datatype,
               int root, const Comm* comm, Stream* stream, Real<Function>& real, Arguments... arguments) {
  if (inside_nccl()) return real(arguments...);
  const Call call{comm, stream, {function, datatype_of(datatype), count, root, send, recv}};
  // NCCL launches nothing for an empty collective.
  if (count == 0) {
    const int result = pass_on(real, arguments...);
    if (group_depth() > 0 && !succeeded(result)) group_failed();
    return result;
  }
  if (group_depth() > 0) {
    const int result = pass_on(real, arguments...);
    if (succeeded(result))
      group_add(call);
    else
      group_failed();
    return result;
  }
  const Pass pass = begin(comm, stream, {&call.what, 1});
  const int result = pass_on(real, arguments...);
  end(pass, result);
  return result;
}

// NCCL before 2.14 stores a communicator that is made in a group only at the group's end; later ones do it at once, and
// the program may have moved its variable by the end.
bool stores_at_group_end() {
  int version = 0;
  return real_queries().version.find() != nullptr && real_queries().version(&version) == nccl::kSuccess &&
         version < 21400;
}

// A call returned that makes a communicator, of a parent or of none. NCCL stores what it makes of a parent when it is
// complete, and a null pointer until then.
void made(Comm** comm, const Identity& identity, int result, const Comm* parent = nullptr) {
  if (!succeeded(result)) {
    if (group_depth() > 0) group_failed();
    return;
  }
  if (comm == nullptr) return;
  const bool later = parent != nullptr && *comm == nullptr;
  if (group_depth() > 0)
    group_add(later || stores_at_group_end() ? Making{nullptr, comm, identity, parent}
                                             : Making{*comm, nullptr, identity, nullptr});
  else if (later && returns_early(parent))
    unfinished_add(parent, comm, identity);
  else
    comm_made(*comm, identity, result == nccl::kSuccess);
}

Identity with_rank(Identity identity, int rank, int nranks) {
  identity.rank = rank;
  identity.nranks = nranks;
  return identity;
}

// The calls after which a communicator can't be used for collectives.
int end_of(Comm* comm, Real<nccl::CommEnd>& real, bool aborts) {
  if (inside_nccl()) return real(comm);
  if (aborts) comm_aborting(comm);
  unfinished_complete(comm, false);
  void* context = comm_ending(comm);
  const int result = pass_on(real, comm);
  // Behind NCCL's own waiting for its kernels.
  if (group_depth() > 0)
    group_add_ended(context);
  else
    comm_ended(context);
  return result;
}

}  // namespace

GRADPROBE_EXPORT int ncclAllReduce(const void* send, void* recv, std::size_t count, int datatype, int op, Comm* comm,
                                   Stream* stream) {
  return collective(Function::all_reduce, send, recv, count, datatype, 0, comm, stream, g_real.all_reduce, send, recv,
                    count, datatype, op, comm, stream);
}

GRADPROBE_EXPORT int ncclReduceScatter(const void* send, void* recv, std::size_t recv_count, int datatype, int op,
                                       Comm* comm, Stream* stream) {
  return collective(Function::reduce_scatter, send, recv, recv_count, datatype, 0, comm, stream, g_real.reduce_scatter,
                    send, recv, recv_count, datatype, op, comm, stream);
}

GRADPROBE_EXPORT int ncclAllGather(const void* send, void* recv, std::size_t send_count, int datatype, Comm* comm,
                                   Stream* stream) {
  return collective(Function::all_gather, send, recv, send_count, datatype, 0, comm, stream, g_real.all_gather, send,
                    recv, send_count, datatype, comm, stream);
}

GRADPROBE_EXPORT int ncclReduce(const void* send, void* recv, std::size_t count, int datatype, int op, int root,
                                Comm* comm, Stream* stream) {
  return collective(Function::reduce, send, recv, count, datatype, root, comm, stream, g_real.reduce, send, recv, count,
                    datatype, op, root, comm, stream);
}

GRADPROBE_EXPORT int ncclBroadcast(const void* send, void* recv, std::size_t count, int datatype, int root, Comm* comm,
                                   Stream* stream) {
  return collective(Function::broadcast, send, recv, count, datatype, root, comm, stream, g_real.broadcast, send, recv,
                    count, datatype, root, comm, stream);
}

GRADPROBE_EXPORT int ncclBcast(void* buffer, std::size_t count, int datatype, int root, Comm* comm, Stream* stream) {
  return collective(Function::broadcast, buffer, buffer, count, datatype, root, comm, stream, g_real.bcast, buffer,
                    count, datatype, root, comm, stream);
}

GRADPROBE_EXPORT int ncclGroupStart() {
  if (inside_nccl()) return g_real.group_start();
  const int result = pass_on(g_real.group_start);
  if (result == nccl::kSuccess) group_entered();
  return result;
}

GRADPROBE_EXPORT int ncclGroupEnd() {
  if (inside_nccl()) return g_real.group_end();
  if (!group_left()) return pass_on(g_real.group_end);
  group_begin();
  const int result = pass_on(g_real.group_end);
  group_end(result);
  return result;
}

GRADPROBE_EXPORT int ncclGroupSimulateEnd(void* info) {
  if (inside_nccl() || g_real.group_simulate_end.find() == nullptr) return g_real.group_simulate_end(info);
  if (group_left()) group_drop();
  return pass_on(g_real.group_simulate_end, info);
}

GRADPROBE_EXPORT int ncclCommInitRank(Comm** comm, int nranks, UniqueId id, int rank) {
  if (inside_nccl()) return g_real.init_rank(comm, nranks, id, rank);
  note_use();
  const int result = pass_on(g_real.init_rank, comm, nranks, id, rank);
  made(comm, with_rank(identity_of_ids(&id, 1, nullptr), rank, nranks), result);
  return result;
}

GRADPROBE_EXPORT int ncclCommInitRankConfig(Comm** comm, int nranks, UniqueId id, int rank, CommConfig* config) {
  if (inside_nccl()) return g_real.init_rank_config(comm, nranks, id, rank, config);
  note_use();
  const Identity identity = with_rank(identity_of_ids(&id, 1, config), rank, nranks);
  const int result = pass_on(g_real.init_rank_config, comm, nranks, id, rank, config);
  made(comm, identity, result);
  return result;
}

GRADPROBE_EXPORT int ncclCommInitRankScalable(Comm** comm, int nranks, int rank, int id_count, UniqueId* ids,
                                              CommConfig* config) {
  if (inside_nccl()) return g_real.init_rank_scalable(comm, nranks, rank, id_count, ids, config);
  note_use();
  const Identity identity = with_rank(identity_of_ids(ids, id_count, config), rank, nranks);
  const int result = pass_on(g_real.init_rank_scalable, comm, nranks, rank, id_count, ids, config);
  made(comm, identity, result);
  return result;
}

GRADPROBE_EXPORT int ncclCommInitAll(Comm** comms, int count, const int* devices) {
  if (inside_nccl()) return g_real.init_all(comms, count, devices);
  note_use();
  const int result = pass_on(g_real.init_all, comms, count, devices);
  const Identity identity = identity_in_this_process();
  for (int i = 0; comms != nullptr && succeeded(result) && i < count; i++)
    made(&comms[i], with_rank(identity, i, count), result);
  return result;
}

GRADPROBE_EXPORT int ncclCommSplit(Comm* parent, int color, int key, Comm** comm, CommConfig* config) {
  if (inside_nccl() || g_real.split.find() == nullptr) return g_real.split(parent, color, key, comm, config);
  note_use();
  const Identity identity = identity_of_split(parent, color, config);
  const int result = pass_on(g_real.split, parent, color, key, comm, config);
  made(comm, identity, result, parent);
  return result;
}

GRADPROBE_EXPORT int ncclCommShrink(Comm* parent, int* excluded, int excluded_count, Comm** comm, CommConfig* config,
                                    int flags) {
  if (inside_nccl() || g_real.shrink.find() == nullptr)
    return g_real.shrink(parent, excluded, excluded_count, comm, config, flags);
  note_use();
  if ((flags & nccl::kShrinkAbort) != 0) comm_aborting(parent);
  const Identity identity = identity_of_shrink(parent, excluded, excluded_count, config);
  const int result = pass_on(g_real.shrink, parent, excluded, excluded_count, comm, config, flags);
  made(comm, identity, result, parent);
  return result;
}

GRADPROBE_EXPORT int ncclCommGetAsyncError(Comm* comm, int* state) {
  const int result = g_real.async_error(comm, state);
  if (!inside_nccl() && result == nccl::kSuccess && state != nullptr && *state != nccl::kInProgress)
    unfinished_complete(comm, *state == nccl::kSuccess);
  return result;
}

GRADPROBE_EXPORT int ncclCommFinalize(Comm* comm) {
  if (g_real.finalize.find() == nullptr) return g_real.finalize(comm);
  return end_of(comm, g_real.finalize, false);
}

GRADPROBE_EXPORT int ncclCommDestroy(Comm* comm) {
  return end_of(comm, g_real.destroy, false);
}

GRADPROBE_EXPORT int ncclCommAbort(Comm* comm) {
  return end_of(comm, g_real.abort, true);
}

GRADPROBE_EXPORT int ncclCommRevoke(Comm* comm, int flags) {
  if (inside_nccl() || g_real.revoke.find() == nullptr) return g_real.revoke(comm, flags);
  comm_aborting(comm);
  return pass_on(g_real.revoke, comm, flags);
}

// Asked by the profiler plugin: nothing is to be measured twice.
GRADPROBE_EXPORT int gradprobe_preload_active() {
  return in_use() ? 1 : 0;
}
