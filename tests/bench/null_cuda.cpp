// A libcuda.so.1 for counting what the plugin does on the host: every call succeeds at once, and a launch of a
// measuring kernel only tells its slot that it ran, an input pass at the next launch: its buffers come after it. So the
// collector gives slots back as always (its records say result_lost), and what a launch costs in a real driver is left
// out.
#include <cuda.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "kernels/abi.hpp"

namespace {

std::atomic<unsigned long> g_launches{0};
std::atomic<gradprobe::gate::GateSlot*> g_running{nullptr};  // of the last input pass
char g_object;  // stands for the context, the module, functions and streams

template <typename Object>
CUresult give(Object* out) {
  *out = reinterpret_cast<Object>(&g_object);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

unsigned long null_cuda_launches() {
  return g_launches;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return give(context);
}
CUresult cuCtxPushCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  return give(context);
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int, CUdevice) {
  std::strcpy(name, "none");
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  return give(module);
}
CUresult cuModuleUnload(CUmodule) {
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  return give(function);
}
CUresult cuMemHostRegister(void*, std::size_t, unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void*) {
  return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* memory, std::size_t bytes) {
  *memory = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
  return *memory != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr memory) {
  std::free(reinterpret_cast<void*>(memory));
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, std::size_t, CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return give(stream);
}
CUresult cuStreamDestroy(CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) {
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "an error";
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void** arguments, void**) {
  g_launches.fetch_add(1, std::memory_order_relaxed);
  const auto& params = *static_cast<const gradprobe::gate::GateParams*>(arguments[0]);
  if (params.pass == gradprobe::gate::kResultPass)
    std::atomic_ref<std::uint32_t>(params.slot->result_runs).fetch_add(1, std::memory_order_release);
  else if (auto* ended = g_running.exchange(params.slot); ended != nullptr)
    std::atomic_ref<std::uint32_t>(ended->runs).fetch_add(1, std::memory_order_release);
  return CUDA_SUCCESS;
}

}  // extern "C"
