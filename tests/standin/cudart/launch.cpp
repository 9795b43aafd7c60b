// What nvcc's host code registers when a library is loaded, and launches of what it registered. A fat binary becomes a
// library of the driver when one of its functions or variables is first asked for.
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime.hpp"

namespace standin::cudart {
namespace {
// One call of __cudaRegisterFatBinary. Its wrapper stays in the registering library, which unregisters before it goes.
struct Binary {
  const void* wrapper = nullptr;
  CUlibrary library = nullptr;
  std::mutex loading;
};
struct Symbol {
  Binary* owner = nullptr;
  std::string name;
};
struct Tables {
  std::mutex mutex;
  std::map<const void*, Symbol> functions, variables;
};
// Never destroyed: libraries unregister in any order at exit.
Tables& tables() {
  static Tables& t = *new Tables;
  return t;
}

struct Call {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
// Plain memory without a destructor. The same expression pushes and pops.
constexpr int kDeepest = 16;
thread_local Call t_calls[kDeepest];
thread_local int t_depth = 0;

bool find(const std::map<const void*, Symbol>& among, const void* key, Symbol* out) {
  std::lock_guard lock(tables().mutex);
  auto it = among.find(key);
  if (it == among.end()) return false;
  *out = it->second;
  return true;
}

CUresult load(Binary* b) {
  std::lock_guard lock(b->loading);
  if (b->library) return CUDA_SUCCESS;
  return cuLibraryLoadData(&b->library, b->wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

// The program's own function for a registered kernel; null when it brings none.
const StandinHostKernel* own_function(const void* symbol, std::string* name) {
  Symbol f;
  if (!host_kernels() || !find(tables().functions, symbol, &f)) return nullptr;
  *name = f.name;
  return host_kernels()(f.name.c_str());
}

cudaError_t launch(const void* symbol, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream,
                   const cudaLaunchAttribute* attributes = nullptr, unsigned count = 0) {
  static_assert(sizeof(CUlaunchAttribute) == sizeof(cudaLaunchAttribute));
  if (CUresult r = need_context()) return from(r);
  std::string name;
  if (const StandinHostKernel* own = own_function(symbol, &name)) {
    return from(launch_host_kernel(own, name.c_str(), arguments, stream));
  }
  CUfunction f = function_of(symbol);
  if (!f) return note(cudaErrorInvalidDeviceFunction);
  if (size_t{block.x} * block.y * block.z > 1024) return note(cudaErrorInvalidConfiguration);
  CUlaunchConfig c = {};
  c.gridDimX = grid.x, c.gridDimY = grid.y, c.gridDimZ = grid.z;
  c.blockDimX = block.x, c.blockDimY = block.y, c.blockDimZ = block.z;
  c.sharedMemBytes = static_cast<unsigned>(shared);
  c.hStream = stream;
  c.attrs = const_cast<CUlaunchAttribute*>(reinterpret_cast<const CUlaunchAttribute*>(attributes));
  c.numAttrs = count;
  return from(cuLaunchKernelEx(&c, f, arguments, nullptr));
}

CUresult variable(const void* symbol, CUdeviceptr* p, size_t* bytes) {
  Symbol v;
  if (!find(tables().variables, symbol, &v)) return as<CUresult>(cudaErrorInvalidSymbol);
  CUresult r = load(v.owner);
  return r ? r : cuLibraryGetGlobal(p, bytes, v.owner->library, v.name.c_str());
}
}  // namespace

CUfunction function_of(const void* symbol) {
  Symbol f;
  if (!find(tables().functions, symbol, &f)) {
    // A handle that cudaGetFuncBySymbol or __cudaGetKernel returned.
    auto handle = static_cast<CUfunction>(const_cast<void*>(symbol));
    CUmodule module = nullptr;
    return cuFuncGetModule(&module, handle) == CUDA_SUCCESS ? handle : nullptr;
  }
  CUkernel k = nullptr;
  if (load(f.owner) || cuLibraryGetKernel(&k, f.owner->library, f.name.c_str())) return nullptr;
  return reinterpret_cast<CUfunction>(k);
}
}  // namespace standin::cudart

using namespace standin::cudart;

EXPORT void** __cudaRegisterFatBinary(void* wrapper) {
  auto* b = new Binary;
  b->wrapper = wrapper;
  return reinterpret_cast<void**>(b);
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void** handle) {
  auto* b = reinterpret_cast<Binary*>(handle);
  {
    std::lock_guard lock(tables().mutex);
    auto owned = [b](const auto& entry) { return entry.second.owner == b; };
    std::erase_if(tables().functions, owned);
    std::erase_if(tables().variables, owned);
  }
  // The library stays loaded in the driver: kernels of it may still run on other threads at exit.
  delete b;
}
EXPORT void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                                   dim3*, int*) {
  std::lock_guard lock(tables().mutex);
  tables().functions[host] = {reinterpret_cast<Binary*>(handle), name};
}
EXPORT void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t, int, int) {
  std::lock_guard lock(tables().mutex);
  tables().variables[host] = {reinterpret_cast<Binary*>(handle), name};
}
EXPORT void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int, size_t, int, int) {
  std::lock_guard lock(tables().mutex);
  tables().variables[host] = {reinterpret_cast<Binary*>(handle), name};
}
EXPORT char __cudaInitModule(void**) {
  return 0;
}
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  if (t_depth == kDeepest) return 1;
  t_calls[t_depth++] = {grid, block, shared, stream};
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (t_depth == 0) return note(cudaErrorMissingConfiguration);
  const Call& c = t_calls[--t_depth];
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* symbol) {
  if (CUresult r = need_driver()) return from(r);
  std::string name;
  if (own_function(symbol, &name)) {
    // Only handed back to __cudaLaunchKernel, which finds it by its symbol.
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(symbol));
    return cudaSuccess;
  }
  *kernel = reinterpret_cast<cudaKernel_t>(function_of(symbol));
  return *kernel ? cudaSuccess : note(cudaErrorInvalidDeviceFunction);
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                      cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream);
}
EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                           cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream ? stream : cudaStreamPerThread);
}

// ---- public functions ----
EXPORT cudaError_t cudaLaunchKernel(const void* symbol, dim3 grid, dim3 block, void** arguments, size_t shared,
                                    cudaStream_t stream) {
  return launch(symbol, grid, block, arguments, shared, stream);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* symbol, dim3 grid, dim3 block, void** arguments,
                                               size_t shared, cudaStream_t stream) {
  return launch(symbol, grid, block, arguments, shared, stream);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* symbol, void** arguments) {
  return launch(symbol, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream, c->attrs, c->numAttrs);
}
EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t* out, const void* symbol) {
  if (CUresult r = need_context()) return from(r);
  *out = function_of(symbol);
  return *out ? cudaSuccess : note(cudaErrorInvalidDeviceFunction);
}
EXPORT cudaError_t cudaGetKernel(cudaKernel_t* out, const void* symbol) {
  return __cudaGetKernel(out, symbol);
}
EXPORT cudaError_t cudaFuncGetName(const char** name, const void* symbol) {
  if (CUresult r = need_context()) return from(r);
  CUfunction f = function_of(symbol);
  return f ? from(cuFuncGetName(name, f)) : note(cudaErrorInvalidDeviceFunction);
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* symbol) {
  memset(a, 0, sizeof *a);
  if (CUresult r = need_context()) return from(r);
  CUfunction f = function_of(symbol);
  if (!f) return note(cudaErrorInvalidDeviceFunction);
  auto get = [f](CUfunction_attribute what) {
    int value = 0;
    return cuFuncGetAttribute(&value, what, f) ? 0 : value;
  };
  a->sharedSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  a->constSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  a->localSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  a->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  a->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
  a->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  a->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  a->maxDynamicSharedSizeBytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  a->preferredShmemCarveout = get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void* symbol, cudaFuncAttribute what, int value) {
  if (CUresult r = need_context()) return from(r);
  CUfunction f = function_of(symbol);
  return f ? from(cuFuncSetAttribute(f, as<CUfunction_attribute>(what), value)) : note(cudaErrorInvalidDeviceFunction);
}
EXPORT cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* symbol, int threads,
                                                                          size_t shared, unsigned flags) {
  if (CUresult r = need_context()) return from(r);
  CUfunction f = function_of(symbol);
  if (!f) return note(cudaErrorInvalidDeviceFunction);
  return from(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, flags));
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* symbol, int threads,
                                                                 size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, symbol, threads, shared, 0);
}
EXPORT cudaError_t cudaGetSymbolAddress(void** p, const void* symbol) {
  return with_context([&] { return variable(symbol, reinterpret_cast<CUdeviceptr*>(p), nullptr); });
}
EXPORT cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  CUdeviceptr p = 0;
  return with_context([&] { return variable(symbol, &p, bytes); });
}
