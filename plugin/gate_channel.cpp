#include "gate_channel.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/fatbin.hpp"

namespace gradprobe {

namespace {

// Never destroyed: a process may end in one thread while NCCL finalizes in another.
struct Retired {
  std::mutex mutex;
  std::vector<std::unique_ptr<GateChannel>> channels;
};
Retired& retired() {
  static Retired* channels = new Retired;
  return *channels;
}

}  // namespace

void GateChannel::retire(std::unique_ptr<GateChannel> channel) noexcept {
  try {
    Retired& all = retired();
    const std::lock_guard lock(all.mutex);
    all.channels.push_back(std::move(channel));
  } catch (const std::exception&) {
    if (channel != nullptr) channel->leave_memory();
  }
}

std::unique_ptr<GateChannel> GateChannel::take_retired(const CudaDriver& cuda, const Config& config) {
  CUcontext context = nullptr;
  if (cuda.ctx_get_current(&context) != CUDA_SUCCESS || context == nullptr) return nullptr;
  Retired& all = retired();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.channels.begin(), all.channels.end(), [&](const auto& c) {
    return c->context_ == context && c->params_.sketch_floats == config.sketch_floats &&
           c->params_.workspace_ctas == config.max_ctas;
  });
  if (found == all.channels.end()) return nullptr;
  std::unique_ptr<GateChannel> channel = std::move(*found);
  all.channels.erase(found);
  return channel;
}

bool GateChannel::renew(const Config& config) {
  // The last thread block tells the host that a pass has ended an instant before its very last store.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // A context that was destroyed or reset has taken the device memory with it, which may be somebody else's by now; and
  // the registration of the host memory, which is still ours. Both were made together, so the one tells of the other.
  CUdeviceptr device = 0;
  if (cuda_.mem_host_get_device_pointer(&device, host_, 0) != CUDA_SUCCESS || device != device_base_) return false;
  std::memset(host_, 0, host_bytes_);
  for (StreamUse& use : streams_) use = {};
  stream_uses_ = 0;
  launches_.store(0, std::memory_order_relaxed);
  set_common_params(config);
  return true;
}

void GateChannel::set_common_params(const Config& config) {
  params_.arena = reinterpret_cast<const gate::GateEntry*>(device_base_ + entries_at_);
  params_.control = reinterpret_cast<gate::GateControl*>(device_base_ + control_at_);
  params_.results = reinterpret_cast<unsigned char*>(device_base_ + results_at_);
  params_.channel = reinterpret_cast<gate::ChannelState*>(device_memory_);
  params_.timeout_ns = std::uint64_t{config.gate_timeout_ms} * 1000000u;
  params_.result_capacity = kResults;
  params_.flags = config.count_zeros ? gate::kCountZeros : 0;
}

std::unique_ptr<GateChannel> GateChannel::create(const CudaDriver& cuda, const Config& config, std::string* why) {
  const RelaxedCapture relaxed(cuda);
  if (std::unique_ptr<GateChannel> channel = take_retired(cuda, config); channel != nullptr) {
    if (channel->renew(config) && channel->warm_up(why)) return channel;
    channel->leave_memory();
    why->clear();
  }
  std::unique_ptr<GateChannel> channel(new GateChannel(cuda));
  if (channel->set_up(config, why) && channel->warm_up(why)) return channel;
  return nullptr;
}

bool GateChannel::set_up(const Config& config, std::string* why) {
  const auto fail = [&](const char* what, const char* call, CUresult r) {
    *why = std::string(what) + " (" + call + ": " + cuda_.error_name(r).text + ")";
    return false;
  };
  if (const CUresult r = cuda_.ctx_get_current(&context_); r != CUDA_SUCCESS)
    return fail("can't find the CUDA context", "cuCtxGetCurrent", r);
  if (context_ == nullptr) {
    *why = "no CUDA context is current in NCCL's init call";
    return false;
  }
  CUdevice device = 0;
  if (cuda_.ctx_get_device(&device) == CUDA_SUCCESS) {
    char name[64] = {};
    if (cuda_.device_get_name(name, sizeof name - 1, device) == CUDA_SUCCESS) device_name_ = name;
    CUuuid uuid{};
    if (cuda_.device_get_uuid != nullptr && cuda_.device_get_uuid(&uuid, device) == CUDA_SUCCESS)
      std::memcpy(uuid_, &uuid, sizeof uuid_);
  }
  if (const CUresult r = cuda_.module_load_data(&module_, gate::fatbin().data()); r != CUDA_SUCCESS)
    return fail("can't load the measuring kernels", "cuModuleLoadData", r);
  for (std::uint32_t i = 0; i <= gate::kMixed; i++)
    if (const CUresult r = cuda_.module_get_function(&kernels_[i], module_, gate::kMeasureKernels[i]);
        r != CUDA_SUCCESS)
      return fail(gate::kMeasureKernels[i], "cuModuleGetFunction", r);

  params_.sketch_floats = config.sketch_floats;
  params_.workspace_ctas = config.max_ctas;
  entries_at_ = sizeof(gate::GateSlot) * kSlots;
  control_at_ = entries_at_ + sizeof(gate::GateEntry) * kEntries;
  results_at_ = control_at_ + sizeof(gate::GateControl);
  const std::size_t page = 4096;
  const std::size_t wanted = results_at_ + std::size_t{gate::result_bytes(config.sketch_floats)} * kResults;
  host_bytes_ = (wanted + page - 1) / page * page;
  // MAP_POPULATE: the first touch would otherwise be a page fault inside a callback.
  void* map = mmap(nullptr, host_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (map == MAP_FAILED) {
    *why = "can't map " + std::to_string(host_bytes_) + " bytes of host memory: " + std::strerror(errno);
    return false;
  }
  host_ = static_cast<unsigned char*>(map);
  // Memory that the device writes must stay the parent's after fork(), not turn into a copy.
  madvise(host_, host_bytes_, MADV_DONTFORK);
  if (const CUresult r =
          cuda_.mem_host_register(host_, host_bytes_, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
      r != CUDA_SUCCESS)
    return fail("can't pin host memory", "cuMemHostRegister", r);
  registered_ = true;
  if (const CUresult r = cuda_.mem_host_get_device_pointer(&device_base_, host_, 0); r != CUDA_SUCCESS)
    return fail("can't map host memory", "cuMemHostGetDevicePointer", r);
  slots_ = reinterpret_cast<gate::GateSlot*>(host_);
  entries_ = reinterpret_cast<gate::GateEntry*>(host_ + entries_at_);
  control_ = reinterpret_cast<gate::GateControl*>(host_ + control_at_);
  results_ = host_ + results_at_;
  constexpr std::size_t kAlignment = alignof(gate::WorkspaceHead);
  const std::size_t workspaces_at =
      (sizeof(gate::ChannelState) + sizeof(gate::SlotRuns) * kSlots + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t workspace_bytes = gate::workspace_layout(config.sketch_floats, config.max_ctas).bytes;
  device_bytes_ = workspaces_at + workspace_bytes * kWorkspaces;
  if (const CUresult r = cuda_.mem_alloc(&device_memory_, device_bytes_); r != CUDA_SUCCESS)
    return fail("can't allocate the workspaces", "cuMemAlloc", r);
  for (std::uint32_t i = 0; i < kWorkspaces; i++) workspaces_[i] = device_memory_ + workspaces_at + workspace_bytes * i;
  set_common_params(config);
  return true;
}

bool GateChannel::warm_up(std::string* why) {
  CUstream stream = nullptr;
  const char* call = "cuStreamCreate";
  CUresult r = cuda_.stream_create(&stream, CU_STREAM_NON_BLOCKING);
  if (r == CUDA_SUCCESS) {
    call = "cuMemsetD8Async";
    r = cuda_.memset_d8_async(device_memory_, 0, device_bytes_, stream);
    // What was launched and can't be waited for may still use the memory: then it is left to the process.
    left_ = r == CUDA_SUCCESS;
    slots_[kWarmUpSlot].state = gate::kSlotCancelled;
    PassLaunch pass;
    pass.slot = kWarmUpSlot;
    for (pass.kernel = 0; pass.kernel <= gate::kMixed && r == CUDA_SUCCESS; pass.kernel++) {
      std::uint32_t number = 0;
      call = "cuLaunchKernel";
      r = launch(pass, stream, &number);
      pass.first_arrival++;
    }
    const CUresult synchronised = cuda_.stream_synchronize(stream);
    if (synchronised == CUDA_SUCCESS) left_ = false;
    if (r == CUDA_SUCCESS) {
      call = "cuStreamSynchronize";
      r = synchronised;
    }
    cuda_.stream_destroy(stream);
  }
  if (r != CUDA_SUCCESS)
    *why = std::string("the measuring kernels can't run (") + call + ": " + cuda_.error_name(r).text + ")";
  return r == CUDA_SUCCESS;
}

CUresult GateChannel::launch(const PassLaunch& pass, CUstream stream, std::uint32_t* number) const {
  const ScopedContext context(cuda_, context_);
  gate::GateParams params = params_;
  params.slot = reinterpret_cast<gate::GateSlot*>(device_base_ + sizeof(gate::GateSlot) * pass.slot);
  params.slot_runs = reinterpret_cast<gate::SlotRuns*>(device_memory_ + sizeof(gate::ChannelState) +
                                                       sizeof(gate::SlotRuns) * pass.slot);
  params.workspace = reinterpret_cast<gate::WorkspaceHead*>(workspaces_[pass.workspace]);
  params.first_arrival = pass.first_arrival;
  params.slot_index = pass.slot;
  if (pass.replayed) params.flags |= gate::kReplayed;
  params.launch = *number = launches_.fetch_add(1, std::memory_order_relaxed) + 1;
  params.pass = pass.pass;
  void* arguments[] = {&params};
  return cuda_.launch_kernel(kernels_[pass.kernel], pass.ctas, 1, 1, gate::kThreads, 1, 1, 0, stream, arguments,
                             nullptr);
}

bool GateChannel::capture_status(CUstream stream, bool* captured) const {
  const ScopedContext context(cuda_, context_);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (cuda_.stream_is_capturing(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    return false;
  *captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return true;
}

std::uint32_t GateChannel::workspace_of(CUstream stream) {
  std::uint32_t chosen = 0;
  for (std::uint32_t i = 0; i < kWorkspaces; i++) {
    if (streams_[i].last != 0 && streams_[i].stream == stream) {
      chosen = i;
      break;
    }
    if (streams_[i].last < streams_[chosen].last) chosen = i;
  }
  streams_[chosen] = {stream, ++stream_uses_};
  return chosen;
}

bool GateChannel::retain_by_graph(CUstream stream, void* user, void (*destroy)(void*)) const {
  if (cuda_.capture_info == nullptr || cuda_.user_object_create == nullptr || cuda_.graph_retain_user_object == nullptr)
    return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  // With edges that carry data a driver refuses the call unless it may return them.
  if (cuda_.capture_info(stream, &status, &id, &graph, &dependencies, &edges, &count) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE || graph == nullptr)
    return false;
  CUuserObject object = nullptr;
  if (cuda_.user_object_create(&object, user, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS)
    return false;
  return cuda_.graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS;
}

GateChannel::~GateChannel() {
  const bool empty = module_ == nullptr && host_ == nullptr && device_memory_ == 0;
  if (left_ || empty) return;
  const RelaxedCapture relaxed(cuda_);
  const ScopedContext context(cuda_, context_);
  if (device_memory_ != 0) cuda_.mem_free(device_memory_);
  // Memory that the driver doesn't let go of must not become somebody else's.
  if (host_ != nullptr && (!registered_ || cuda_.mem_host_unregister(host_) == CUDA_SUCCESS))
    munmap(host_, host_bytes_);
  if (module_ != nullptr) cuda_.module_unload(module_);
}

}  // namespace gradprobe
