#include "comm.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "log.h"
#include "profiler/profiler.h"

namespace standin {
namespace {

// Calls that a capture elsewhere in the process would forbid are allowed while this lives.
class RelaxedCapture {
 public:
  RelaxedCapture() { cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

std::shared_ptr<Clique> clique_of(const ncclUniqueId& id) {
  static std::mutex& mutex = *new std::mutex;
  static auto& cliques = *new std::map<std::string, std::weak_ptr<Clique>>;
  std::lock_guard lock(mutex);
  std::erase_if(cliques, [](const auto& entry) { return entry.second.expired(); });
  auto& known = cliques[std::string(id.internal, sizeof id.internal)];
  std::shared_ptr<Clique> clique = known.lock();
  if (!clique) known = clique = std::make_shared<Clique>();
  return clique;
}

void join_clique(ncclComm* comm) {
  comm->clique = clique_of(comm->id);
  std::lock_guard lock(comm->clique->mutex);
  auto& comms = comm->clique->comms;
  comms.insert(std::find_if(comms.begin(), comms.end(), [&](ncclComm* c) { return c->rank > comm->rank; }), comm);
}

ncclResult_t make_cuda_objects(ncclComm* comm) {
  int major = 0;
  STANDIN_CUDA(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, comm->device));
  comm->fp8_reductions = major >= 9;
  STANDIN_CUDA(cuStreamCreate(&comm->host_stream, CU_STREAM_NON_BLOCKING));
  for (CUevent* e : {&comm->serial, &comm->scratch, &comm->host_serial})
    STANDIN_CUDA(cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
  return ncclSuccess;
}

void show_version(const ncclComm* comm) {
  static std::once_flag once;
  if (comm->rank) return;
  std::call_once(once, [&] {
    standin_nccl_log(kLogVersion, kLogAll, __func__, __LINE__, "NCCL version 2.%d.%d (stand-in of gradprobe's tests)",
                     comm->settings.minor, comm->settings.patch);
  });
}

void free_comm(ncclComm* comm) {
  {
    CurrentDevice device;
    device.set(comm);
    RelaxedCapture relaxed;
    profiler::finalize(comm);
    for (CUevent e : {comm->serial, comm->scratch, comm->host_serial})
      if (e) cuEventDestroy(e);
    if (comm->host_stream) cuStreamDestroy(comm->host_stream);
  }
  comm->magic = 0;
  delete comm;
}

}  // namespace

void CurrentDevice::set(const ncclComm* comm) {
  cuCtxSetCurrent(comm->context);
  set_log_device(comm->device);
}

ncclResult_t cuda_error(CUresult r, const char* call) {
  const char* name = nullptr;
  cuGetErrorName(r, &name);
  STANDIN_WARN("CUDA failure %s (%d) in %s", name ? name : "?", r, call);
  return ncclUnhandledCudaError;
}

ncclResult_t check_comm(const ncclComm* comm, const char* call) {
  if (comm && comm->magic == ncclComm::kMagic) return ncclSuccess;
  STANDIN_WARN("%s: the communicator is %s", call, comm ? "not one of this library, or destroyed" : "NULL");
  return ncclInvalidArgument;
}

ncclResult_t ensure_ready(ncclComm* comm) {
  if (!comm->abort) {
    auto r = static_cast<ncclResult_t>(comm->async_result.load());
    if (r) {
      STANDIN_WARN("communicator used before its last operation succeeded (%s)", ncclGetErrorString(r));
      return r == ncclInProgress ? ncclInvalidArgument : r;
    }
  }
  comm->job.reset();
  return ncclSuccess;
}

ncclResult_t comm_start(ncclComm* comm) {
  show_version(comm);
  CurrentDevice device;
  device.set(comm);
  RelaxedCapture relaxed;
  comm->session = std::make_unique<Session>();
  STANDIN_TRY(comm->session->attach(comm->id, comm->ranks, comm->rank,
                                    {comm->settings.chunk_bytes, comm->settings.join_timeout_s}, &comm->abort));
  comm->joined = true;
  STANDIN_TRY(make_cuda_objects(comm));
  join_clique(comm);
  STANDIN_TRY(comm->session->meet());
  profiler::init(comm);
  return comm->session->meet();
}

ncclResult_t comm_synchronize(ncclComm* comm) {
  CurrentDevice device;
  device.set(comm);
  RelaxedCapture relaxed;
  if (comm->launched) STANDIN_CUDA(cuEventSynchronize(comm->serial));
  if (comm->host_called) STANDIN_CUDA(cuStreamSynchronize(comm->host_stream));
  std::unique_lock lock(comm->persistent_mutex);
  comm->persistent_cv.wait(lock, [&] { return comm->persistent_plans == 0 || comm->abort; });
  return ncclSuccess;
}

ncclResult_t comm_reclaim(ncclComm* comm) {
  if (!comm->clique) {
    free_comm(comm);
    return ncclSuccess;
  }
  std::shared_ptr<Clique> clique = comm->clique;
  if (comm->abort && comm->joined) comm->session->leave();
  {
    std::lock_guard lock(clique->mutex);
    if (++clique->destroyed < clique->comms.size()) return ncclSuccess;
  }
  for (ncclComm* c : clique->comms)
    if (!c->finalized) comm_synchronize(c);
  for (ncclComm* c : clique->comms) free_comm(c);
  return ncclSuccess;
}

ncclResult_t comm_interrupt(ncclComm* comm) {
  CurrentDevice device;
  device.set(comm);
  comm->abort = true;
  comm->session->wake_all();
  if (comm->launched) STANDIN_CUDA(cuEventSynchronize(comm->serial));
  comm->abort = false;
  comm->session->leave();
  return ncclSuccess;
}

ncclResult_t comm_split(ncclComm* parent, int color, int key, ncclComm* child) {
  struct Member {
    int color, key, rank;
  };
  Member mine{color, key, parent->rank};
  std::vector<Member> all(static_cast<size_t>(parent->ranks));
  STANDIN_TRY(parent->session->gather_mail(&mine, sizeof mine, all.data()));
  if (!child) return ncclSuccess;
  std::erase_if(all, [&](const Member& m) { return m.color != color; });
  std::sort(all.begin(), all.end(),
            [](const Member& a, const Member& b) { return a.key != b.key ? a.key < b.key : a.rank < b.rank; });
  auto me = std::find_if(all.begin(), all.end(), [&](const Member& m) { return m.rank == parent->rank; });
  child->ranks = static_cast<int>(all.size());
  child->rank = static_cast<int>(me - all.begin());
  return comm_start(child);
}

}  // namespace standin

void ncclComm::set_async_error(ncclResult_t r) {
  int expected = ncclSuccess;
  if (!async_result.compare_exchange_strong(expected, r) && expected == ncclInProgress) {
    expected = ncclInProgress;
    async_result.compare_exchange_strong(expected, r);
  }
}
