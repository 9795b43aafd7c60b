// Memory: allocation, pools, handles between processes, pointer attributes.
#include <cstring>

#include "runtime.hpp"

using namespace standin::cudart;

EXPORT cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = nullptr;
  return with_context([&] { return bytes ? cuMemAlloc(reinterpret_cast<CUdeviceptr*>(p), bytes) : CUDA_SUCCESS; });
}
EXPORT cudaError_t cudaFree(void* p) {
  return with_context([&] { return cuMemFree(address(p)); });
}
EXPORT cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return with_context([&] { return cuMemAllocHost(p, bytes); });
}
EXPORT cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned flags) {
  return with_context([&] { return cuMemHostAlloc(p, bytes, flags); });
}
EXPORT cudaError_t cudaFreeHost(void* p) {
  return with_context([&] { return cuMemFreeHost(p); });
}
EXPORT cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned flags) {
  return with_context([&] { return cuMemHostRegister(p, bytes, flags); });
}
EXPORT cudaError_t cudaHostUnregister(void* p) {
  return with_context([&] { return cuMemHostUnregister(p); });
}
EXPORT cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return with_context([&] { return cuMemHostGetDevicePointer(reinterpret_cast<CUdeviceptr*>(device), host, flags); });
}
EXPORT cudaError_t cudaHostGetFlags(unsigned* flags, void* p) {
  return with_context([&] { return cuMemHostGetFlags(flags, p); });
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return with_context([&] { return cuMemGetInfo(free_bytes, total); });
}

// ---- stream-ordered memory ----
EXPORT cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t s) {
  return with_context([&] { return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(p), bytes, s); });
}
EXPORT cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  return with_context([&] { return cuMemFreeAsync(address(p), s); });
}
EXPORT cudaError_t cudaMallocFromPoolAsync(void** p, size_t bytes, cudaMemPool_t pool, cudaStream_t s) {
  return with_context([&] { return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(p), bytes, pool, s); });
}
EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
  return with_driver([&] { return cuMemPoolCreate(pool, reinterpret_cast<const CUmemPoolProps*>(properties)); });
}
EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return with_driver([&] { return cuMemPoolDestroy(pool); });
}
EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value) {
  return with_driver([&] { return cuMemPoolSetAttribute(pool, as<CUmemPool_attribute>(what), value); });
}
EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value) {
  return with_driver([&] { return cuMemPoolGetAttribute(pool, as<CUmemPool_attribute>(what), value); });
}
EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  return with_driver([&] { return cuMemPoolTrimTo(pool, keep); });
}
EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count) {
  return with_driver([&] { return cuMemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(access), count); });
}
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&] { return cuDeviceGetDefaultMemPool(pool, device); });
}
EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&] { return cuDeviceGetMemPool(pool, device); });
}
EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return with_driver([&] { return cuDeviceSetMemPool(device, pool); });
}

// ---- handles between processes ----
static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* h, void* p) {
  return with_context([&] { return cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(h), address(p)); });
}
EXPORT cudaError_t cudaIpcOpenMemHandle(void** p, cudaIpcMemHandle_t h, unsigned flags) {
  CUipcMemHandle handle;
  memcpy(&handle, &h, sizeof handle);
  return with_context([&] { return cuIpcOpenMemHandle(reinterpret_cast<CUdeviceptr*>(p), handle, flags); });
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void* p) {
  return with_context([&] { return cuIpcCloseMemHandle(address(p)); });
}

// Unlike the driver, the runtime accepts any address, and reports an unknown one as unregistered.
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  if (CUresult r = need_context()) return from(r);
  unsigned type = 0;
  if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(p))) {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
  }
  cuPointerGetAttribute(&a->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(p));
  a->device = a->device < 0 ? 0 : a->device;
  a->devicePointer = const_cast<void*>(p);
  a->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  if (a->type == cudaMemoryTypeHost) a->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}
