// libnvidia-ml.so.1: the functions that NCCL calls, for the stand-in driver's devices. The declarations are this
// file's own, from the documented interface.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum Return { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kUnknown = 999 };

struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct PciInfoExt {
  unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
  char bus_id[32];
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  unsigned long long value;
};

constexpr unsigned kDeviceId = 0x20b010de;

// A device's handle is its number plus one.
using Handle = void*;
CUdevice device_of(Handle h) {
  return static_cast<CUdevice>(reinterpret_cast<intptr_t>(h)) - 1;
}
Handle handle_of(CUdevice d) {
  return reinterpret_cast<Handle>(static_cast<intptr_t>(d) + 1);
}
int attribute(CUdevice d, CUdevice_attribute what) {
  int value = 0;
  return cuDeviceGetAttribute(&value, what, d) ? 0 : value;
}
unsigned bus(Handle h) {
  return static_cast<unsigned>(attribute(device_of(h), CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
}
void write_bus_id(char (&out)[32], unsigned number) {
  snprintf(out, sizeof out, "00000000:%02X:00.0", number);
}
}  // namespace

EXPORT int nvmlInit_v2() {
  return cuInit(0) ? kUnknown : kSuccess;
}
EXPORT int nvmlInit() {
  return nvmlInit_v2();
}
EXPORT int nvmlShutdown() {
  return kSuccess;
}
EXPORT const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "Success";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    default:
      return "Unknown Error";
  }
}
EXPORT int nvmlSystemGetCudaDriverVersion(int* version) {
  return cuDriverGetVersion(version) ? kUnknown : kSuccess;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  int n = 0;
  if (cuDeviceGetCount(&n)) return kUnknown;
  *count = static_cast<unsigned>(n);
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* h) {
  CUdevice d = 0;
  if (cuDeviceGet(&d, static_cast<int>(index))) return kInvalidArgument;
  *h = handle_of(d);
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, Handle* h) {
  return nvmlDeviceGetHandleByIndex_v2(index, h);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* h) {
  CUdevice d = 0;
  if (cuDeviceGetByPCIBusId(&d, id)) return kNotFound;
  *h = handle_of(d);
  return kSuccess;
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char* id, Handle* h) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, h);
}
EXPORT int nvmlDeviceGetIndex(Handle h, unsigned* index) {
  *index = static_cast<unsigned>(device_of(h));
  return kSuccess;
}
EXPORT int nvmlDeviceGetName(Handle h, char* name, unsigned bytes) {
  return cuDeviceGetName(name, static_cast<int>(bytes), device_of(h)) ? kInvalidArgument : kSuccess;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Handle h, int* major, int* minor) {
  *major = attribute(device_of(h), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute(device_of(h), CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return kSuccess;
}
EXPORT int nvmlDeviceGetP2PStatus(Handle a, Handle b, int, int* status) {
  int can = 0;
  cuDeviceCanAccessPeer(&can, device_of(a), device_of(b));
  constexpr int kOk = 0, kDisabled = 3;
  *status = can || a == b ? kOk : kDisabled;
  return kSuccess;
}
EXPORT int nvmlDeviceGetPciInfoExt(Handle h, PciInfoExt* p) {
  unsigned version = p->version;
  *p = {version, 0, bus(h), 0, kDeviceId, 0, 3, 2, {}};
  write_bus_id(p->bus_id, p->bus);
  return kSuccess;
}
EXPORT int nvmlDeviceGetPciInfo_v3(Handle h, PciInfo* p) {
  *p = {{}, 0, bus(h), 0, kDeviceId, 0, {}};
  snprintf(p->legacy_id, sizeof p->legacy_id, "0000:%02X:00.0", p->bus & 0xff);
  write_bus_id(p->bus_id, p->bus);
  return kSuccess;
}
EXPORT int nvmlDeviceGetFieldValues(Handle, int count, FieldValue* values) {
  for (int i = 0; i < count; i++) values[i].result = kNotSupported;
  return kSuccess;
}
EXPORT int nvmlSystemGetConfComputeState(void* state) {
  memset(state, 0, 12);
  return kSuccess;
}
EXPORT int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  snprintf(version, bytes, "580.00");
  return kSuccess;
}
EXPORT int nvmlDeviceGetPcieLinkMaxSpeed(Handle, unsigned* megabytes_per_second) {
  *megabytes_per_second = 16000;
  return kSuccess;
}
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Handle, unsigned* generation) {
  *generation = 4;
  return kSuccess;
}
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(Handle h, unsigned* generation) {
  return nvmlDeviceGetCurrPcieLinkGeneration(h, generation);
}
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Handle, unsigned* lanes) {
  *lanes = 16;
  return kSuccess;
}
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(Handle h, unsigned* lanes) {
  return nvmlDeviceGetCurrPcieLinkWidth(h, lanes);
}
EXPORT int nvmlDeviceGetUUID(Handle h, char* text, unsigned bytes) {
  snprintf(text, bytes, "GPU-7374616e-6469-6e2d-6465-766963652d%02x", static_cast<unsigned>(device_of(h)));
  return kSuccess;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo(Handle, unsigned, PciInfo*) {
  return kNotSupported;
}
EXPORT int nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}
EXPORT int nvmlDeviceGetNvLinkState(Handle, unsigned, int*) {
  return kNotSupported;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, PciInfo*) {
  return kNotSupported;
}
EXPORT int nvmlDeviceGetNvLinkCapability(Handle, unsigned, int, unsigned*) {
  return kNotSupported;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(Handle, void*) {
  return kNotSupported;
}
EXPORT int nvmlDeviceGetPlatformInfo(Handle, void*) {
  return kNotSupported;
}
