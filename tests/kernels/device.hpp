// The CUDA driver for the kernel tests: one device, its context, the embedded kernels, memory that frees itself.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace gradprobe::test {

inline void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  throw std::runtime_error(std::string(what) + ": " + (name ? name : "unknown error"));
}

// The device's primary context and the kernels of gradprobe_kernels, for the life of the process.
class Device {
 public:
  static Device& get();

  CUfunction kernel(const char* name) const;
  int compute_capability() const { return capability_; }
  void make_current() const { check(cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

 private:
  Device();
  CUdevice device_{};
  CUcontext context_{};
  CUmodule module_{};
  int capability_ = 0;
};

class Stream {
 public:
  Stream() {
    Device::get();
    check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Stream() { cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  void synchronize() const { check(cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  CUstream stream_{};
};

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) {
    Device::get();
    check(cuMemAlloc(&address_, bytes), "cuMemAlloc");
  }
  explicit DeviceMemory(std::span<const std::byte> content) : DeviceMemory(content.size()) {
    check(cuMemcpyHtoD(address_, content.data(), content.size()), "cuMemcpyHtoD");
    // Streams that don't wait for the null stream are to see it.
    check(cuCtxSynchronize(), "cuCtxSynchronize");
  }
  ~DeviceMemory() {
    if (address_) cuMemFree(address_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : address_(other.address_) { other.address_ = 0; }
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_{};
};

// Zeroed pinned host memory, mapped into the device's address space at the same address.
template <typename T>
class PinnedArray {
  static_assert(std::is_trivial_v<T>);

 public:
  explicit PinnedArray(std::size_t count) : count_(count) {
    void* p = nullptr;
    check(cuMemHostAlloc(&p, count * sizeof(T), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          "cuMemHostAlloc");
    data_ = static_cast<T*>(p);
    std::fill_n(reinterpret_cast<unsigned char*>(data_), count * sizeof(T), static_cast<unsigned char>(0));
    check(cuMemHostGetDevicePointer(&device_, p, 0), "cuMemHostGetDevicePointer");
  }
  ~PinnedArray() { cuMemFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T& operator[](std::size_t i) { return data_[i]; }
  T* data() { return data_; }
  std::size_t size() const { return count_; }
  T* on_device() const { return reinterpret_cast<T*>(device_); }

 private:
  T* data_ = nullptr;
  std::size_t count_;
  CUdeviceptr device_{};
};

}  // namespace gradprobe::test
