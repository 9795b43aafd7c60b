#include "cuda_driver.hpp"

#include <fmt/core.h>

namespace gradprobe::demo {
namespace {

std::string describe(CUresult result) {
  const char* text = nullptr;
  const char* name = nullptr;
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "?";
  return fmt::format("{} ({}, {})", text, name, static_cast<int>(result));
}

}  // namespace

CudaError::CudaError(CUresult result, const std::string& what)
    : std::runtime_error(fmt::format("{}: {}", what, describe(result))) {}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw CudaError(result, what);
}

CUresult finish_stream(CUstream stream) {
  cuStreamSynchronize(stream);
  return cuStreamDestroy(stream);
}

Stream make_stream() {
  CUstream stream = nullptr;
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return Stream(stream);
}

Event make_event() {
  CUevent event = nullptr;
  check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return Event(event);
}

DeviceMemory device_memory(std::size_t bytes) {
  CUdeviceptr address = 0;
  check(cuMemAlloc(&address, bytes), "cuMemAlloc");
  DeviceMemory memory(address);
  check(cuMemsetD8(address, 0, bytes), "cuMemsetD8");
  // The demo's streams are non-blocking: they don't wait for the default stream's memset by themselves.
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  return memory;
}

PinnedMemory pinned_memory(std::size_t bytes) {
  void* address = nullptr;
  check(cuMemAllocHost(&address, bytes), "cuMemAllocHost");
  return PinnedMemory(address);
}

Context::Context(int device) {
  check(cuDeviceGet(&device_, device), "cuDeviceGet");
  CUcontext context = nullptr;
  check(cuDevicePrimaryCtxRetain(&context, device_), "cuDevicePrimaryCtxRetain");
  const CUresult result = cuCtxSetCurrent(context);
  if (result != CUDA_SUCCESS) {
    cuDevicePrimaryCtxRelease(device_);
    throw CudaError(result, "cuCtxSetCurrent");
  }
}

Context::~Context() {
  cuDevicePrimaryCtxRelease(device_);
}

int device_count() {
  check(cuInit(0), "cuInit");
  int count = 0;
  check(cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

}  // namespace gradprobe::demo
