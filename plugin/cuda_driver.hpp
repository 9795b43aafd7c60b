// The CUDA driver API by dlopen: the plugin must load, and NCCL go on, where there is no libcuda.so.1.
#pragma once

#include <cuda.h>

#include <string>

namespace gradprobe {

// One table for the process; its functions are thread-safe as CUDA's are.
struct CudaDriver {
  decltype(&::cuCtxGetCurrent) ctx_get_current;
  CUresult (*ctx_push_current)(CUcontext);
  CUresult (*ctx_pop_current)(CUcontext*);
  decltype(&::cuCtxGetDevice) ctx_get_device;
  decltype(&::cuDeviceGetName) device_get_name;
  CUresult (*device_get_uuid)(CUuuid*, CUdevice);
  decltype(&::cuModuleLoadData) module_load_data;
  decltype(&::cuModuleUnload) module_unload;
  decltype(&::cuModuleGetFunction) module_get_function;
  CUresult (*mem_host_register)(void*, size_t, unsigned);
  decltype(&::cuMemHostUnregister) mem_host_unregister;
  CUresult (*mem_host_get_device_pointer)(CUdeviceptr*, void*, unsigned);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  decltype(&::cuMemsetD8Async) memset_d8_async;
  decltype(&::cuStreamCreate) stream_create;
  CUresult (*stream_destroy)(CUstream);
  decltype(&::cuStreamSynchronize) stream_synchronize;
  decltype(&::cuStreamIsCapturing) stream_is_capturing;
  decltype(&::cuLaunchKernel) launch_kernel;
  decltype(&::cuThreadExchangeStreamCaptureMode) exchange_capture_mode;
  decltype(&::cuGetErrorName) get_error_name;
  // The preload library finds a communicator's context by these; the plugin does without.
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDevicePrimaryCtxGetState) primary_context_state;
  decltype(&::cuDevicePrimaryCtxRetain) primary_context_retain;
  CUresult (*primary_context_release)(CUdevice);
  // Null where the driver is too old: captured launches are then not gated.
  CUresult (*capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                           const CUgraphEdgeData**, size_t*);
  decltype(&::cuUserObjectCreate) user_object_create;
  decltype(&::cuGraphRetainUserObject) graph_retain_user_object;

  // Name of an error, "CUDA error N" when the driver doesn't know it. Allocates nothing: callbacks may ask.
  struct ErrorName {
    char text[64];
  };
  ErrorName error_name(CUresult result) const;

  // Loaded once for the process; null and `why` on failure, which is remembered.
  static const CudaDriver* load(std::string* why);
};

// Lets this thread allocate while another one captures a stream in global mode.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& cuda)
      : cuda_(cuda), exchanged_(cuda_.exchange_capture_mode(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCapture() {
    if (exchanged_) cuda_.exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& cuda_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool exchanged_;  // else `mode_` is not the thread's, and must not become it
};

// Makes `context` current for a scope; does nothing when it already is.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& cuda, CUcontext context) : cuda_(cuda) {
    CUcontext current = nullptr;
    cuda_.ctx_get_current(&current);
    pushed_ = current != context && cuda_.ctx_push_current(context) == CUDA_SUCCESS;
  }
  ~ScopedContext() {
    CUcontext ignored = nullptr;
    if (pushed_) cuda_.ctx_pop_current(&ignored);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const CudaDriver& cuda_;
  bool pushed_ = false;
};

}  // namespace gradprobe
