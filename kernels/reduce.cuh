// From the sums of threads to those of a CTA, and across the CTAs that share a bucket, always in the same order.
#pragma once

#include <cub/warp/warp_reduce.cuh>

#include "abi.hpp"
#include "sketch_map.cuh"

namespace gradprobe::gate {

inline constexpr std::uint64_t kNoElement = ~std::uint64_t{0};

__device__ constexpr PartialScalars empty_scalars() {
  return {0, 0, 0, 0, 0, kNoElement, 0, kNoElement};
}

struct AddScalars {
  __device__ __forceinline__ PartialScalars operator()(const PartialScalars& a, const PartialScalars& b) const {
    return {a.sum_squares + b.sum_squares,
            a.max_abs > b.max_abs ? a.max_abs : b.max_abs,
            a.nan_count + b.nan_count,
            a.inf_count + b.inf_count,
            a.zero_count + b.zero_count,
            a.first_nonfinite < b.first_nonfinite ? a.first_nonfinite : b.first_nonfinite,
            a.words + b.words,
            a.start_ns < b.start_ns ? a.start_ns : b.start_ns};
  }
};
using ThreadScalarReduce = cub::WarpReduce<PartialScalars>;
using ScalarWarpReduce = cub::WarpReduce<PartialScalars, static_cast<int>(kBlockCtas)>;

// Folds `teams` register sketches of 2048 floats in shared memory to k floats.
__device__ __forceinline__ void fold_sketch(const float* registers, std::uint32_t teams, std::uint32_t k, float* out) {
  const std::uint32_t folds = kRegisterSketch / k;
  for (std::uint32_t j = threadIdx.x; j < k; j += kThreads) {
    float sum = 0;
    for (std::uint32_t r = 0; r < teams * folds; ++r) {
      sum += registers[r * k + (j ^ (kFold[r & (folds - 1)] & (k - 1)))];
    }
    out[j] = sum;
  }
}

// Where the partial of part i of a bucket lies whose first part is `first`: parts are CTAs, or blocks of CTAs.
__device__ __forceinline__ std::uint32_t partial_row(std::uint32_t i, std::uint32_t first) {
  return 2 * i + (i == first);
}

// Adds the sketches of parts low...high.
__device__ __forceinline__ void add_sketches(const float* partials, std::uint32_t low, std::uint32_t high,
                                             std::uint32_t first, std::uint32_t k, float* out) {
  for (std::uint32_t j = 4 * threadIdx.x; j < k; j += 4 * kThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (std::uint32_t i = low; i <= high; ++i) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(partials + std::uint64_t{partial_row(i, first)} * k + j));
      sum.x += x.x;
      sum.y += x.y;
      sum.z += x.z;
      sum.w += x.w;
    }
    *reinterpret_cast<float4*>(out + j) = sum;
  }
}

// Adds the scalars of parts low...high, 16 at most, in the first half warp.
__device__ __forceinline__ void add_scalars(const PartialScalars* partials, std::uint32_t low, std::uint32_t high,
                                            std::uint32_t first, ScalarWarpReduce::TempStorage& storage,
                                            PartialScalars* sum) {
  if (threadIdx.x >= kBlockCtas) return;
  PartialScalars mine = empty_scalars();
  const std::uint32_t part = low + threadIdx.x;
  if (part <= high) {
    const PartialScalars* p = partials + partial_row(part, first);
    mine = {__ldcg(&p->sum_squares),
            __ldcg(&p->max_abs),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->nan_count)),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->inf_count)),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->zero_count)),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->first_nonfinite)),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->words)),
            __ldcg(reinterpret_cast<const unsigned long long*>(&p->start_ns))};
  }
  const PartialScalars total = ScalarWarpReduce(storage).Reduce(mine, AddScalars{});
  if (threadIdx.x == 0) *sum = total;
}

// True in the CTA that arrives as the last of `parts`; it then sees what the others wrote before. By all threads.
__device__ __forceinline__ bool arrives_last(std::uint32_t* ticket, std::uint32_t parts, std::uint32_t* shared_flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) *shared_flag = atomicInc(ticket, parts - 1) == parts - 1;
  __syncthreads();
  const bool last = *shared_flag != 0;
  if (last) __threadfence();
  return last;
}

}  // namespace gradprobe::gate
