// The little of CUDA and NCCL that the driver needs: errors as exceptions that name the call, owners of handles.
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace gradprobe::real {

inline void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  throw std::runtime_error(std::string(call) + ": " + (text != nullptr ? text : "unknown CUDA error"));
}

// ncclInProgress is no error: a non-blocking communicator is asked again later.
inline void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(result) + " (" + ncclGetLastError(nullptr) +
                           ")");
}

#define REAL_CHECK(call) ::gradprobe::real::check(call, #call)

template <class Handle, CUresult (*kRelease)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != Handle{}) kRelease(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_{};
};

using Stream = Owned<CUstream, cuStreamDestroy>;
using Event = Owned<CUevent, cuEventDestroy>;
using Graph = Owned<CUgraph, cuGraphDestroy>;
using GraphExec = Owned<CUgraphExec, cuGraphExecDestroy>;

inline Stream make_stream() {
  CUstream stream = nullptr;
  REAL_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return Stream(stream);
}

inline Event make_event() {
  CUevent event = nullptr;
  REAL_CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return Event(event);
}

inline void* pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace gradprobe::real
