// Kernels of exec_test.cpp: memory, warps, barriers, atomics, functions.
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
namespace cg = cooperative_groups;
typedef unsigned long long ull;

extern "C" __global__ void vadd(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void reduce_sum(const int* in, int* out, int n) {
  __shared__ int s[256];
  int t = threadIdx.x, v = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) v += in[i];
  s[t] = v;
  __syncthreads();
  for (int d = blockDim.x / 2; d; d >>= 1) {
    if (t < d) s[t] += s[t + d];
    __syncthreads();
  }
  if (t == 0) atomicAdd(out, s[0]);
}
extern "C" __global__ void dynshared(const int* in, int* out) {
  extern __shared__ int d[];
  __shared__ int st[32];
  d[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x < 32) st[threadIdx.x] = threadIdx.x * 3;
  __syncthreads();
  int* g = d;  // generic pointer to shared memory
  out[threadIdx.x] = g[blockDim.x - 1 - threadIdx.x] + st[threadIdx.x & 31];
}
extern "C" __global__ void histogram(const unsigned char* in, unsigned* out, int n) {
  __shared__ unsigned h[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[in[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], h[i]);
}
extern "C" __global__ void shuffles(int* out) {
  int l = threadIdx.x & 31, v = l * l + 1;
  int* o = out + threadIdx.x * 16;
  o[0] = __shfl_sync(~0u, v, 5);
  o[1] = __shfl_up_sync(~0u, v, 3);
  o[2] = __shfl_down_sync(~0u, v, 7);
  o[3] = __shfl_xor_sync(~0u, v, 9);
  o[4] = __shfl_sync(~0u, v, l + 1, 8);
  o[5] = __shfl_up_sync(~0u, v, 2, 16);
  o[6] = __shfl_down_sync(~0u, v, 2, 4);
  o[7] = __ballot_sync(~0u, l % 3 == 0);
  o[8] = __any_sync(~0u, l == 40) * 2 + __all_sync(~0u, l < 32);
  o[9] = __match_any_sync(~0u, l / 5);
  int p;
  o[10] = __match_all_sync(~0u, 7, &p) + p;
  int sum = v, most = -v;
  for (int d = 16; d; d >>= 1) {
    sum += __shfl_xor_sync(~0u, sum, d);
    most = max(most, __shfl_xor_sync(~0u, most, d));
  }
  o[11] = sum;
  o[12] = most;
  if (l & 1)
    o[13] = __shfl_sync(0xaaaaaaaau, v, (l + 2) & 31);
  else
    o[13] = __shfl_sync(0x55555555u, v, (l + 4) & 31);
  double dv = v * 0.5;
  o[14] = (int)(__shfl_xor_sync(~0u, dv, 1) * 2);
  auto t = cg::tiled_partition<8>(cg::this_thread_block());
  int s = v;
  for (int d = 4; d; d >>= 1) s += t.shfl_down(s, d);
  o[15] = t.thread_rank() == 0 ? s : -1;
}
extern "C" __global__ void diverge(const int* in, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = in[i], steps = 0;
  if (x < 0) {
    out[i] = -1;
    return;
  }
  while (x != 1 && x != 0) {
    x = (x & 1) ? 3 * x + 1 : x / 2;
    steps++;
    if (steps > 500) {
      out[i] = -2;
      return;
    }
  }
  switch (i % 7) {
    case 0:
      steps += 10;
      break;
    case 1:
      steps *= 2;
      break;
    case 2:
      steps -= 3;
      break;
    case 3:
      steps ^= 5;
      break;
    case 4:
      for (int k = 0; k < i % 13; k++) steps += k;
      break;
    case 5:
      steps = -steps;
      break;
    default:
      steps += 1000;
  }
  unsigned act = __activemask();
  out[i] = steps + 0 * act;
}
extern "C" __global__ void spin_host(volatile int* flag, int* out) {
  if (threadIdx.x == 0) {
    while (*flag == 0) {
    }
    *out = *flag * 2;
  }
  __syncthreads();
  out[1 + threadIdx.x] = out[0];
}
// block 1 waits for block 0 and the reverse, many times; higher block numbers start the chain
extern "C" __global__ void ping_pong(int* flags, int* out, int rounds) {
  int me = blockIdx.x, other = me ^ 1;
  volatile int* f = flags;
  if (threadIdx.x == 0) {
    for (int r = 1; r <= rounds; r++) {
      if (me & 1) {
        f[me] = r;
        __threadfence();
        while (f[other] < r) {
        }
      } else {
        while (f[other] < r) {
        }
        f[me] = r;
        __threadfence();
      }
    }
    out[me] = f[other];
  }
}
// lanes of one warp that wait for each other
extern "C" __global__ void lane_spin(volatile int* f, int* out) {
  int t = threadIdx.x;
  if (t & 1) {
    while (f[t - 1] == 0) {
    }
    out[t] = f[t - 1] + 1;
  } else {
    for (int i = 0; i < 1000; i++) out[t] += i;
    __threadfence();
    f[t] = t + 100;
  }
}
extern "C" __global__ void lock_test(int* lock, int* count) {
  for (int i = 0; i < 3; i++) {
    bool done = false;
    while (!done) {
      if (atomicCAS(lock, 0, 1) == 0) {
        __threadfence();
        volatile int* c = count;
        *c = *c + 1;
        __threadfence();
        atomicExch(lock, 0);
        done = true;
      }
    }
  }
}
__device__ __forceinline__ void bar_sync(int id, int n) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int n) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_sync(int id, int n) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ __forceinline__ int bar_or(int x, int id, int n) {
  int r;
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; barrier.red.or.pred p, %2, %3, p; selp.s32 %0, 1, 0, p; }"
               : "=r"(r)
               : "r"(x), "r"(id), "r"(n)
               : "memory");
  return r;
}
extern "C" __global__ void named_barriers(int* out) {  // 256 threads: two halves, producers and consumers
  __shared__ volatile int buf[128];
  __shared__ volatile int half_sum[2];
  int t = threadIdx.x, g = t / 128, l = t % 128;
  if (g == 0) {
    for (int r = 0; r < 20; r++) {
      barrier_sync(3, 256);
      buf[l] = r * 1000 + l;
      __threadfence_block();
      bar_arrive(4, 256);
    }
  } else {
    for (int r = 0; r < 20; r++) {
      barrier_sync(3, 256);
      bar_sync(4, 256);
      int v = buf[127 - l];
      out[r * 128 + l] = v;
    }
  }
  int o = bar_or(t == 200, 5 + g, 128);
  out[20 * 128 + t] = o;
  int c = __syncthreads_count(t % 3 == 0), a = __syncthreads_and(t < 256), b = __syncthreads_or(t == 300);
  out[20 * 128 + 256 + t] = c * 4 + a * 2 + b;
  if (l == 0) half_sum[g] = g + 1;
  bar_sync(8 + g, 128);
  out[20 * 128 + 512 + t] = half_sum[g];
}
extern "C" __global__ void partial_exit(int* out) {  // threads that left no longer count
  int t = threadIdx.x;
  if (t % 5 == 4) return;
  __shared__ int s;
  if (t == 0) s = 77;
  __syncthreads();
  out[t] = s;
}
extern "C" __global__ void vectors(const int4* a, int4* b, const longlong2* c, longlong2* d, const uchar4* e,
                                   short2* f) {
  int i = threadIdx.x;
  int4 v = a[i];
  v.x += v.w;
  v.y ^= v.z;
  b[i] = v;
  longlong2 w = c[i];
  ull x = w.x, y = w.y;
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(&d[i]), "l"(y), "l"(x) : "memory");
  uchar4 q = e[i];
  f[i] = make_short2(q.x + q.y, (short)(q.z - q.w));
  ull l0, l1;
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(l0), "=l"(l1) : "l"(&d[i]) : "memory");
  unsigned r0, r1, r2, r3;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
               : "l"(&d[i])
               : "memory");
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&d[i]), "l"(l0 + l1 + r0 + r1 + r2 + r3) : "memory");
}
extern "C" __global__ void atomics(int* i, unsigned* u, ull* q, float* f, double* d) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], t);
  atomicMin(&i[1], -t);
  atomicMax(&i[2], t);
  atomicXor(&i[3], t);
  atomicAnd(&i[4], ~(t & 8));
  atomicOr(&i[5], t);
  atomicInc(&u[0], 9);
  atomicDec(&u[1], 6);
  atomicMin(&u[2], 4000000000u - t);
  atomicMax(&u[3], 3000000000u + t);
  atomicAdd(&q[0], (ull)t << 32);
  atomicMax(&q[1], (ull)t * 5000000000ull);
  atomicCAS(&q[2], 0ull, (ull)t + 1);
  atomicAdd(f, 0.5f * t);
  atomicAdd(d, 0.25 * t);
  atomicAdd(&d[1], 1.0);
  u[4 + t] = atomicAdd(&u[4 + 1024], 1);
}
extern "C" __global__ void print_it(int x) {
  if (threadIdx.x < 2) printf("t%d x=%d %s %5.2f %llx %c%%\n", threadIdx.x, x, "str", 1.5 * x, 0x123456789abcull, 'z');
}
struct Big {
  int a[20];
  double d;
  char c[7];
};
__device__ __noinline__ Big twist(Big b, int k) {
  for (int i = 0; i < 20; i++) b.a[i] = b.a[19 - i] + k;
  b.d *= 2;
  b.c[k % 7] = 'x';
  return b;
}
extern "C" __global__ void structs(Big in, Big* out) {
  Big r = twist(in, threadIdx.x);
  out[threadIdx.x] = r;
}
extern "C" __global__ void local_mem(const int* idx, int* out) {
  int a[64];
  for (int i = 0; i < 64; i++) a[i] = i * threadIdx.x;
  int s = 0;
  for (int i = 0; i < 64; i++) {
    a[idx[i] & 63] += i;
    s += a[(idx[i] * 7) & 63];
  }
  out[threadIdx.x] = s;
}
extern "C" __global__ void grid_sync(int* a, int* out) {
  cg::grid_group g = cg::this_grid();
  if (threadIdx.x == 0) a[blockIdx.x] = blockIdx.x + 1;
  g.sync();
  int s = 0;
  for (int i = 0; i < gridDim.x; i++) s += ((volatile int*)a)[i];
  g.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = s;
}
__device__ int gvar = 41;
__constant__ int cvar[4] = {1, 2, 3, 4};
__device__ int* gptr = &gvar;
__device__ int garr[1000];
extern "C" __global__ void globals(int* out) {
  out[0] = *gptr + cvar[threadIdx.x & 3];
  garr[threadIdx.x] = threadIdx.x;
  gvar = 50;
}
__device__ __noinline__ int fact(int n) {
  return n <= 1 ? 1 : n * fact(n - 1);
}
extern "C" __global__ void recurse(int* out) {
  out[threadIdx.x] = fact(threadIdx.x % 10);
}
extern "C" __global__ void warp_ring(volatile unsigned long long* slots, unsigned* out, int n, int rounds) {
  // every warp of every block hands numbers to the next, eight bytes of data and flag in one store
  int W = gridDim.x * (blockDim.x / 32), w = (blockIdx.x * blockDim.x + threadIdx.x) / 32, l = threadIdx.x & 31;
  unsigned acc = w + l;
  for (int r = 1; r <= rounds; r++) {
    unsigned long long v = (unsigned long long)r << 32 | acc;
    asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(slots + (r * W + (w + 1) % W) * 32 + l),
                 "r"((unsigned)v), "r"((unsigned)(v >> 32))
                 : "memory");
    unsigned d, f;
    do
      asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];"
                   : "=r"(d), "=r"(f)
                   : "l"(slots + (r * W + w) * 32 + l)
                   : "memory");
    while (f != (unsigned)r);
    acc = d * 3 + 1;
    __syncwarp();
  }
  out[w * 32 + l] = acc;
}
