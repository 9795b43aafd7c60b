// Structures that CUDA 12 laid out differently (only in libcudart.so.12).
#if STANDIN_CUDART == 12
#include <cstring>

#include "runtime.hpp"

// cudaDeviceProp of CUDA 12, as NCCL and PyTorch read it: 1,032 bytes, of which these have a value here.
struct DeviceProp12 {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t total_global, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, threads_dim[3], grid_size[3], clock_khz;
  size_t constant_bytes;
  int major, minor;
  char unused_1[20];
  int multiprocessors;
  char unused_2[640];
};
static_assert(sizeof(DeviceProp12) == 1032);
static_assert(offsetof(DeviceProp12, total_global) == 288 && offsetof(DeviceProp12, threads_per_block) == 320 &&
              offsetof(DeviceProp12, constant_bytes) == 352 && offsetof(DeviceProp12, major) == 360 &&
              offsetof(DeviceProp12, multiprocessors) == 388);

EXPORT_AS(cudaGetDeviceProperties_v2)(DeviceProp12* out, int device) {
  cudaDeviceProp p;
  if (cudaError_t e = cudaGetDeviceProperties(&p, device)) return e;
  memset(out, 0, sizeof *out);
  memcpy(out->name, p.name, sizeof out->name);
  memcpy(out->uuid, &p.uuid, sizeof out->uuid);
  out->total_global = p.totalGlobalMem;
  out->shared_per_block = p.sharedMemPerBlock;
  out->registers_per_block = p.regsPerBlock;
  out->warp_size = p.warpSize;
  out->pitch = p.memPitch;
  out->threads_per_block = p.maxThreadsPerBlock;
  memcpy(out->threads_dim, p.maxThreadsDim, sizeof out->threads_dim);
  memcpy(out->grid_size, p.maxGridSize, sizeof out->grid_size);
  out->clock_khz = 1500000;
  out->constant_bytes = p.totalConstMem;
  out->major = p.major;
  out->minor = p.minor;
  out->multiprocessors = p.multiProcessorCount;
  return cudaSuccess;
}
#endif
