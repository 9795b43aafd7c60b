// The objects behind ncclComm_t: a communicator, the calls waiting to be launched on it, and launches.
#pragma once
#include <cuda.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "include/nccl.h"
#include "session.h"
#include "settings.h"
#include "transfer.h"

struct ncclComm;

namespace standin {

// One API call of a group, until its launch has been made.
struct Task {
  Transfer what;
  // As Coll and P2p events tell it: an all-gather's and a broadcast's are bytes.
  size_t event_count = 0;
  ncclDataType_t event_type = ncclInt8;
  size_t traffic_bytes = 0;
  CUstream stream = nullptr;
  uint64_t number = 0;  // of the communicator's collectives
  bool silent = false;  // no events but those of the API call
  bool symmetric = false;
  bool copy_engine = false;
  int mask = 0;               // profiler event mask when the call was made
  void* group_api = nullptr;  // profiler handles
  void* task_api = nullptr;
  void* event = nullptr;
  bool is_p2p() const { return what.func == Func::Send || what.func == Func::Recv; }
};

// One kernel launch. Shared by the launching thread, the stream (or graph) and host functions.
struct Plan : std::enable_shared_from_this<Plan> {
  explicit Plan(ncclComm* c, bool captured);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  ncclComm* comm;
  const bool persistent;  // captured: runs at each replay, lives as long as the graph
  std::vector<Task> colls, p2ps;
  bool copy_engine = false;  // no kernel
  bool on_host_callback = false;
  void* group_event = nullptr;
  void* kernel_launch_event = nullptr;
  void* copy_engine_event = nullptr;

  std::string kernel_name() const;
  void run();  // the kernel
};

// Ranks of one communicator in this process. They are freed together, when the last of them is destroyed.
struct Clique {
  std::mutex mutex;
  std::vector<ncclComm*> comms;  // by rank
  size_t destroyed = 0;
};

// Work of a group with non-blocking communicators, on a thread of the library.
class GroupJob {
 public:
  template <typename F>
  void start(F work) {
    thread_ = std::thread(std::move(work));
  }
  ~GroupJob() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

}  // namespace standin

struct ncclComm {
  static constexpr uint32_t kMagic = 0x4d4d4f43;
  uint32_t magic = kMagic;

  standin::Settings settings;
  ncclUniqueId id = {};
  uint64_t hash = 0;
  int ranks = 0, rank = 0, device = 0;
  CUcontext context = nullptr;
  bool blocking = true;
  bool has_name = false;
  std::string name;
  bool fp8_reductions = false;
  uint64_t splits = 0, shrinks = 0;
  uint64_t collectives = 0;  // called so far
  const char* profiler_name() const { return has_name ? name.c_str() : nullptr; }
  int rank_in_api_events() const { return settings.tells_rank_in_api_events() ? rank : 0; }

  std::unique_ptr<standin::Session> session;
  std::atomic<bool> joined{false};  // the session is complete
  std::shared_ptr<standin::Clique> clique;
  void* profiler_context = nullptr;
  bool profiler_initialised = false;
  std::array<std::atomic<uint64_t>, standin::kFuncs> sequence{};
  uint64_t copy_engine_sequence = 0;

  std::atomic<int> async_result{ncclSuccess};
  std::atomic<bool> abort{false};
  bool finalized = false, destroy_called = false;
  std::shared_ptr<standin::GroupJob> job;

  // Order of launches, and host functions before them.
  CUevent serial = nullptr, scratch = nullptr, host_serial = nullptr;
  CUstream host_stream = nullptr;
  CUstream last_stream = nullptr;
  bool launched = false, host_called = false;
  std::mutex persistent_mutex;
  std::condition_variable persistent_cv;
  int persistent_plans = 0;
  bool has_persistent_plans() {
    std::lock_guard lock(persistent_mutex);
    return persistent_plans > 0;
  }

  // The open group's calls.
  bool in_group = false;
  std::vector<standin::Task> waiting;
  std::vector<CUstream> streams;  // the one joined last first
  unsigned long long capture_id = 0;
  std::deque<std::shared_ptr<standin::Plan>> plans;

  // The first error of work that ran asynchronously stays.
  void set_async_error(ncclResult_t r);
};

namespace standin {

// ncclInvalidArgument with a warning when the pointer is no communicator.
ncclResult_t check_comm(const ncclComm* comm, const char* call);
// That the communicator can take a call: no earlier one in progress or failed.
ncclResult_t ensure_ready(ncclComm* comm);

// The steps of a communicator's life, on whatever thread the group runs them.
ncclResult_t comm_start(ncclComm* comm);
ncclResult_t comm_synchronize(ncclComm* comm);
ncclResult_t comm_reclaim(ncclComm* comm);
ncclResult_t comm_split(ncclComm* parent, int color, int key, ncclComm* child);
// The parent's running collectives end, in whatever state, and it can be used no more.
ncclResult_t comm_interrupt(ncclComm* comm);

// A communicator's device as the thread's current one, the old one again at the end.
class CurrentDevice {
 public:
  CurrentDevice() { cuCtxGetCurrent(&saved_); }
  ~CurrentDevice() { cuCtxSetCurrent(saved_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  void set(const ncclComm* comm);

 private:
  CUcontext saved_ = nullptr;
};

// One line with the driver's error name; ncclUnhandledCudaError.
ncclResult_t cuda_error(CUresult, const char* call);

}  // namespace standin

#define STANDIN_TRY(expression)                                      \
  do {                                                               \
    if (ncclResult_t try_result_ = (expression)) return try_result_; \
  } while (0)
#define STANDIN_CUDA(call)                                                                 \
  do {                                                                                     \
    if (CUresult cuda_result_ = (call)) return ::standin::cuda_error(cuda_result_, #call); \
  } while (0)
