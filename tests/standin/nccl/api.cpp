// The public functions.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "comm.h"
#include "group.h"
#include "log.h"

using namespace standin;

namespace {

// The current context's device; device 0's primary context when the thread has none, as with the CUDA runtime.
ncclResult_t use_current_device(ncclComm* comm) {
  STANDIN_CUDA(cuInit(0));
  STANDIN_CUDA(cuCtxGetCurrent(&comm->context));
  if (!comm->context) {
    STANDIN_CUDA(cuDevicePrimaryCtxRetain(&comm->context, 0));
    STANDIN_CUDA(cuCtxSetCurrent(comm->context));
  }
  CUdevice device = 0;
  STANDIN_CUDA(cuCtxGetDevice(&device));
  comm->device = device;
  return ncclSuccess;
}

ncclResult_t apply_config(ncclComm* comm, const ncclConfig_t* config) {
  if (!config) return ncclSuccess;
  constexpr size_t kOldest = offsetof(ncclConfig_t, cgaClusterSize);
  if (config->magic != 0xcafebeef || config->size < kOldest) {
    STANDIN_WARN("ncclConfig_t is not initialised: use NCCL_CONFIG_INITIALIZER");
    return ncclInvalidArgument;
  }
  // A caller compiled for another release may have fewer or more fields.
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  memcpy(static_cast<void*>(&c), config, config->size < sizeof c ? config->size : sizeof c);
  if (c.blocking != NCCL_CONFIG_UNDEF_INT && c.blocking != 0 && c.blocking != 1) {
    STANDIN_WARN("ncclConfig_t: blocking is %d, must be 0 or 1", c.blocking);
    return ncclInvalidArgument;
  }
  if (c.blocking != NCCL_CONFIG_UNDEF_INT) comm->blocking = c.blocking != 0;
  if (c.commName) {
    comm->has_name = true;
    comm->name = c.commName;
  }
  return ncclSuccess;
}

ncclResult_t read_settings_for(ncclComm* comm) {
  std::string error;
  if (read_settings(&comm->settings, &error)) return ncclSuccess;
  fprintf(stderr, "stand-in NCCL: %s\n", error.c_str());
  STANDIN_WARN("%s", error.c_str());
  return ncclInvalidArgument;
}

ncclResult_t check_pointer(const void* p, const char* call, const char* name) {
  if (p) return ncclSuccess;
  STANDIN_WARN("%s: %s is NULL", call, name);
  return ncclInvalidArgument;
}

// A communicator that its user already holds (but for old releases) while the group's end still has to start it.
ncclResult_t init_rank(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  STANDIN_TRY(check_pointer(out, "ncclCommInitRank", "comm"));
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    STANDIN_WARN("ncclCommInitRank: rank %d of %d ranks is impossible", rank, ranks);
    return ncclInvalidArgument;
  }
  auto comm = std::make_unique<ncclComm>();
  STANDIN_TRY(read_settings_for(comm.get()));
  if (!comm->settings.stores_at_group_end()) *out = nullptr;
  STANDIN_TRY(apply_config(comm.get(), config));
  STANDIN_TRY(use_current_device(comm.get()));
  comm->id = id;
  comm->hash = hash_of(id);
  comm->ranks = ranks;
  comm->rank = rank;
  ncclComm* c = comm.release();
  bool blocking = c->blocking;
  bool at_end = c->settings.stores_at_group_end();
  if (!at_end) *out = c;
  ncclResult_t r = add_life_job({c, [c, out, at_end] {
                                   ncclResult_t started = comm_start(c);
                                   if (at_end) *out = started == ncclSuccess ? c : nullptr;
                                   return started;
                                 }});
  if (r && r != ncclInProgress && blocking) {
    *out = nullptr;
    c->abort = true;
    comm_reclaim(c);
  }
  return r;
}

ncclResult_t collective(Func func, const char* call, const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  if (ncclResult_t r = check_comm(comm, call)) return group_error(r);
  if (op < 0 || op >= ncclNumOps) {
    STANDIN_WARN("%s: invalid reduction operation %d", call, op);
    return group_error(ncclInvalidArgument);
  }
  Transfer t{.func = func, .send = send, .recv = recv, .count = count, .type = type, .op = op, .root = root};
  return enqueue(comm, call, t, stream);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  STANDIN_TRY(check_pointer(version, "ncclGetVersion", "version"));
  Settings s;
  std::string error;
  if (!read_settings(&s, &error)) {
    fprintf(stderr, "stand-in NCCL: %s\n", error.c_str());
    return ncclInvalidArgument;
  }
  *version = s.version_code();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "CUDA call failed";
    case ncclSystemError:
      return "system call failed";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "a remote rank failed or is gone";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return last_warning();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  STANDIN_TRY(check_pointer(id, "ncclGetUniqueId", "uniqueId"));
  *id = make_unique_id();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return init_rank(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return init_rank(comm, nranks, id, rank, config);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int id_count, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  STANDIN_TRY(check_pointer(ids, "ncclCommInitRankScalable", "commIds"));
  if (id_count < 1 || id_count > nranks) {
    STANDIN_WARN("ncclCommInitRankScalable: %d ids for %d ranks", id_count, nranks);
    return ncclInvalidArgument;
  }
  return init_rank(comm, nranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  STANDIN_TRY(check_pointer(comms, "ncclCommInitAll", "comm"));
  STANDIN_CUDA(cuInit(0));
  int available = 0;
  STANDIN_CUDA(cuDeviceGetCount(&available));
  for (int i = 0; i < count; i++) {
    int device = devices ? devices[i] : i;
    if (device >= 0 && device < available) continue;
    STANDIN_WARN("ncclCommInitAll: device %d, but there are %d", device, available);
    return ncclInvalidArgument;
  }
  ncclUniqueId id = make_unique_id();
  std::vector<CUcontext> contexts(static_cast<size_t>(count));
  for (int i = 0; i < count; i++)
    STANDIN_CUDA(cuDevicePrimaryCtxRetain(&contexts[static_cast<size_t>(i)], devices ? devices[i] : i));
  CurrentDevice restore;
  group_start();
  ncclResult_t r = ncclSuccess;
  for (int i = 0; !r && i < count; i++) {
    cuCtxSetCurrent(contexts[static_cast<size_t>(i)]);
    r = init_rank(&comms[i], count, id, i, nullptr);
  }
  group_error(r);
  ncclResult_t end = group_end();
  return r ? r : end;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
  if (ncclResult_t r = check_comm(comm, "ncclCommSplit")) return group_error(r);
  STANDIN_TRY(check_pointer(out, "ncclCommSplit", "newcomm"));
  *out = nullptr;
  STANDIN_TRY(ensure_ready(comm));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    STANDIN_WARN("ncclCommSplit: color %d is negative", color);
    return ncclInvalidArgument;
  }
  uint64_t split = ++comm->splits;
  if (color == NCCL_SPLIT_NOCOLOR) return add_life_job({comm, [=] { return comm_split(comm, color, key, nullptr); }});
  auto made = std::make_unique<ncclComm>();
  made->settings = comm->settings;
  made->blocking = comm->blocking;
  STANDIN_TRY(apply_config(made.get(), config));
  made->id = derive_unique_id(comm->id, split, color);
  made->hash = hash_of(made->id);
  made->context = comm->context;
  made->device = comm->device;
  ncclComm* child = *out = made.release();
  return add_life_job({child, [=] { return comm_split(comm, color, key, child); }});
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* out, ncclConfig_t* config,
                            int flags) {
  if (ncclResult_t r = check_comm(comm, "ncclCommShrink")) return group_error(r);
  STANDIN_TRY(check_pointer(out, "ncclCommShrink", "newcomm"));
  STANDIN_TRY(check_pointer(excluded, "ncclCommShrink", "excludeRanksList"));
  *out = nullptr;
  std::vector<int> gone(excluded, excluded + std::max(excluded_count, 0));
  if (gone.empty() || std::count(gone.begin(), gone.end(), comm->rank) != 0) {
    STANDIN_WARN("ncclCommShrink: the list of ranks to exclude is empty or names the caller, rank %d", comm->rank);
    return group_error(ncclInvalidArgument);
  }
  if (flags & NCCL_SHRINK_ABORT)
    STANDIN_TRY(comm_interrupt(comm));
  else
    STANDIN_TRY(ensure_ready(comm));
  auto made = std::make_unique<ncclComm>();
  made->settings = comm->settings;
  made->blocking = comm->blocking;
  STANDIN_TRY(apply_config(made.get(), config));
  // Ranks that are left out count no shrink, so it must not be told apart from a split by the number of both.
  made->id = derive_unique_id(comm->id, ++comm->shrinks, -1);
  made->hash = hash_of(made->id);
  made->context = comm->context;
  made->device = comm->device;
  for (int r = 0; r < comm->ranks; r++) {
    if (std::count(gone.begin(), gone.end(), r) != 0) continue;
    if (r == comm->rank) made->rank = made->ranks;
    made->ranks++;
  }
  ncclComm* child = *out = made.release();
  return add_life_job({child, [=] { return comm_start(child); }});
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  STANDIN_TRY(check_comm(comm, "ncclCommFinalize"));
  STANDIN_TRY(ensure_ready(comm));
  if (comm->finalized) {
    STANDIN_WARN("ncclCommFinalize called twice");
    return ncclInvalidArgument;
  }
  comm->finalized = true;
  return add_life_job({comm, [comm] { return comm_synchronize(comm); }});
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  STANDIN_TRY(check_comm(comm, "ncclCommDestroy"));
  STANDIN_TRY(ensure_ready(comm));
  if (comm->destroy_called) {
    STANDIN_WARN("ncclCommDestroy called twice");
    return ncclInvalidArgument;
  }
  comm->destroy_called = true;
  return add_life_job({comm, [comm] { return comm_reclaim(comm); }, true});
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  STANDIN_TRY(check_comm(comm, "ncclCommAbort"));
  comm->abort = true;
  if (comm->joined) comm->session->wake_all();
  comm->job.reset();
  comm->destroy_called = true;
  return add_life_job({comm, [comm] { return comm_reclaim(comm); }, true});
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (!comm) return ncclSuccess;
  STANDIN_TRY(check_comm(comm, "ncclCommRevoke"));
  if (flags != NCCL_REVOKE_DEFAULT || comm->finalized) {
    STANDIN_WARN("ncclCommRevoke: flags are %d, or the communicator has been finalized or revoked", flags);
    return ncclInvalidArgument;
  }
  comm->finalized = true;
  STANDIN_TRY(comm_interrupt(comm));
  comm->async_result = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  STANDIN_TRY(check_comm(comm, "ncclCommGetAsyncError"));
  STANDIN_TRY(check_pointer(result, "ncclCommGetAsyncError", "asyncError"));
  *result = static_cast<ncclResult_t>(comm->async_result.load());
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  STANDIN_TRY(check_comm(comm, "ncclCommCount"));
  STANDIN_TRY(check_pointer(count, "ncclCommCount", "count"));
  STANDIN_TRY(ensure_ready(comm));
  *count = comm->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  STANDIN_TRY(check_comm(comm, "ncclCommCuDevice"));
  STANDIN_TRY(check_pointer(device, "ncclCommCuDevice", "device"));
  STANDIN_TRY(ensure_ready(comm));
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  STANDIN_TRY(check_comm(comm, "ncclCommUserRank"));
  STANDIN_TRY(check_pointer(rank, "ncclCommUserRank", "rank"));
  STANDIN_TRY(ensure_ready(comm));
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
  group_start();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  return group_end();
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  if (info && info->magic != 0x74685283) {
    STANDIN_WARN("ncclSimInfo_t is not initialised: use NCCL_SIM_INFO_INITIALIZER");
    group_error(ncclInvalidArgument);
  }
  ncclSimInfo_t unused = NCCL_SIM_INFO_INITIALIZER;
  return group_end(info ? info : &unused);
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(Func::AllReduce, "ncclAllReduce", sendbuff, recvbuff, count, datatype, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(Func::ReduceScatter, "ncclReduceScatter", sendbuff, recvbuff, recvcount, datatype, op, 0, comm,
                    stream);
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(Func::AllGather, "ncclAllGather", sendbuff, recvbuff, sendcount, datatype, ncclSum, 0, comm,
                    stream);
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(Func::Broadcast, "ncclBroadcast", sendbuff, recvbuff, count, datatype, ncclSum, root, comm, stream);
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return collective(Func::Reduce, "ncclReduce", sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return collective(Func::Send, "ncclSend", sendbuff, nullptr, count, datatype, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return collective(Func::Recv, "ncclRecv", nullptr, recvbuff, count, datatype, ncclSum, peer, comm, stream);
}

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  STANDIN_TRY(check_pointer(ptr, "ncclMemAlloc", "ptr"));
  CUdeviceptr p = 0;
  STANDIN_CUDA(cuMemAlloc(&p, size));
  *ptr = reinterpret_cast<void*>(p);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* ptr) {
  STANDIN_CUDA(cuMemFree(reinterpret_cast<CUdeviceptr>(ptr)));
  return ncclSuccess;
}

}  // extern "C"
