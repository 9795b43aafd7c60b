// The one way to define an exported entry point, so that STANDIN_CUDA_FAIL reaches every one of them:
//   CU_ENTRY(cuMemFree_v2, (p), CUdeviceptr p) { ...body... }
// exports cuMemFree_v2 and puts the body into namespace standin::cuda::api. Entry points call each other as
// api::name, which neither counts nor fails a call that the program didn't make. Names are the exported symbols, with
// their version.
#pragma once
#include "core.hpp"

// cuda.h turns these names into their newest versions; here they are the oldest.
#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuGraphAddDependencies
#undef cuGraphNodeGetDependencies
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies

#define TRY(x)                         \
  do {                                 \
    CUresult r_ = (x);                 \
    if (r_ != CUDA_SUCCESS) return r_; \
  } while (0)

namespace standin::cuda::api {
inline CUresult need_init() {
  return inited() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
inline CUresult need_context() {
  TRY(need_init());
  return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
inline void* ptr(CUdeviceptr p) {
  return reinterpret_cast<void*>(p);
}
inline Context* as_context(CUcontext c) {
  return reinterpret_cast<Context*>(c);
}
inline CUcontext handle(Context* c) {
  return reinterpret_cast<CUcontext>(c);
}
inline Graph* as_graph(CUgraph x) {
  return reinterpret_cast<Graph*>(x);
}
inline Node* as_node(CUgraphNode n) {
  return reinterpret_cast<Node*>(n);
}
inline CUgraphNode handle(Node* n) {
  return reinterpret_cast<CUgraphNode>(n);
}
std::vector<Node*> node_list(const CUgraphNode* n, size_t count);

// Work of the copy and set calls, shared by streams and graph nodes.
WorkP copy2d_work(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height);
WorkP fill_work(void* dst, size_t pitch, unsigned value, unsigned element_bytes, size_t width, size_t height);

// The name of the kernel among a call's arguments, or null.
template <class T>
const char* kernel_name(const T&) {
  return nullptr;
}
inline const char* kernel_name(CUfunction f) {
  const Kernel* k = find_kernel(f);
  return k ? k->name.c_str() : nullptr;
}
template <class... A>
CUresult enter(const char* entry, const void* caller, const A&... args) {
  if (!failures_wanted()) return CUDA_SUCCESS;
  const char* kernel = nullptr;
  ((kernel = kernel ? kernel : kernel_name(args)), ...);
  return injected_failure(entry, kernel, caller);
}
}  // namespace standin::cuda::api

// Two steps, so that a name that cuda.h maps to another one counts under the exported one.
#define CU_ENTRY_TEXT(NAME) #NAME
#define CU_ENTRY_NAME(NAME) CU_ENTRY_TEXT(NAME)
#define CU_ENTRY_ARGS(...) __VA_OPT__(, ) __VA_ARGS__
#define CU_ENTRY(NAME, ARGS, ...)                                                                                 \
  namespace standin::cuda::api {                                                                                  \
  CUresult NAME(__VA_ARGS__);                                                                                     \
  }                                                                                                               \
  extern "C" CUresult CUDAAPI NAME(__VA_ARGS__) {                                                                 \
    CUresult r_ = standin::cuda::api::enter(CU_ENTRY_NAME(NAME), __builtin_return_address(0) CU_ENTRY_ARGS ARGS); \
    if (r_) return r_;                                                                                            \
    return standin::cuda::api::NAME ARGS;                                                                         \
  }                                                                                                               \
  CUresult standin::cuda::api::NAME(__VA_ARGS__)
