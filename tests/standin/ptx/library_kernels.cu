// Kernels of library_test.cpp: what CUB, cooperative groups and libcu++ make of warps, barriers and atomics.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
template <cub::BlockReduceAlgorithm A>
__device__ void blk(const int* in, int* out) {
  using BR = cub::BlockReduce<int, 128, A>;
  __shared__ typename BR::TempStorage ts;
  int v = in[blockIdx.x * 128 + threadIdx.x];
  int s = BR(ts).Sum(v);
  if (threadIdx.x == 0) out[blockIdx.x] = s;
}
extern "C" __global__ void cub_block_warp(const int* in, int* out) {
  blk<cub::BLOCK_REDUCE_WARP_REDUCTIONS>(in, out);
}
extern "C" __global__ void cub_block_rake(const int* in, int* out) {
  blk<cub::BLOCK_REDUCE_RAKING>(in, out);
}
extern "C" __global__ void cub_warp(const float* in, float* out) {
  using WR = cub::WarpReduce<float>;
  __shared__ WR::TempStorage ts[4];
  int w = threadIdx.x / 32;
  float r = WR(ts[w]).Reduce(in[threadIdx.x], [](float a, float b) { return a > b ? a : b; });
  if (threadIdx.x % 32 == 0) out[w] = r;
}
extern "C" __global__ void cub_scan(const int* in, int* out) {
  using BS = cub::BlockScan<int, 128>;
  __shared__ BS::TempStorage ts;
  int v[4];
  for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x * 4 + i];
  BS(ts).ExclusiveSum(v, v);
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = v[i];
}
extern "C" __global__ void cub_sort(const unsigned* in, unsigned* out) {
  using S = cub::BlockRadixSort<unsigned, 128, 4>;
  __shared__ S::TempStorage ts;
  unsigned v[4];
  for (int i = 0; i < 4; i++) v[i] = in[threadIdx.x * 4 + i];
  S(ts).Sort(v);
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = v[i];
}

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda/barrier>
namespace cg = cooperative_groups;
extern "C" __global__ void async_copy(const int* in, int* out) {
  __shared__ alignas(16) int buf[256];
  auto b = cg::this_thread_block();
  cg::memcpy_async(b, buf, in, sizeof(int) * 256);
  cg::wait(b);
  out[threadIdx.x] = buf[255 - threadIdx.x];
}
extern "C" __global__ void mbar(const int* in, int* out) {
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ alignas(Barrier) char storage[sizeof(Barrier)];
  Barrier& bar = *reinterpret_cast<Barrier*>(storage);
  __shared__ int buf[128];
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  for (int r = 0; r < 5; r++) {
    buf[threadIdx.x] = in[threadIdx.x] + r;
    auto tok = bar.arrive();
    bar.wait(std::move(tok));
    out[r * 128 + threadIdx.x] = buf[127 - threadIdx.x];
    bar.arrive_and_wait();
  }
}
extern "C" __global__ void sys_atomics(int* p, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_system> a(p[0]);
  a.fetch_add(1, cuda::memory_order_acq_rel);
  if (threadIdx.x == 0) {
    while (a.load(cuda::memory_order_acquire) < (int)(gridDim.x * blockDim.x)) {
    }
    out[blockIdx.x] = a.load();
  }
  cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> q(*(unsigned long long*)(p + 2));
  q.fetch_max(threadIdx.x * 10ull);
  int e = 5;
  cuda::atomic_ref<int> c(p[4]);
  c.compare_exchange_strong(e, threadIdx.x);
}
extern "C" __global__ void cg_things(int* out) {
  auto b = cg::this_thread_block();
  auto w = cg::tiled_partition<32>(b);
  int s = cg::reduce(w, (int)threadIdx.x, cg::plus<int>());
  if (threadIdx.x % 3 == 0) {
    auto c = cg::coalesced_threads();
    int k = cg::reduce(c, 1, cg::plus<int>());
    out[threadIdx.x] = k * 1000 + c.thread_rank() + c.shfl(s, 0) * 100000;
  } else
    out[threadIdx.x] = s;
}
