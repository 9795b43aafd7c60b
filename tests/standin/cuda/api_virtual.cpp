// Entry points: virtual memory. A physical allocation is a memory file, an address range is reserved pages that a part
// of such a file is mapped over. Announced to programs only with STANDIN_CUDA_VMM=1.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
constexpr size_t kGranularity = 2 << 20;

// One physical allocation; it lives as long as a handle or a mapping of it.
struct Physical {
  int fd = -1;
  size_t bytes = 0;
  CUmemAllocationProp properties = {};
  ~Physical() {
    if (fd >= 0) close(fd);
  }
};
using PhysicalP = std::shared_ptr<Physical>;
struct Mapping {
  PhysicalP memory;
  size_t bytes;
};
struct Handle {
  PhysicalP memory;
  int count = 1;
};
struct Tables {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  std::map<CUdeviceptr, Mapping> mappings;
};
Tables& tables() {
  static Tables& t = *new Tables;
  return t;
}

// The caller holds the lock in these.
CUmemGenericAllocationHandle give_handle(const PhysicalP& p) {
  auto h = reinterpret_cast<CUmemGenericAllocationHandle>(p.get());
  auto [it, fresh] = tables().handles.try_emplace(h, Handle{p});
  if (!fresh) it->second.count++;
  return h;
}
PhysicalP memory_of(CUmemGenericAllocationHandle h) {
  auto it = tables().handles.find(h);
  return it == tables().handles.end() ? nullptr : it->second.memory;
}

bool hold_place(CUdeviceptr p, size_t bytes) {
  return mmap(ptr(p), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuMemGetAllocationGranularity, (bytes, properties, option), size_t* bytes,
         const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags option) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemAddressReserve, (p, bytes, alignment, wish, flags), CUdeviceptr* p, size_t bytes, size_t alignment,
         CUdeviceptr wish, unsigned long long flags) {
  TRY(need_init());
  if (!bytes || bytes % kGranularity) return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max(alignment, kGranularity);
  void* room = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto begin = reinterpret_cast<uintptr_t>(room), end = begin + bytes + alignment;
  uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) munmap(room, aligned - begin);
  if (end > aligned + bytes) munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  *p = aligned;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemAddressFree, (p, bytes), CUdeviceptr p, size_t bytes) {
  return munmap(ptr(p), bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CU_ENTRY(cuMemCreate, (h, bytes, properties, flags), CUmemGenericAllocationHandle* h, size_t bytes,
         const CUmemAllocationProp* properties, unsigned long long flags) {
  TRY(need_init());
  if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (!bytes || bytes % kGranularity) return CUDA_ERROR_INVALID_VALUE;
  auto memory = std::make_shared<Physical>();
  memory->fd = memfd_create("standin-cuda-virtual", MFD_CLOEXEC);
  memory->bytes = bytes;
  memory->properties = *properties;
  if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(tables().mutex);
  *h = give_handle(memory);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemRelease, (h), CUmemGenericAllocationHandle h) {
  std::lock_guard lock(tables().mutex);
  auto it = tables().handles.find(h);
  if (it == tables().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--it->second.count == 0) tables().handles.erase(it);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemMap, (p, bytes, offset, h, flags), CUdeviceptr p, size_t bytes, size_t offset,
         CUmemGenericAllocationHandle h, unsigned long long flags) {
  std::lock_guard lock(tables().mutex);
  PhysicalP memory = memory_of(h);
  if (!memory || offset > memory->bytes || bytes > memory->bytes - offset) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(ptr(p), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->fd, static_cast<off_t>(offset)) ==
      MAP_FAILED)
    return CUDA_ERROR_MAP_FAILED;
  bool on_device = memory->properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  note_global(ptr(p), bytes, on_device ? device(memory->properties.location.id) : nullptr);
  tables().mappings[p] = {memory, bytes};
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemUnmap, (p, bytes), CUdeviceptr p, size_t bytes) {
  std::lock_guard lock(tables().mutex);
  auto& all = tables().mappings;
  for (auto it = all.lower_bound(p); it != all.end() && it->first < p + bytes; it = all.erase(it))
    forget_global(ptr(it->first));
  return hold_place(p, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuMemSetAccess, (p, bytes, access, count), CUdeviceptr p, size_t bytes, const CUmemAccessDesc* access,
         size_t count) {
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemGetAccess, (flags, place, p), unsigned long long* flags, const CUmemLocation* place, CUdeviceptr p) {
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemExportToShareableHandle, (out, h, type, flags), void* out, CUmemGenericAllocationHandle h,
         CUmemAllocationHandleType type, unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(tables().mutex);
  PhysicalP memory = memory_of(h);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  memcpy(out, &fd, sizeof fd);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemImportFromShareableHandle, (h, handle, type), CUmemGenericAllocationHandle* h, void* handle,
         CUmemAllocationHandleType type) {
  TRY(need_init());
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  auto memory = std::make_shared<Physical>();
  memory->fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(handle)), F_DUPFD_CLOEXEC, 0);
  off_t bytes = memory->fd < 0 ? -1 : lseek(memory->fd, 0, SEEK_END);
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  memory->bytes = static_cast<size_t>(bytes);
  memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {current() ? current()->dev->ordinal : 0}};
  memory->properties.requestedHandleTypes = type;
  std::lock_guard lock(tables().mutex);
  *h = give_handle(memory);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemRetainAllocationHandle, (h, p), CUmemGenericAllocationHandle* h, void* p) {
  std::lock_guard lock(tables().mutex);
  auto at = reinterpret_cast<CUdeviceptr>(p);
  auto it = tables().mappings.upper_bound(at);
  if (it == tables().mappings.begin() || at >= (--it)->first + it->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  *h = give_handle(it->second.memory);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuMemGetAllocationPropertiesFromHandle, (properties, h), CUmemAllocationProp* properties,
         CUmemGenericAllocationHandle h) {
  std::lock_guard lock(tables().mutex);
  PhysicalP memory = memory_of(h);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}
