// Entry points: start, devices, contexts.
#include <cstdio>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
// What every stand-in device has; attributes that are not listed are 0.
const std::map<CUdevice_attribute, int>& fixed_attributes() {
  static const auto& m = *new std::map<CUdevice_attribute, int>{
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 163 * 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 164 * 1024},
      {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
      {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1215000},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 40 << 20},
      {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
      {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
      {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
      {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
  };
  return m;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuInit, (flags), unsigned int flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  init();
  return device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CU_ENTRY(cuDriverGetVersion, (v), int* v) {
  if (!v) return CUDA_ERROR_INVALID_VALUE;
  *v = config().driver_version;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGet, (d, ordinal), CUdevice* d, int ordinal) {
  TRY(need_init());
  if (!device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *d = ordinal;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetCount, (n), int* n) {
  TRY(need_init());
  *n = device_count();
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetName, (name, len, d), char* name, int len, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  if (len <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(len), "Stand-in device");
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetUuid_v2, (u, d), CUuuid* u, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  device_uuid(device(d)->physical, reinterpret_cast<unsigned char*>(u->bytes));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetUuid, (u, d), CUuuid* u, CUdevice d) {
  return api::cuDeviceGetUuid_v2(u, d);
}
CU_ENTRY(cuDeviceTotalMem_v2, (n, d), size_t* n, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *n = config().device_mem;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceComputeCapability, (major, minor, d), int* major, int* minor, CUdevice d) {
  *major = config().cc / 10;
  *minor = config().cc % 10;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetPCIBusId, (s, len, d), char* s, int len, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  std::string id = pci_bus_id(device(d)->physical);
  if (len <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(s, static_cast<size_t>(len), "%s", id.c_str());
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetByPCIBusId, (d, id), CUdevice* d, const char* id) {
  TRY(need_init());
  int found = device_by_pci_bus_id(id);
  if (found < 0) return CUDA_ERROR_INVALID_DEVICE;
  *d = found;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetAttribute, (v, a, d), int* v, CUdevice_attribute a, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *v = config().sms;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *v = 0x10 + device(d)->physical * 0x10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *v = config().cc / 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *v = config().cc % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *v = config().vmm;
      return CUDA_SUCCESS;
    default:
      break;
  }
  auto it = fixed_attributes().find(a);
  *v = it == fixed_attributes().end() ? 0 : it->second;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceCanAccessPeer, (can, a, b), int* can, CUdevice a, CUdevice b) {
  TRY(need_init());
  if (!device(a) || !device(b)) return CUDA_ERROR_INVALID_DEVICE;
  *can = a != b && config().p2p;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDeviceGetP2PAttribute, (v, a, x, y), int* v, CUdevice_P2PAttribute a, CUdevice x, CUdevice y) {
  TRY(need_init());
  if (!device(x) || !device(y) || x == y) return CUDA_ERROR_INVALID_DEVICE;
  *v = a == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : config().p2p;
  return CUDA_SUCCESS;
}

CU_ENTRY(cuDevicePrimaryCtxRetain, (c, d), CUcontext* c, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(big_lock());
  *c = handle(primary(device(d)));
  device(d)->primary_refs++;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDevicePrimaryCtxRelease_v2, (d), CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(big_lock());
  if (device(d)->primary_refs <= 0) return CUDA_ERROR_INVALID_CONTEXT;
  device(d)->primary_refs--;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDevicePrimaryCtxReset_v2, (d), CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  sync_device(device(d));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDevicePrimaryCtxSetFlags_v2, (d, flags), CUdevice d, unsigned int flags) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  device(d)->primary_flags = flags;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuDevicePrimaryCtxGetState, (d, flags, active), CUdevice d, unsigned int* flags, int* active) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = device(d)->primary_flags;
  *active = device(d)->primary_refs > 0;
  return CUDA_SUCCESS;
}
namespace standin::cuda::api {
namespace {
CUresult create_context(CUcontext* c, unsigned flags, CUdevice d) {
  TRY(need_init());
  if (!device(d)) return CUDA_ERROR_INVALID_DEVICE;
  Context* x = new_context(device(d), flags);
  if (!context_stack().push_back(x)) {
    drop_context(x);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *c = handle(x);
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuCtxCreate_v4, (c, create, flags, d), CUcontext* c, CUctxCreateParams* create, unsigned int flags,
         CUdevice d) {
  return create_context(c, flags, d);
}
CU_ENTRY(cuCtxCreate_v3, (c, affinity, count, flags, d), CUcontext* c, CUexecAffinityParam* affinity, int count,
         unsigned int flags, CUdevice d) {
  return create_context(c, flags, d);
}
CU_ENTRY(cuCtxCreate_v2, (c, flags, d), CUcontext* c, unsigned int flags, CUdevice d) {
  return create_context(c, flags, d);
}
CU_ENTRY(cuCtxDestroy_v2, (c), CUcontext c) {
  TRY(need_init());
  Context* x = as_context(c);
  if (!valid_context(x) || x->primary) return CUDA_ERROR_INVALID_CONTEXT;
  auto& st = context_stack();
  if (!st.empty() && st.back() == x) st.pop_back();
  drop_context(x);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxPushCurrent_v2, (c), CUcontext c) {
  TRY(need_init());
  if (!valid_context(as_context(c))) return CUDA_ERROR_INVALID_CONTEXT;
  return context_stack().push_back(as_context(c)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CU_ENTRY(cuCtxPopCurrent_v2, (c), CUcontext* c) {
  TRY(need_init());
  auto& st = context_stack();
  if (st.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (c) *c = handle(st.back());
  st.pop_back();
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxSetCurrent, (c), CUcontext c) {
  TRY(need_init());
  if (c && !valid_context(as_context(c))) return CUDA_ERROR_INVALID_CONTEXT;
  set_current(as_context(c));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetCurrent, (c), CUcontext* c) {
  TRY(need_init());
  *c = handle(current());
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetDevice, (d), CUdevice* d) {
  TRY(need_context());
  *d = current()->dev->ordinal;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetId, (c, id), CUcontext c, unsigned long long* id) {
  TRY(need_init());
  Context* x = c ? as_context(c) : current();
  if (!x || !valid_context(x)) return CUDA_ERROR_INVALID_CONTEXT;
  *id = x->id;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetFlags, (f), unsigned int* f) {
  TRY(need_context());
  *f = current()->flags;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxSetFlags, (f), unsigned int f) {
  TRY(need_context());
  current()->flags = f;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetApiVersion, (context, v), CUcontext context, unsigned int* v) {
  *v = 3020;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxSynchronize, ()) {
  TRY(need_context());
  TRY(unsafe_call());
  sync_device(current()->dev);
  return fault_of(current()->dev);
}
CU_ENTRY(cuCtxSetLimit, (l, v), CUlimit l, size_t v) {
  TRY(need_context());
  if ((unsigned)l >= 16) return CUDA_ERROR_INVALID_VALUE;
  current()->limits[l] = v;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetLimit, (v, l), size_t* v, CUlimit l) {
  TRY(need_context());
  if ((unsigned)l >= 16) return CUDA_ERROR_INVALID_VALUE;
  *v = current()->limits[l];
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetStreamPriorityRange, (least, greatest), int* least, int* greatest) {
  TRY(need_context());
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxGetCacheConfig, (c), CUfunc_cache* c) {
  *c = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxSetCacheConfig, (cache), CUfunc_cache cache) {
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxEnablePeerAccess, (c, flags), CUcontext c, unsigned int flags) {
  TRY(need_context());
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_context(as_context(c))) return CUDA_ERROR_INVALID_CONTEXT;
  Device* peer = as_context(c)->dev;
  if (peer == current()->dev) return CUDA_ERROR_INVALID_DEVICE;
  if (!config().p2p) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  std::lock_guard lock(big_lock());
  if (!current()->dev->peers.insert(peer->ordinal).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuCtxDisablePeerAccess, (c), CUcontext c) {
  TRY(need_context());
  if (!valid_context(as_context(c))) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(big_lock());
  return current()->dev->peers.erase(as_context(c)->dev->ordinal) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
