// Errors, versions, devices and driver entry points.
#include <cstdio>
#include <cstring>

#include "runtime.hpp"

namespace standin::cudart {
namespace {
thread_local cudaError_t t_last = cudaSuccess;

// Errors that only the runtime has.
struct OwnError {
  cudaError_t code;
  const char *name, *text;
};
constexpr OwnError kOwnErrors[] = {
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "the launch asks for more than a device has"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "no device function belongs to this symbol"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "no device variable belongs to this symbol"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration", "the launch was not configured"},
};

int attribute(CUdevice_attribute what, int device) {
  int value = 0;
  return cuDeviceGetAttribute(&value, what, device) ? 0 : value;
}

CUresult use_device(int device) {
  int now = 0;
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context && cuCtxGetDevice(&now) == CUDA_SUCCESS && now == device)
    return CUDA_SUCCESS;
  CUresult r = cuDevicePrimaryCtxRetain(&context, device);
  return r ? r : cuCtxSetCurrent(context);
}
}  // namespace

cudaError_t note(cudaError_t e) {
  if (e != cudaSuccess && e != cudaErrorNotReady) t_last = e;
  return e;
}

CUresult need_driver() {
  static const CUresult result = cuInit(0);
  return result;
}

CUresult need_context() {
  if (CUresult r = need_driver()) return r;
  CUcontext context = nullptr;
  CUresult r = cuCtxGetCurrent(&context);
  return r || context ? r : use_device(0);
}
}  // namespace standin::cudart

using namespace standin::cudart;

EXPORT cudaError_t cudaGetLastError() {
  cudaError_t e = t_last;
  t_last = cudaSuccess;
  return e;
}
EXPORT cudaError_t cudaPeekAtLastError() {
  return t_last;
}
EXPORT const char* cudaGetErrorString(cudaError_t e) {
  for (auto& own : kOwnErrors)
    if (own.code == e) return own.text;
  const char* text = nullptr;
  cuGetErrorString(as<CUresult>(e), &text);
  return text ? text : "unrecognized error code";
}
EXPORT const char* cudaGetErrorName(cudaError_t e) {
  for (auto& own : kOwnErrors)
    if (own.code == e) return own.name;
  const char* name = nullptr;
  cuGetErrorName(as<CUresult>(e), &name);
  return name ? name : "unrecognized error code";
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  return from(cuDriverGetVersion(version));
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = STANDIN_CUDART == 12 ? 12080 : CUDART_VERSION;
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return with_driver([&] { return cuDeviceGetCount(count); });
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  return with_context([&] { return cuCtxGetDevice(device); });
}
EXPORT cudaError_t cudaSetDevice(int device) {
  return with_driver([&] { return use_device(device); });
}
EXPORT cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  CUcontext context = nullptr;
  return with_driver([&] { return cuDevicePrimaryCtxRetain(&context, device); });
}
EXPORT cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return with_context([&] { return cuCtxGetFlags(flags); });
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
  return with_driver([&] { return cuDeviceGetAttribute(value, as<CUdevice_attribute>(what), device); });
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  int count = 0;
  if (cudaError_t e = cudaGetDeviceCount(&count)) return e;
  if (device < 0 || device >= count) return note(cudaErrorInvalidDevice);
  CUuuid uuid;
  cuDeviceGetName(p->name, sizeof p->name, device);
  cuDeviceGetUuid(&uuid, device);
  memcpy(&p->uuid, &uuid, sizeof p->uuid);
  cuDeviceTotalMem(&p->totalGlobalMem, device);
  auto get = [&](CUdevice_attribute what) { return attribute(what, device); };
  p->major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  p->minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  p->multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  p->pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  p->pciDeviceID = get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  p->pciDomainID = get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  p->sharedMemPerBlock = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  p->sharedMemPerBlockOptin = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  p->sharedMemPerMultiprocessor = static_cast<size_t>(get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 40 << 20;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
  p->canUseHostPointerForRegisteredMem = p->cooperativeLaunch = p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return with_driver([&] { return cuDeviceGetPCIBusId(text, bytes, device); });
}
EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  return with_driver([&] { return cuDeviceGetByPCIBusId(device, text); });
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  return with_context([] { return cuCtxSynchronize(); });
}
EXPORT cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return with_context([&] { return cuCtxSetLimit(as<CUlimit>(limit), value); });
}
EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return with_context([&] { return cuCtxGetLimit(value, as<CUlimit>(limit)); });
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&] { return cuCtxGetStreamPriorityRange(least, greatest); });
}
EXPORT cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return cudaSuccess;
}

namespace {
// The driver's peer access is between contexts, the runtime's between devices.
template <class Call>
cudaError_t with_peer(int device, Call call) {
  return with_context([&] {
    CUcontext peer = nullptr;
    if (CUresult r = cuDevicePrimaryCtxRetain(&peer, device)) return r;
    CUresult result = call(peer);
    cuDevicePrimaryCtxRelease(device);
    return result;
  });
}
}  // namespace
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_driver([&] { return cuDeviceCanAccessPeer(can, device, peer); });
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) {
  return with_peer(device, [&](CUcontext peer) { return cuCtxEnablePeerAccess(peer, flags); });
}
EXPORT cudaError_t cudaDeviceDisablePeerAccess(int device) {
  return with_peer(device, [](CUcontext peer) { return cuCtxDisablePeerAccess(peer); });
}
EXPORT cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr what, int device, int peer) {
  return with_driver([&] { return cuDeviceGetP2PAttribute(value, as<CUdevice_P2PAttribute>(what), device, peer); });
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                                    unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found;
  CUresult r = cuGetProcAddress_v2(name, function, static_cast<int>(version), flags, &found);
  if (status) {
    *status = as<cudaDriverEntryPointQueryResult>(found);
    return cudaSuccess;
  }
  return *function ? cudaSuccess : note(r ? as<cudaError_t>(r) : cudaErrorSymbolNotFound);
}
EXPORT_AS(cudaGetDriverEntryPoint)
(const char* name, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return cudaGetDriverEntryPointByVersion(name, function, static_cast<unsigned>(version), flags, status);
}
EXPORT cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
EXPORT cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
