// Entry points: memory pools and stream-ordered allocation. Pools are names: memory comes from the device's one heap,
// is there at once, and a free waits its turn.
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
struct Pool {
  Device* dev;
};
Pool* as_pool(CUmemoryPool p) {
  return reinterpret_cast<Pool*>(p);
}
CUmemoryPool default_pool(Device* d) {
  static std::map<Device*, std::unique_ptr<Pool>>& pools = *new std::map<Device*, std::unique_ptr<Pool>>;
  std::lock_guard lock(big_lock());
  auto& p = pools[d];
  if (!p) p.reset(new Pool{d});
  return reinterpret_cast<CUmemoryPool>(p.get());
}
std::map<Device*, CUmemoryPool>& chosen_pools() {
  static auto& pools = *new std::map<Device*, CUmemoryPool>;
  return pools;
}
CUresult alloc_async(CUdeviceptr* p, size_t n, Device* d, CUstream s) {
  StreamP st;
  TRY(resolve(s, &st));
  if (st->capture) return CUDA_ERROR_NOT_SUPPORTED;
  void* a = nullptr;
  TRY(mem_alloc(d ? d : st->dev, n, &a));
  *p = reinterpret_cast<CUdeviceptr>(a);
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuMemAllocAsync, (p, n, s), CUdeviceptr* p, size_t n, CUstream s) {
  TRY(need_context());
  return alloc_async(p, n, nullptr, s);
}
CU_ENTRY(cuMemAllocFromPoolAsync, (p, n, pool, s), CUdeviceptr* p, size_t n, CUmemoryPool pool, CUstream s) {
  TRY(need_context());
  return pool ? alloc_async(p, n, as_pool(pool)->dev, s) : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuMemFreeAsync, (p, s), CUdeviceptr p, CUstream s) {
  TRY(need_context());
  Alloc a;
  if (!find_alloc(ptr(p), &a) || a.base != p) return CUDA_ERROR_INVALID_VALUE;
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Free;
  w->run = [p](Stream*) { mem_free(ptr(p)); };
  return submit(s, w);
}

CU_ENTRY(cuMemPoolCreate, (pool, properties), CUmemoryPool* pool, const CUmemPoolProps* properties) {
  TRY(need_init());
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  Device* d = device(properties->location.id);
  if (!d) return CUDA_ERROR_INVALID_DEVICE;
  *pool = reinterpret_cast<CUmemoryPool>(new Pool{d});
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemPoolDestroy, (pool), CUmemoryPool pool) {
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(big_lock());
  Device* d = as_pool(pool)->dev;
  if (pool == default_pool(d)) return CUDA_ERROR_INVALID_VALUE;
  auto chosen = chosen_pools().find(d);
  if (chosen != chosen_pools().end() && chosen->second == pool) chosen_pools().erase(chosen);
  delete as_pool(pool);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemPoolSetAttribute, (pool, what, value), CUmemoryPool pool, CUmemPool_attribute what, void* value) {
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuMemPoolGetAttribute, (pool, what, value), CUmemoryPool pool, CUmemPool_attribute what, void* value) {
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  bool narrow = what == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
                what == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
                what == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  memset(value, 0, narrow ? sizeof(int) : sizeof(cuuint64_t));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemPoolSetAccess, (pool, access, count), CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuMemPoolTrimTo, (pool, keep), CUmemoryPool pool, size_t keep) {
  return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuDeviceGetDefaultMemPool, (pool, d), CUmemoryPool* pool, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = default_pool(device(d));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetMemPool, (pool, d), CUmemoryPool* pool, CUdevice d) {
  TRY(api::cuDeviceGetDefaultMemPool(pool, d));
  std::lock_guard lock(big_lock());
  auto chosen = chosen_pools().find(device(d));
  if (chosen != chosen_pools().end()) *pool = chosen->second;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceSetMemPool, (d, pool), CUdevice d, CUmemoryPool pool) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  if (!pool || as_pool(pool)->dev != device(d)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(big_lock());
  chosen_pools()[device(d)] = pool;
  return CUDA_SUCCESS;
}
