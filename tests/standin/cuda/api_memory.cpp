// Entry points: memory, its handles between processes, pointer attributes.
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
size_t pointer_attribute_bytes(CUpointer_attribute a) {
  switch (a) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    default:
      return 8;
  }
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuMemGetInfo_v2, (f, t), size_t* f, size_t* t) {
  TRY(need_context());
  mem_info(current()->dev, f, t);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemAlloc_v2, (p, n), CUdeviceptr* p, size_t n) {
  TRY(need_context());
  TRY(unsafe_call());
  void* a = nullptr;
  TRY(mem_alloc(current()->dev, n, &a));
  *p = reinterpret_cast<CUdeviceptr>(a);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemFree_v2, (p), CUdeviceptr p) {
  TRY(need_init());
  if (!p) return CUDA_SUCCESS;
  TRY(unsafe_call());
  Alloc a;
  if (!find_alloc(ptr(p), &a) || a.base != p) return CUDA_ERROR_INVALID_VALUE;
  if (a.dev) sync_device(a.dev);
  return mem_free(ptr(p));
}
CU_ENTRY(cuMemGetAddressRange_v2, (base, n, p), CUdeviceptr* base, size_t* n, CUdeviceptr p) {
  TRY(need_init());
  Alloc a;
  if (!find_alloc(ptr(p), &a) || a.kind == MemKind::Registered) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = a.base;
  if (n) *n = a.size;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemAllocHost_v2, (p, n), void** p, size_t n) {
  TRY(need_context());
  TRY(unsafe_call());
  return host_alloc(n, 0, p);
}
CU_ENTRY(cuMemHostAlloc, (p, n, flags), void** p, size_t n, unsigned int flags) {
  TRY(need_context());
  TRY(unsafe_call());
  return host_alloc(n, flags, p);
}
CU_ENTRY(cuMemFreeHost, (p), void* p) {
  TRY(need_init());
  TRY(unsafe_call());
  Alloc a;
  if (p && find_alloc(p, &a) && a.dev) sync_device(a.dev);
  return host_free(p);
}
CU_ENTRY(cuMemHostGetDevicePointer_v2, (d, p, flags), CUdeviceptr* d, void* p, unsigned int flags) {
  TRY(need_init());
  Alloc a;
  if (!find_alloc(p, &a)) return CUDA_ERROR_INVALID_VALUE;
  *d = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemHostGetFlags, (f, p), unsigned int* f, void* p) {
  Alloc a;
  if (!find_alloc(p, &a) || (a.kind != MemKind::Host && a.kind != MemKind::Registered)) return CUDA_ERROR_INVALID_VALUE;
  *f = a.flags;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemHostRegister_v2, (p, n, flags), void* p, size_t n, unsigned int flags) {
  TRY(need_context());
  return host_register(p, n, flags);
}
CU_ENTRY(cuMemHostUnregister, (p), void* p) {
  TRY(need_init());
  return host_unregister(p);
}
CU_ENTRY(cuIpcGetMemHandle, (h, p), CUipcMemHandle* h, CUdeviceptr p) {
  TRY(need_context());
  return ipc_get(ptr(p), h);
}
CU_ENTRY(cuIpcOpenMemHandle_v2, (p, h, flags), CUdeviceptr* p, CUipcMemHandle h, unsigned int flags) {
  TRY(need_context());
  void* a = nullptr;
  TRY(ipc_open(h, &a));
  *p = reinterpret_cast<CUdeviceptr>(a);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuIpcCloseMemHandle, (p), CUdeviceptr p) {
  TRY(need_context());
  return ipc_close(ptr(p));
}

CU_ENTRY(cuPointerGetAttribute, (v, a, p), void* v, CUpointer_attribute a, CUdeviceptr p) {
  TRY(need_init());
  Alloc x;
  if (!find_alloc(ptr(p), &x)) return CUDA_ERROR_INVALID_VALUE;
  bool host = x.kind == MemKind::Host || x.kind == MemKind::Registered;
  auto give = [v](auto value) {
    memcpy(v, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(handle(x.ctx));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(p);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return host ? give(p) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(x.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(x.dev ? x.dev->ordinal : -1);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(unsigned{x.kind == MemKind::Device});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(x.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(x.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(1u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give(0u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(uint64_t{0});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
CU_ENTRY(cuPointerGetAttributes, (n, a, v, p), unsigned int n, CUpointer_attribute* a, void** v, CUdeviceptr p) {
  TRY(need_init());
  Alloc x;
  bool known = find_alloc(ptr(p), &x);
  for (unsigned i = 0; i < n; i++) {
    if (known && api::cuPointerGetAttribute(v[i], a[i], p) == CUDA_SUCCESS) continue;
    memset(v[i], 0, pointer_attribute_bytes(a[i]));
    if (a[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(v[i]) = -2;
  }
  return CUDA_SUCCESS;
}
CU_ENTRY(cuPointerSetAttribute, (value, a, p), const void* value, CUpointer_attribute a, CUdeviceptr p) {
  return find_alloc(ptr(p), nullptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
