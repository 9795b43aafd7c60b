#include "communicator.hpp"

#include <fmt/core.h>

#include <chrono>
#include <thread>

namespace gradprobe::demo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::microseconds(500);
constexpr auto kPeerNews = std::chrono::seconds(2);

void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// The driver's and the runtime's stream are the same object.
cudaStream_t runtime_stream(CUstream stream) {
  return reinterpret_cast<cudaStream_t>(stream);
}

}  // namespace

NcclError::NcclError(ncclResult_t result, const std::string& what, ncclComm_t comm)
    : std::runtime_error(fmt::format("{}: {}{}{}", what, ncclGetErrorString(result),
                                     *ncclGetLastError(comm) != '\0' ? ": " : "", ncclGetLastError(comm))) {}

ncclDataType_t nccl_type(BucketType type) {
  switch (type) {
    case BucketType::f32:
      return ncclFloat32;
    case BucketType::bf16:
      return ncclBfloat16;
    case BucketType::f16:
      return ncclFloat16;
  }
  return ncclFloat32;
}

Communicator::Communicator(SharedState& shared, int ranks, int rank, int timeout_s)
    : shared_(shared), timeout_s_(timeout_s) {
  if (rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&shared.id);
    if (result != ncclSuccess) throw NcclError(result, "ncclGetUniqueId", nullptr);
    shared.id_ready.store(true, std::memory_order_release);
  }
  while (!shared.id_ready.load(std::memory_order_acquire)) {
    if (shared.stop) throw PeerLost();
    std::this_thread::sleep_for(kPoll);
  }
  const ncclResult_t result = ncclCommInitRank(&comm_, ranks, shared.id, rank);
  if (result != ncclSuccess) throw NcclError(result, "ncclCommInitRank", nullptr);
}

Communicator::~Communicator() {
  if (comm_ != nullptr) ncclCommAbort(comm_);
}

void Communicator::broadcast(CUdeviceptr data, std::size_t count, CUstream stream) {
  const ncclResult_t result =
      ncclBroadcast(pointer(data), pointer(data), count, ncclFloat32, 0, comm_, runtime_stream(stream));
  if (result != ncclSuccess) fail(result, "ncclBroadcast");
  ++calls_;
}

void Communicator::all_reduce(CUdeviceptr data, std::size_t count, BucketType type, ncclRedOp_t op, CUstream stream) {
  const ncclResult_t result =
      ncclAllReduce(pointer(data), pointer(data), count, nccl_type(type), op, comm_, runtime_stream(stream));
  if (result != ncclSuccess) fail(result, "ncclAllReduce");
  ++calls_;
}

void Communicator::wait(const Event& event, int step) const {
  const auto deadline = Clock::now() + std::chrono::seconds(timeout_s_);
  for (;;) {
    const CUresult state = cuEventQuery(event.get());
    if (state == CUDA_SUCCESS) return;
    if (state != CUDA_ERROR_NOT_READY) check(state, "cuEventQuery");
    if (shared_.stop) throw PeerLost();
    ncclResult_t error = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &error);
    if (result != ncclSuccess) fail(result, "ncclCommGetAsyncError");
    if (error != ncclSuccess && error != ncclInProgress) fail(error, "NCCL");
    if (Clock::now() > deadline) {
      throw std::runtime_error(fmt::format("no progress for {} s in step {} (--timeout)", timeout_s_, step));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

// NCCL may notice a lost peer before the parent does; the parent knows which one it was.
void Communicator::fail(ncclResult_t result, const char* what) const {
  const auto deadline = Clock::now() + kPeerNews;
  while (!shared_.stop && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  if (shared_.stop) throw PeerLost();
  throw NcclError(result, what, comm_);
}

void Communicator::finish() {
  const ncclResult_t result = ncclCommFinalize(comm_);
  if (result != ncclSuccess) throw NcclError(result, "ncclCommFinalize", comm_);
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  const ncclResult_t destroyed = ncclCommDestroy(comm);
  if (destroyed != ncclSuccess) throw NcclError(destroyed, "ncclCommDestroy", nullptr);
}

}  // namespace gradprobe::demo
