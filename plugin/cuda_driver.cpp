#include "cuda_driver.hpp"

#include <dlfcn.h>

#include <cstdio>

namespace gradprobe {
namespace {

// Fills one member from the symbol `name`; the symbol's version suffix is part of the ABI that the member's type
// states.
template <typename Function>
bool find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

CUresult (*g_capture_info_v2)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                              size_t*) = nullptr;

CUresult capture_info_by_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                            const CUgraphNode** dependencies, const CUgraphEdgeData**, size_t* count) {
  return g_capture_info_v2(stream, status, id, graph, dependencies, count);
}

bool fill(void* library, CudaDriver* d, std::string* why) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto* member) {
    if (!find(library, name, member) && missing == nullptr) missing = name;
  };
  need("cuCtxGetCurrent", &d->ctx_get_current);
  need("cuCtxPushCurrent_v2", &d->ctx_push_current);
  need("cuCtxPopCurrent_v2", &d->ctx_pop_current);
  need("cuCtxGetDevice", &d->ctx_get_device);
  need("cuDeviceGetName", &d->device_get_name);
  need("cuModuleLoadData", &d->module_load_data);
  need("cuModuleUnload", &d->module_unload);
  need("cuModuleGetFunction", &d->module_get_function);
  need("cuMemHostRegister_v2", &d->mem_host_register);
  need("cuMemHostUnregister", &d->mem_host_unregister);
  need("cuMemHostGetDevicePointer_v2", &d->mem_host_get_device_pointer);
  need("cuMemAlloc_v2", &d->mem_alloc);
  need("cuMemFree_v2", &d->mem_free);
  need("cuMemsetD8Async", &d->memset_d8_async);
  need("cuStreamCreate", &d->stream_create);
  need("cuStreamDestroy_v2", &d->stream_destroy);
  need("cuStreamSynchronize", &d->stream_synchronize);
  need("cuStreamIsCapturing", &d->stream_is_capturing);
  need("cuLaunchKernel", &d->launch_kernel);
  need("cuThreadExchangeStreamCaptureMode", &d->exchange_capture_mode);
  need("cuGetErrorName", &d->get_error_name);
  if (missing != nullptr) {
    *why = std::string("libcuda.so.1 has no ") + missing + "; update the NVIDIA driver";
    return false;
  }
  find(library, "cuDeviceGet", &d->device_get);
  find(library, "cuDevicePrimaryCtxGetState", &d->primary_context_state);
  find(library, "cuDevicePrimaryCtxRetain", &d->primary_context_retain);
  if (!find(library, "cuDevicePrimaryCtxRelease_v2", &d->primary_context_release))
    find(library, "cuDevicePrimaryCtxRelease", &d->primary_context_release);
  if (!find(library, "cuDeviceGetUuid_v2", &d->device_get_uuid)) find(library, "cuDeviceGetUuid", &d->device_get_uuid);
  if (!find(library, "cuStreamGetCaptureInfo_v3", &d->capture_info) &&
      find(library, "cuStreamGetCaptureInfo_v2", &g_capture_info_v2))
    d->capture_info = capture_info_by_v2;
  find(library, "cuUserObjectCreate", &d->user_object_create);
  find(library, "cuGraphRetainUserObject", &d->graph_retain_user_object);
  return true;
}

struct Loaded {
  CudaDriver driver{};
  bool ok = false;
  std::string why;
  Loaded() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* text = dlerror();
      why = std::string("can't load libcuda.so.1 (") + (text != nullptr ? text : "unknown reason") +
            "); is the NVIDIA driver installed and visible in this container?";
      return;
    }
    ok = fill(library, &driver, &why);
  }
};

}  // namespace

const CudaDriver* CudaDriver::load(std::string* why) {
  // Never destroyed: other threads may be inside a callback while the process exits.
  static const Loaded* loaded = new Loaded;
  if (!loaded->ok) *why = loaded->why;
  return loaded->ok ? &loaded->driver : nullptr;
}

CudaDriver::ErrorName CudaDriver::error_name(CUresult result) const {
  ErrorName name{};
  const char* text = nullptr;
  if (get_error_name(result, &text) == CUDA_SUCCESS && text != nullptr)
    std::snprintf(name.text, sizeof name.text, "%s", text);
  else
    std::snprintf(name.text, sizeof name.text, "CUDA error %d", static_cast<int>(result));
  return name;
}

}  // namespace gradprobe
