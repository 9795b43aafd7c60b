// The little of the CUDA driver API that the demo needs, with owners for its objects. Every failure is a CudaError
// that names the call.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace gradprobe::demo {

class CudaError : public std::runtime_error {
 public:
  CudaError(CUresult result, const std::string& what);
};

void check(CUresult result, const char* what);

// An owner of a handle that is released by one call. kRelease's result is ignored: nothing can be done about it.
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

// Waits for the stream's work, so that whatever it uses can be released next.
CUresult finish_stream(CUstream stream);

using Stream = Owned<CUstream, finish_stream>;
using Event = Owned<CUevent, cuEventDestroy>;
using Module = Owned<CUmodule, cuModuleUnload>;
using DeviceMemory = Owned<CUdeviceptr, cuMemFree>;
using PinnedMemory = Owned<void*, cuMemFreeHost>;

Stream make_stream();
Event make_event();
DeviceMemory device_memory(std::size_t bytes);  // zeroed
PinnedMemory pinned_memory(std::size_t bytes);

// The primary context of a device, current on the constructing thread.
class Context {
 public:
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

 private:
  CUdevice device_ = 0;
};

// Devices that the driver shows; initialises the driver.
int device_count();

}  // namespace gradprobe::demo
