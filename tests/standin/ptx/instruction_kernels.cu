// Kernels of instruction_test.cpp: single instructions, as inline PTX.
#include <cstdint>

// --- memory order: one block hands a value to another through memory ---
extern "C" __global__ void acquire_release(uint64_t* slots, uint64_t* out, int rounds) {
  // block 0 writes the data, then the flag; block 1 waits for the flag, then reads the data
  uint64_t* data = slots;
  uint32_t* flag = reinterpret_cast<uint32_t*>(slots + 8);
  uint32_t* ack = reinterpret_cast<uint32_t*>(slots + 9);
  for (uint32_t r = 1; r <= static_cast<uint32_t>(rounds); r++) {
    uint32_t seen;
    if (blockIdx.x == 0) {
      *data = r * 1000ull;
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(r) : "memory");
      do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(ack) : "memory");
      while (seen != r);
    } else {
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      while (seen != r);
      out[r - 1] = *data;
      asm volatile("fence.acq_rel.sys;" ::: "memory");
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(ack), "r"(r) : "memory");
    }
  }
}

// --- atomics: many threads, each operation on a place of its own; `old` must be a permutation of what was there ---
extern "C" __global__ void atomic_forms(uint32_t* w, uint64_t* q, float* f, double* d, uint32_t* old) {
  uint32_t t = blockIdx.x * blockDim.x + threadIdx.x, r;
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(w + 0), "r"(t) : "memory");
  asm volatile("red.release.sys.global.max.u32 [%0], %1;" ::"l"(w + 1), "r"(t) : "memory");
  asm volatile("red.global.min.s32 [%0], %1;" ::"l"(w + 2), "r"(-static_cast<int>(t)) : "memory");
  asm volatile("red.global.or.b32 [%0], %1;" ::"l"(w + 3), "r"(1u << (t & 31)) : "memory");
  asm volatile("red.global.and.b32 [%0], %1;" ::"l"(w + 4), "r"(~(1u << (t & 15))) : "memory");
  asm volatile("red.global.xor.b32 [%0], %1;" ::"l"(w + 5), "r"(t * 2654435761u) : "memory");
  asm volatile("red.global.inc.u32 [%0], %1;" ::"l"(w + 6), "r"(6) : "memory");
  asm volatile("red.global.dec.u32 [%0], %1;" ::"l"(w + 7), "r"(6) : "memory");
  asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(w + 8), "r"(1) : "memory");
  old[t] = r;
  asm volatile("atom.global.exch.b32 %0, [%1], %2;" : "=r"(r) : "l"(w + 9), "r"(t + 1) : "memory");
  old[blockDim.x * gridDim.x + t] = r;
  // increments by compare and swap
  uint32_t expected = 0, found;
  for (;;) {
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(found)
                 : "l"(w + 10), "r"(expected), "r"(expected + 3)
                 : "memory");
    if (found == expected) break;
    expected = found;
  }
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(q + 0), "l"(static_cast<uint64_t>(t) << 33) : "memory");
  asm volatile("red.global.max.s64 [%0], %1;" ::"l"(q + 1), "l"(static_cast<int64_t>(t) - 5000000000ll) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(f), "f"(0.5f * static_cast<float>(t)) : "memory");
  asm volatile("red.global.add.f64 [%0], %1;" ::"l"(d), "d"(0.25 * t) : "memory");
  // the same in shared memory
  __shared__ uint32_t s[2];
  if (threadIdx.x < 2) s[threadIdx.x] = 0;
  __syncthreads();
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(s))), "r"(t)
               : "memory");
  atomicMax(&s[1], t);
  __syncthreads();
  if (threadIdx.x < 2) atomicAdd(&w[11 + threadIdx.x], s[threadIdx.x]);
}

// --- permutations and shifts ---
#define PRMT(SLOT, MODE) asm("prmt.b32" MODE " %0, %1, %2, %3;" : "=r"(o[SLOT]) : "r"(a), "r"(b), "r"(c))
extern "C" __global__ void permute_and_shift(const uint32_t* in, uint32_t* out, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  uint32_t a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], *o = out + 12 * i;
  PRMT(0, "");
  PRMT(1, ".f4e");
  PRMT(2, ".b4e");
  PRMT(3, ".rc8");
  PRMT(4, ".ecl");
  PRMT(5, ".ecr");
  PRMT(6, ".rc16");
  asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(o[7]) : "r"(a), "r"(b), "r"(c));
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(o[8]) : "r"(a), "r"(b), "r"(c));
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(o[9]) : "r"(a), "r"(b), "r"(c));
  asm("shf.r.clamp.b32 %0, %1, %2, %3;" : "=r"(o[10]) : "r"(a), "r"(b), "r"(c));
  asm("lop3.b32 %0, %1, %2, %3, 0xd2;" : "=r"(o[11]) : "r"(a), "r"(b), "r"(c));
}

// --- conversions between 32-bit and 16-bit floating point: every 16-bit value ---
extern "C" __global__ void widen(uint32_t* out) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  auto h = static_cast<uint16_t>(i);
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  out[2 * i] = __float_as_uint(f);
#if __CUDA_ARCH__ >= 900
  asm("cvt.f32.bf16 %0, %1;" : "=f"(f) : "h"(h));
#else
  asm("mov.b32 %0, {%1, %2};" : "=f"(f) : "h"(static_cast<uint16_t>(0)), "h"(h));
#endif
  out[2 * i + 1] = __float_as_uint(f);
}

// --- loads past the first-level cache, as vectors ---
extern "C" __global__ void streaming_loads(const float4* in, float4* out, const uint64_t* in64, uint64_t* out64) {
  uint32_t t = threadIdx.x;
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(in + t));
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(out + t), "f"(v.w), "f"(v.z), "f"(v.y), "f"(v.x)
               : "memory");
  uint64_t x, y;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(in64 + 2 * t));
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(out64 + 2 * t), "l"(y), "l"(x) : "memory");
}

// --- warp reductions (8.0) and packed maxima (8.6 has xorsign for bf16x2) ---
#if __CUDA_ARCH__ >= 800
extern "C" __global__ void warp_reductions(const uint32_t* in, uint32_t* out) {
  uint32_t v = in[threadIdx.x], r;
  uint32_t* o = out + 8 * threadIdx.x;
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(o[0]) : "r"(v));
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(o[1]) : "r"(v));
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(o[2]) : "r"(v));
  asm volatile("redux.sync.and.b32 %0, %1, 0xffffffff;" : "=r"(o[3]) : "r"(v));
  asm volatile("redux.sync.xor.b32 %0, %1, 0xffffffff;" : "=r"(o[4]) : "r"(v));
  if (threadIdx.x & 1)
    asm volatile("redux.sync.or.b32 %0, %1, 0xaaaaaaaa;" : "=r"(r) : "r"(v));
  else
    asm volatile("redux.sync.min.s32 %0, %1, 0x55555555;" : "=r"(r) : "r"(v));
  o[5] = r;
}
#endif
#if __CUDA_ARCH__ >= 860
extern "C" __global__ void packed_maxima(const uint32_t* in, uint32_t* out, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  uint32_t a = in[2 * i], b = in[2 * i + 1], *o = out + 5 * i;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(o[0]) : "r"(a), "r"(b));
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(o[1]) : "r"(a), "r"(b));
  asm("min.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(o[2]) : "r"(a), "r"(b));
  asm("max.f16x2 %0, %1, %2;" : "=r"(o[3]) : "r"(a), "r"(b));
  asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=r"(o[4]) : "r"(a), "r"(b));
}
#endif
// --- pairs of floats (10.0) ---
#if __CUDA_ARCH__ >= 1000
extern "C" __global__ void float_pairs(const uint64_t* in, uint64_t* out, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  uint64_t a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], *o = out + 3 * i;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(o[0]) : "l"(a), "l"(b), "l"(c));
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(o[1]) : "l"(a), "l"(b));
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(o[2]) : "l"(a), "l"(b));
}
#endif
