// Memory accesses that CUDA C++ can't name: scopes and orders towards the host, cache policies of the stream of input.
#pragma once

#include <cstdint>

namespace gradprobe::gate {

__device__ __forceinline__ std::uint64_t global_timer() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ __forceinline__ std::uint32_t load_acquire_system(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ std::uint64_t load_acquire_system(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release_system(std::uint32_t* p, std::uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store_release_system(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ std::uint64_t load_acquire_device(const std::uint64_t* p) {
  std::uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_release_device(std::uint64_t* p, std::uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Between two looks at a word that another CTA or the host will change.
__device__ __forceinline__ void pause() {
  __nanosleep(100);
}

// 16 bytes of mapped host memory, past every cache that could hold an earlier run's value.
__device__ __forceinline__ ulonglong2 load_host(const void* p) {
  ulonglong2 v;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
  return v;
}

// The input is read once and no kernel writes it meanwhile. Volatile keeps a batch of loads together.
__device__ __forceinline__ uint4 load_streaming(const char* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// Zeros without touching memory if not `wanted`.
__device__ __forceinline__ uint4 load_cached_if(bool wanted, const char* p) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(p), "r"(std::uint32_t{wanted}));
  return v;
}

}  // namespace gradprobe::gate
