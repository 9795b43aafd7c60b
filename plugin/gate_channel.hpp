// The device side of one communicator: module, pinned memory, workspaces, launches. Knows nothing of NCCL.
// Layouts shared with the kernels: kernels/abi.hpp.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "config.hpp"
#include "cuda_driver.hpp"
#include "kernels/abi.hpp"

namespace gradprobe {

// How many of each a communicator has. Slots and entries of captured launches stay with their graphs, so they come from
// ranges of their own.
inline constexpr std::uint32_t kDirectSlots = 1024;
inline constexpr std::uint32_t kCapturedSlots = 512;
inline constexpr std::uint32_t kWarmUpSlot = kDirectSlots + kCapturedSlots;
inline constexpr std::uint32_t kSlots = kWarmUpSlot + 1;
inline constexpr std::uint32_t kDirectEntries = 8192;
inline constexpr std::uint32_t kCapturedEntries = 4096;
inline constexpr std::uint32_t kEntries = kDirectEntries + kCapturedEntries;
inline constexpr std::uint32_t kResults = 512;

// Streams that a communicator can use without sharing a workspace. NCCL puts the launches of one communicator in order
// across its streams, so even streams that share one rarely meet there; when they do, one of them is missed(workspace).
inline constexpr std::uint32_t kWorkspaces = 4;

// The kernel and the thread blocks of one pass.
class MeasurePlan {
 public:
  // One more bucket of `count` >= 1 elements.
  void add(gate::MeasuredType type, std::uint64_t count, std::uint32_t element_bytes) {
    types_ |= 1u << type;
    ctas_ = std::min(gate::kMaxCtas, ctas_ + gate::measure_ctas(count, element_bytes));
  }
  // Index in gate::kMeasureKernels.
  std::uint32_t kernel() const {
    const bool one = types_ != 0 && (types_ & (types_ - 1)) == 0;  // the library's counts bits by a call
    return one ? static_cast<std::uint32_t>(std::countr_zero(types_)) : gate::kMixed;
  }
  // 1 ... `limit`
  std::uint32_t ctas(std::uint32_t limit) const { return std::clamp(ctas_, 1u, limit); }

 private:
  std::uint32_t types_ = 0;
  std::uint32_t ctas_ = 0;
};

// One launch.
struct PassLaunch {
  gate::Pass pass = gate::kInputPass;
  std::uint32_t slot = 0;
  std::uint32_t kernel = gate::kMixed;
  std::uint32_t ctas = 1;
  std::uint32_t workspace = 0;
  std::uint64_t first_arrival = 0;
  bool replayed = false;  // by a graph: GateControl says which runs are measured
};

class GateChannel {
 public:
  // Needs a current context. Loads the module, allocates and registers memory, and runs every kernel once, so that the
  // gated path never loads lazily. On failure returns null and says why.
  static std::unique_ptr<GateChannel> create(const CudaDriver& cuda, const Config& config, std::string* why);

  // Device and pinned memory stay for ever, since a kernel or a graph may use them: the destructor frees nothing.
  void leave_memory() { left_ = true; }

  // Keeps a channel that nothing uses any more for the next communicator of its context, for the life of the process.
  // Freeing would wait for the whole device, and what runs there may wait for the thread that ends a communicator.
  static void retire(std::unique_ptr<GateChannel> channel) noexcept;

  // Launches one pass on `stream`. Safe from any thread; may block as launches do. `*number` gets what the launch's
  // results say in gate::Result::launch.
  CUresult launch(const PassLaunch& pass, CUstream stream, std::uint32_t* number) const;

  // Whether what is launched on `stream` becomes part of a graph. False when that can't be told: then a launch could
  // end somebody's capture.
  bool capture_status(CUstream stream, bool* captured) const;

  // The workspace of a stream: its own while there are enough, then that of the stream unused for longest. Not
  // thread-safe.
  std::uint32_t workspace_of(CUstream stream);

  // Keeps `destroy(user)` from being called while a graph that captures `stream` or an executable of it lives.
  // False where the driver can't.
  bool retain_by_graph(CUstream stream, void* user, void (*destroy)(void*)) const;

  gate::GateSlot& slot(std::uint32_t i) const { return slots_[i]; }
  gate::GateEntry& entry(std::uint32_t i) const { return entries_[i]; }
  gate::GateControl& control() const { return *control_; }
  gate::Result& result(std::uint64_t i) const {
    return *reinterpret_cast<gate::Result*>(results_ + (i % kResults) * gate::result_bytes(params_.sketch_floats));
  }
  static const float* sketch(const gate::Result& r) { return reinterpret_cast<const float*>(&r + 1); }

  const unsigned char* device_uuid() const { return uuid_; }
  const std::string& device_name() const { return device_name_; }
  CudaDriver::ErrorName error_name(CUresult r) const { return cuda_.error_name(r); }

  // Frees device and pinned memory: nothing that was launched may be able to use them.
  ~GateChannel();
  GateChannel(const GateChannel&) = delete;
  GateChannel& operator=(const GateChannel&) = delete;

 private:
  explicit GateChannel(const CudaDriver& cuda) : cuda_(cuda) {}
  bool set_up(const Config& config, std::string* why);
  bool warm_up(std::string* why);
  static std::unique_ptr<GateChannel> take_retired(const CudaDriver& cuda, const Config& config);
  bool renew(const Config& config);
  void set_common_params(const Config& config);

  const CudaDriver& cuda_;
  bool left_ = false;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction kernels_[gate::kMeasuredTypes + 1] = {};
  unsigned char* host_ = nullptr;  // one mapping, registered with CUDA: it stays ours when CUDA is torn down
  std::size_t host_bytes_ = 0;
  bool registered_ = false;
  CUdeviceptr device_base_ = 0;  // of host_
  std::size_t entries_at_ = 0, results_at_ = 0, control_at_ = 0;
  gate::GateSlot* slots_ = nullptr;
  gate::GateEntry* entries_ = nullptr;
  gate::GateControl* control_ = nullptr;
  unsigned char* results_ = nullptr;
  CUdeviceptr device_memory_ = 0;  // ChannelState, SlotRuns[kSlots], workspaces
  CUdeviceptr workspaces_[kWorkspaces] = {};
  std::size_t device_bytes_ = 0;
  struct StreamUse {
    CUstream stream = nullptr;
    std::uint64_t last = 0;  // 0: never used
  };
  StreamUse streams_[kWorkspaces];
  std::uint64_t stream_uses_ = 0;
  mutable std::atomic<std::uint32_t> launches_{0};
  gate::GateParams params_{};  // what all launches have in common
  unsigned char uuid_[16] = {};
  std::string device_name_;
};

}  // namespace gradprobe
