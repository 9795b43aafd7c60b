// Entry points: names of errors, entry points by name.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
struct ErrorText {
  CUresult code;
  const char *name, *text;
};
#define ERROR_TEXT(CODE, TEXT) \
  { CODE, #CODE, TEXT }
constexpr ErrorText kErrors[] = {
    ERROR_TEXT(CUDA_SUCCESS, "success"),
    ERROR_TEXT(CUDA_ERROR_INVALID_VALUE, "a value is not allowed here"),
    ERROR_TEXT(CUDA_ERROR_OUT_OF_MEMORY, "not enough memory"),
    ERROR_TEXT(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called"),
    ERROR_TEXT(CUDA_ERROR_DEINITIALIZED, "the driver is going down"),
    ERROR_TEXT(CUDA_ERROR_NO_DEVICE, "there is no device"),
    ERROR_TEXT(CUDA_ERROR_INVALID_DEVICE, "there is no device of that number"),
    ERROR_TEXT(CUDA_ERROR_INVALID_IMAGE, "not a kernel image"),
    ERROR_TEXT(CUDA_ERROR_INVALID_CONTEXT, "no context, or not a context"),
    ERROR_TEXT(CUDA_ERROR_MAP_FAILED, "memory could not be mapped"),
    ERROR_TEXT(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image has no code for this device"),
    ERROR_TEXT(CUDA_ERROR_INVALID_PTX, "the PTX was not accepted"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "these devices cannot reach each other"),
    ERROR_TEXT(CUDA_ERROR_FILE_NOT_FOUND, "there is no such file"),
    ERROR_TEXT(CUDA_ERROR_INVALID_HANDLE, "not a handle of that kind"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_STATE, "not possible in the present state"),
    ERROR_TEXT(CUDA_ERROR_NOT_FOUND, "nothing has that name"),
    ERROR_TEXT(CUDA_ERROR_NOT_READY, "work is still under way"),
    ERROR_TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel used a bad address"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is on already"),
    ERROR_TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not on"),
    ERROR_TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already"),
    ERROR_TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered"),
    ERROR_TEXT(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
    ERROR_TEXT(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not allowed during stream capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error broke the capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would become one"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture began in another stream"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a forked stream was not joined before the capture ended"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "captured work would wait for work outside the capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream would wait for a capturing stream"),
    ERROR_TEXT(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture"),
    ERROR_TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture belongs to another thread"),
    ERROR_TEXT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph differs too much for an update"),
    ERROR_TEXT(CUDA_ERROR_UNKNOWN, "an unknown error"),
};
#undef ERROR_TEXT

const ErrorText* find_error(CUresult code) {
  for (auto& e : kErrors)
    if (e.code == code) return &e;
  return nullptr;
}

// Names whose meaning changed with the version: the newest entry that is not newer than asked for.
struct Version {
  const char* name;
  int since;
  const char* symbol;
};
constexpr Version kVersions[] = {
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxCreate", 3020, "cuCtxCreate_v2"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuDeviceGetUuid", 9020, "cuDeviceGetUuid"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"},
    {"cuGraphAddDependencies", 12030, "cuGraphAddDependencies_v2"},
    {"cuGraphAddDependencies", 10000, "cuGraphAddDependencies"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGraphNodeGetDependencies", 12030, "cuGraphNodeGetDependencies_v2"},
    {"cuGraphNodeGetDependencies", 10000, "cuGraphNodeGetDependencies"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuStreamGetCaptureInfo", 10010, "cuStreamGetCaptureInfo"},
    {"cuStreamUpdateCaptureDependencies", 12030, "cuStreamUpdateCaptureDependencies_v2"},
    {"cuStreamUpdateCaptureDependencies", 11030, "cuStreamUpdateCaptureDependencies"},
};

void* own_symbol(const std::string& name) {
  static void* self = [] {
    Dl_info i;
    return dladdr(reinterpret_cast<void*>(&::cuInit), &i) ? dlopen(i.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  }();
  return self ? dlsym(self, name.c_str()) : nullptr;
}

CUdriverProcAddressQueryResult look_up(const char* name, int version, void** fn) {
  bool known = false;
  for (auto& v : kVersions) {
    if (strcmp(v.name, name) != 0) continue;
    known = true;
    if (version < v.since) continue;
    *fn = own_symbol(v.symbol);
    break;
  }
  if (known) return *fn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  for (const char* tail : {"_v2", ""})
    if ((*fn = own_symbol(std::string(name) + tail))) return CU_GET_PROC_ADDRESS_SUCCESS;
  return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuGetErrorString, (code, text), CUresult code, const char** text) {
  const ErrorText* e = find_error(code);
  *text = e ? e->text : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuGetErrorName, (code, name), CUresult code, const char** name) {
  const ErrorText* e = find_error(code);
  *name = e ? e->name : nullptr;
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_ENTRY(cuGetProcAddress_v2, (symbol, fn, version, flags, status), const char* symbol, void** fn, int version,
         cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  if (!symbol || !fn) return CUDA_ERROR_INVALID_VALUE;
  *fn = nullptr;
  CUdriverProcAddressQueryResult found = look_up(symbol, version, fn);
  if (config().verbose && !*fn) fprintf(stderr, "standin cuda: no entry point %s (version %d)\n", symbol, version);
  if (status) *status = found;
  return *fn || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CU_ENTRY(cuGetProcAddress, (symbol, fn, version, flags), const char* symbol, void** fn, int version, cuuint64_t flags) {
  return api::cuGetProcAddress_v2(symbol, fn, version, flags, nullptr);
}
