// Entry points: modules, libraries, kernels and their launch.
#include <algorithm>
#include <cstdio>

#include "entry.hpp"
#include "native.h"

namespace standin::cuda::api {
namespace {
template <class Handle>
CUresult load(Handle* out, const void* image) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  std::string why;
  ModuleP m = load_module(image, &why);
  if (m) {
    *out = reinterpret_cast<Handle>(m.get());
    return CUDA_SUCCESS;
  }
  bool machine_code = why.find("machine code") != std::string::npos;
  bool no_ptx = machine_code || why.find("newer") != std::string::npos;
  // A program may well carry machine code only, and ask.
  if (!machine_code || config().verbose) fprintf(stderr, "standin cuda: module not loaded: %s\n", why.c_str());
  return no_ptx ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_PTX;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuModuleLoadData, (m, image), CUmodule* m, const void* image) {
  TRY(need_context());
  return load(m, image);
}
CU_ENTRY(cuModuleLoadDataEx, (m, image, flags, options, option_values), CUmodule* m, const void* image,
         unsigned int flags, CUjit_option* options, void** option_values) {
  TRY(need_context());
  return load(m, image);
}
CU_ENTRY(cuModuleLoadFatBinary, (m, image), CUmodule* m, const void* image) {
  TRY(need_context());
  return load(m, image);
}
CU_ENTRY(cuModuleUnload, (m), CUmodule m) {
  TRY(need_context());
  if (!find_module(m)) return CUDA_ERROR_INVALID_HANDLE;
  drop_module(m);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuModuleGetFunction, (f, m, name), CUfunction* f, CUmodule m, const char* name) {
  TRY(need_context());
  ModuleP x = find_module(m);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  Kernel* k = get_kernel(x.get(), name);
  if (!k) return CUDA_ERROR_NOT_FOUND;
  *f = reinterpret_cast<CUfunction>(k);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuModuleGetGlobal_v2, (p, n, m, name), CUdeviceptr* p, size_t* n, CUmodule m, const char* name) {
  TRY(need_context());
  size_t size = 0;
  ModuleP x = find_module(m);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  void* a = module_global(x.get(), current()->dev, name, &size);
  if (!a) return CUDA_ERROR_NOT_FOUND;
  if (p) *p = (CUdeviceptr)a;
  if (n) *n = size;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuLibraryLoadData, (l, code, options, option_values, flags, library_options, option_values2, flags2),
         CUlibrary* l, const void* code, CUjit_option* options, void** option_values, unsigned int flags,
         CUlibraryOption* library_options, void** option_values2, unsigned int flags2) {
  TRY(need_init());
  return load(l, code);
}
CU_ENTRY(cuLibraryUnload, (l), CUlibrary l) {
  TRY(need_init());
  if (!find_module(l)) return CUDA_ERROR_INVALID_HANDLE;
  drop_module(l);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuLibraryGetKernel, (k, l, name), CUkernel* k, CUlibrary l, const char* name) {
  TRY(need_init());
  ModuleP m = find_module(l);
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  Kernel* x = get_kernel(m.get(), name);
  if (!x) return CUDA_ERROR_NOT_FOUND;
  *k = reinterpret_cast<CUkernel>(x);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuLibraryGetModule, (m, l), CUmodule* m, CUlibrary l) {
  TRY(need_context());
  *m = reinterpret_cast<CUmodule>(l);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuLibraryGetGlobal, (p, n, l, name), CUdeviceptr* p, size_t* n, CUlibrary l, const char* name) {
  return api::cuModuleGetGlobal_v2(p, n, reinterpret_cast<CUmodule>(l), name);
}
CU_ENTRY(cuKernelGetFunction, (f, k), CUfunction* f, CUkernel k) {
  TRY(need_context());
  if (!find_kernel(k)) return CUDA_ERROR_INVALID_HANDLE;
  *f = reinterpret_cast<CUfunction>(k);
  return CUDA_SUCCESS;
}
namespace standin::cuda::api {
namespace {
CUresult kernel_attribute(int* v, CUfunction_attribute a, Kernel* k) {
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *v = k->info.max_threads;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *v = static_cast<int>(k->info.static_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *v = 0;
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *v = 0;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *v = k->info.num_regs;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *v = config().cc;
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *v = config().cc;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *v = k->max_dynamic_shared;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *v = k->carveout;
      break;
    default:
      *v = 0;
      break;
  }
  return CUDA_SUCCESS;
}
CUresult set_kernel_attribute(Kernel* k, CUfunction_attribute a, int v) {
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (v < 0 || v + (int)k->info.static_shared_bytes > 163 * 1024) return CUDA_ERROR_INVALID_VALUE;
    k->max_dynamic_shared = v;
  } else if (a == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    k->carveout = v;
  }
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuKernelGetAttribute, (v, a, k, d), int* v, CUfunction_attribute a, CUkernel k, CUdevice d) {
  Kernel* x = find_kernel(k);
  return x ? kernel_attribute(v, a, x) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuKernelSetAttribute, (a, v, k, d), CUfunction_attribute a, int v, CUkernel k, CUdevice d) {
  Kernel* x = find_kernel(k);
  return x ? set_kernel_attribute(x, a, v) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuFuncGetAttribute, (v, a, f), int* v, CUfunction_attribute a, CUfunction f) {
  Kernel* x = find_kernel(f);
  return x ? kernel_attribute(v, a, x) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuFuncSetAttribute, (f, a, v), CUfunction f, CUfunction_attribute a, int v) {
  Kernel* x = find_kernel(f);
  return x ? set_kernel_attribute(x, a, v) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuFuncSetCacheConfig, (f, cache), CUfunction f, CUfunc_cache cache) {
  return find_kernel(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuFuncGetModule, (m, f), CUmodule* m, CUfunction f) {
  Kernel* x = find_kernel(f);
  if (!x || !x->module) return CUDA_ERROR_INVALID_HANDLE;
  *m = reinterpret_cast<CUmodule>(x->module);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuFuncGetName, (name, f), const char** name, CUfunction f) {
  Kernel* x = find_kernel(f);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  *name = x->name.c_str();
  return CUDA_SUCCESS;
}
CU_ENTRY(cuKernelGetName, (name, k), const char** name, CUkernel k) {
  return api::cuFuncGetName(name, reinterpret_cast<CUfunction>(k));
}
CU_ENTRY(cuFuncGetParamInfo, (f, i, off, size), CUfunction f, size_t i, size_t* off, size_t* size) {
  Kernel* x = find_kernel(f);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  if (i >= x->info.params.size()) return CUDA_ERROR_INVALID_VALUE;
  *off = x->info.params[i].offset;
  if (size) *size = x->info.params[i].size;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuKernelGetParamInfo, (k, i, off, size), CUkernel k, size_t i, size_t* off, size_t* size) {
  return api::cuFuncGetParamInfo(reinterpret_cast<CUfunction>(k), i, off, size);
}
CU_ENTRY(cuFuncIsLoaded, (s, f), CUfunctionLoadingState* s, CUfunction f) {
  if (!find_kernel(f)) return CUDA_ERROR_INVALID_HANDLE;
  *s = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuFuncLoad, (f), CUfunction f) {
  return find_kernel(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (n, f, block, shared, flags), int* n, CUfunction f,
         int block, size_t shared, unsigned int flags) {
  Kernel* x = find_kernel(f);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  if (block <= 0) return CUDA_ERROR_INVALID_VALUE;
  int by_threads = 2048 / ((block + 31) / 32 * 32);
  size_t per = shared + x->info.static_shared_bytes + 1024;
  int by_shared = (int)(164 * 1024 / per);
  *n = std::min({32, by_threads, by_shared});
  return CUDA_SUCCESS;
}
CU_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, (n, f, block, shared), int* n, CUfunction f, int block,
         size_t shared) {
  return api::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, block, shared, 0);
}
CU_ENTRY(cuOccupancyMaxPotentialBlockSize, (grid, block, f, size_of, shared, limit), int* grid, int* block,
         CUfunction f, CUoccupancyB2DSize size_of, size_t shared, int limit) {
  Kernel* x = find_kernel(f);
  if (!x) return CUDA_ERROR_INVALID_HANDLE;
  int b = std::min(limit > 0 ? limit : 1024, x->info.max_threads);
  int n = 0;
  TRY(api::cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, f, b, size_of ? size_of(b) : shared));
  *block = b;
  *grid = n * config().sms;
  return CUDA_SUCCESS;
}

CU_ENTRY(cuLaunchKernel, (f, gx, gy, gz, bx, by, bz, shared, s, params, extra), CUfunction f, unsigned int gx,
         unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
         CUstream s, void** params, void** extra) {
  TRY(need_context());
  Kernel* k = find_kernel(f);
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  return launch_kernel(k, {"cuLaunchKernel", {gx, gy, gz}, {bx, by, bz}, shared, s, params, extra, nullptr, 0});
}
CU_ENTRY(cuLaunchKernelEx, (c, f, params, extra), const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  TRY(need_context());
  Kernel* k = find_kernel(f);
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  return launch_kernel(k, {"cuLaunchKernelEx",
                           {c->gridDimX, c->gridDimY, c->gridDimZ},
                           {c->blockDimX, c->blockDimY, c->blockDimZ},
                           c->sharedMemBytes,
                           c->hStream,
                           params,
                           extra,
                           c->attrs,
                           c->numAttrs});
}
CU_ENTRY(cuLaunchCooperativeKernel, (f, gx, gy, gz, bx, by, bz, shared, s, params), CUfunction f, unsigned int gx,
         unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
         CUstream s, void** params) {
  return api::cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, params, nullptr);
}
CU_ENTRY(cuLaunchHostFunc, (s, fn, user), CUstream s, CUhostFn fn, void* user) {
  TRY(need_context());
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  trace("\"src\":\"cuda\",\"ev\":\"host_func\",\"api\":\"cuLaunchHostFunc\",\"fn\":\"%p\",\"stream\":\"%p\"",
        reinterpret_cast<void*>(fn), static_cast<void*>(s));
  return submit(s, host_work(fn, user, "cuLaunchHostFunc"));
}

CUresult standin_cuda_launch_native(CUstream stream, const char* kernel_name, void (*body)(void*), void* user,
                                    void (*destroy)(void*)) {
  using namespace standin::cuda;
  if (failures_wanted()) TRY(injected_failure("cuLaunchKernelEx", kernel_name, __builtin_return_address(0)));
  TRY(api::need_context());
  if (!kernel_name || !body) return CUDA_ERROR_INVALID_VALUE;
  // The last copy of the work that goes (its stream's, a graph's or an executable graph's) takes `user` with it.
  struct Owner {
    void* user;
    void (*destroy)(void*) = nullptr;
    ~Owner() {
      if (destroy) destroy(user);
    }
  };
  auto owner = std::make_shared<Owner>();
  owner->user = user;
  CUresult r = launch_native(stream, kernel_name, [body, owner] { body(owner->user); });
  if (r == CUDA_SUCCESS) owner->destroy = destroy;
  return r;
}
