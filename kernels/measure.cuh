// The measuring kernel of one datatype: every CTA takes its share of the run's buckets, one after another; whoever
// comes last on a bucket writes its result.
#pragma once

#include "abi.hpp"
#include "element.cuh"
#include "memory.cuh"
#include "reduce.cuh"
#include "result.cuh"
#include "stream.cuh"

namespace gradprobe::gate {

// The part of the workspace that a launch may use, read while the launch owned it.
struct Claim {
  std::uint64_t units;  // of all buckets of the datatype; 0: nothing to do
  std::uint32_t buckets;
  std::uint32_t run;
  std::uint64_t gate_wait_ns;
};

// Reads the claim. When the run ends while a CTA without work is still reading, the next run may already be writing:
// the owner is looked at again behind the reading. With work the run can't end before this CTA took part.
__device__ inline Claim read_claim(const GateParams& params, MeasuredType type) {
  const std::uint64_t owner = launch_owner(params);
  const WorkspaceHead& head = *params.workspace;
  if (load_acquire_device(&head.owner) != owner) return {};
  const Claim claim{*const_cast<const volatile std::uint64_t*>(&head.units[type]),
                    *const_cast<const volatile std::uint32_t*>(&head.buckets[type]),
                    *const_cast<const volatile std::uint32_t*>(&head.run),
                    *const_cast<const volatile std::uint64_t*>(&head.gate_wait_ns)};
  __threadfence();
  return load_acquire_device(&head.owner) == owner ? claim : Claim{};
}

template <typename Element>
struct CtaMemory {
  float sketch[Element::kTeams * kRegisterSketch];
  ExactSums exact[kThreads];
  union {
    ScalarBlockReduce::TempStorage block;
    ScalarWarpReduce::TempStorage warp;
  } reduce;
  unsigned long long first_nonfinite;
  StreamSource source;
  Claim claim;
  ReservedResult reserved;
  std::uint32_t last;
};

// The CTA of `ctas` that holds unit `unit` of `units`.
__device__ __forceinline__ std::uint32_t cta_of_unit(std::uint64_t unit, std::uint64_t units, std::uint32_t ctas) {
  return static_cast<std::uint32_t>(((unit + 1) * ctas - 1) / units);
}

// Index of the bucket that holds `unit`.
__device__ __forceinline__ std::uint32_t bucket_of_unit(const Bucket* buckets, std::uint32_t count,
                                                        std::uint64_t unit) {
  std::uint32_t low = 0, high = count;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (buckets[middle].first_unit <= unit ? low : high) = middle;
  }
  return low;
}

// Reserves the result and shows it to the CTA. By all threads.
__device__ __forceinline__ ReservedResult reserve_for_cta(const GateParams& params, ReservedResult& shared) {
  if (threadIdx.x == 0) shared = reserve_result(params);
  __syncthreads();
  return shared;
}

// Completes the bucket's result behind its sketch and publishes it. By all threads; thread 0 has the scalars.
template <typename Element>
__device__ __forceinline__ void publish_bucket(const GateParams& params, const Claim& claim, const Bucket& bucket,
                                               const ReservedResult& reserved, PartialScalars scalars) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (Result* r = reserved.result) {
    if (params.flags & kCountZeros) {
      // The elements that fill up the bucket's last superrow were counted as zeros.
      scalars.zero_count -= (kSuperrow - bucket.count % kSuperrow) % kSuperrow;
    } else {
      scalars.zero_count = kNoElement;
    }
    write_scalars(r, params.slot_index, bucket.entry, claim.run, kMeasured, &scalars);
    r->sketch_floats = params.sketch_floats;
    r->gate_wait_ns = claim.gate_wait_ns;
    r->key = bucket.key;
    publish_result(reserved);
  }
  complete_entry(params, claim.run);
}

// What follows the streaming of one CTA's part of a bucket that lies in CTAs first...last.
template <typename Element>
__device__ __forceinline__ void finish_part(const GateParams& params, const Claim& claim, const Bucket& bucket,
                                            std::uint32_t first, std::uint32_t last, const PartialScalars& cta_scalars,
                                            CtaMemory<Element>& memory) {
  const std::uint32_t k = params.sketch_floats;
  if (first == last) {
    const ReservedResult reserved = reserve_for_cta(params, memory.reserved);
    if (k && reserved.result) fold_sketch(memory.sketch, Element::kTeams, k, reserved.sketch());
    publish_bucket<Element>(params, claim, bucket, reserved, cta_scalars);
    return;
  }

  WorkspaceHead& head = *params.workspace;
  unsigned char* workspace = reinterpret_cast<unsigned char*>(&head);
  const WorkspaceLayout layout = workspace_layout(k);
  auto* cta_partials = reinterpret_cast<PartialScalars*>(workspace + layout.cta_scalars);
  auto* cta_sketches = reinterpret_cast<float*>(workspace + layout.cta_sketches);
  const std::uint32_t row = partial_row(blockIdx.x, first);
  if (k) fold_sketch(memory.sketch, Element::kTeams, k, cta_sketches + std::uint64_t{row} * k);
  if (threadIdx.x == 0) cta_partials[row] = cta_scalars;

  const std::uint32_t block = blockIdx.x / kBlockCtas, first_block = first / kBlockCtas, last_block = last / kBlockCtas;
  const std::uint32_t low = max(first, block * kBlockCtas), high = min(last, block * kBlockCtas + kBlockCtas - 1);
  if (!arrives_last(&head.cta_tickets[partial_row(low, first)], high - low + 1, &memory.last)) return;
  PartialScalars scalars;
  if (threadIdx.x < kBlockCtas) scalars = add_scalars(cta_partials, low, high, first, memory.reduce.warp);
  if (first_block == last_block) {
    const ReservedResult reserved = reserve_for_cta(params, memory.reserved);
    if (k && reserved.result) add_sketches(cta_sketches, low, high, first, k, reserved.sketch());
    publish_bucket<Element>(params, claim, bucket, reserved, scalars);
    return;
  }

  auto* block_partials = reinterpret_cast<PartialScalars*>(workspace + layout.block_scalars);
  auto* block_sketches = reinterpret_cast<float*>(workspace + layout.block_sketches);
  const std::uint32_t block_row = partial_row(block, first_block);
  if (k) add_sketches(cta_sketches, low, high, first, k, block_sketches + std::uint64_t{block_row} * k);
  if (threadIdx.x == 0) block_partials[block_row] = scalars;
  if (!arrives_last(&head.block_tickets[first_block], last_block - first_block + 1, &memory.last)) return;
  if (threadIdx.x < kBlockCtas) {
    scalars = add_scalars(block_partials, first_block, last_block, first_block, memory.reduce.warp);
  }
  const ReservedResult reserved = reserve_for_cta(params, memory.reserved);
  if (k && reserved.result) add_sketches(block_sketches, first_block, last_block, first_block, k, reserved.sketch());
  publish_bucket<Element>(params, claim, bucket, reserved, scalars);
}

// Streams superrows begin...end - 1 of the bucket through the CTA; thread 0 gets the CTA's scalars, the register
// sketches lie in shared memory. By all threads.
template <typename Element>
__device__ __forceinline__ PartialScalars stream_part(const GateParams& params, const Bucket& bucket,
                                                      std::uint32_t begin, std::uint32_t end,
                                                      CtaMemory<Element>& memory) {
  const std::uint64_t start_ns = global_timer();
  __syncthreads();  // the previous part's readers of the shared memory are through
  if (threadIdx.x == 0) {
    memory.first_nonfinite = kNoElement;
    memory.source = {reinterpret_cast<const char*>(bucket.input), bucket.count, sketch_keys(bucket.key),
                     bucket.input % 16 == 0, (params.flags & kCountZeros) != 0};
  }
  ExactSums& exact = memory.exact[threadIdx.x];
  exact = {};
  __syncthreads();

  ThreadSums<Element> sums;
  if (params.sketch_floats) {
    stream_superrows<Element, true>(memory.source, begin, end, sums, &exact, &memory.first_nonfinite);
#pragma unroll
    for (int i = 0; i < Element::kPerVector; ++i) {
      memory.sketch[threadIdx.x * Element::kPerVector + i] = sums.sketch[i];
    }
  } else {
    stream_superrows<Element, false>(memory.source, begin, end, sums, &exact, &memory.first_nonfinite);
  }
  const std::uint32_t max_bits = max(sums.max_bits, exact.max_bits);
  const PartialScalars mine{sums.sum_squares + exact.sum_squares,
                            exact.nan_count,
                            exact.inf_count,
                            sums.zero_count,
                            kNoElement,
                            start_ns,
                            __float_as_uint(Element::decode(max_bits)),
                            0};
  PartialScalars cta = ScalarBlockReduce(memory.reduce.block).Reduce(mine, AddScalars{});
  __syncthreads();
  cta.first_nonfinite = memory.first_nonfinite;
  return cta;
}

template <typename Element>
__device__ __forceinline__ void measure(const GateParams& params, MeasuredType type) {
  __shared__ CtaMemory<Element> memory;
  if (threadIdx.x == 0) memory.claim = read_claim(params, type);
  __syncthreads();
  const Claim claim = memory.claim;
  const std::uint32_t limit = min(gridDim.x, kMaxCtas);
  const std::uint32_t ctas = claim.units < limit ? static_cast<std::uint32_t>(claim.units) : limit;
  if (blockIdx.x >= ctas) return;

  const auto* buckets = reinterpret_cast<const Bucket*>(reinterpret_cast<const unsigned char*>(params.workspace) +
                                                        workspace_layout(params.sketch_floats).buckets) +
                        type * kMaxEntries;
  std::uint64_t unit = claim.units * blockIdx.x / ctas;
  const std::uint64_t end_unit = claim.units * (blockIdx.x + 1) / ctas;
  for (std::uint32_t i = bucket_of_unit(buckets, claim.buckets, unit); unit < end_unit; ++i) {
    const Bucket bucket = buckets[i];
    const std::uint64_t bucket_end = i + 1 < claim.buckets ? buckets[i + 1].first_unit : claim.units;
    const std::uint64_t part_end = min(end_unit, bucket_end);
    const auto superrows = static_cast<std::uint32_t>((bucket.count + kSuperrow - 1) / kSuperrow);
    const auto begin = static_cast<std::uint32_t>((unit - bucket.first_unit) * Element::kTeams);
    const auto end = min(superrows, static_cast<std::uint32_t>((part_end - bucket.first_unit) * Element::kTeams));
    const PartialScalars scalars = stream_part<Element>(params, bucket, begin, end, memory);
    finish_part<Element>(params, claim, bucket, cta_of_unit(bucket.first_unit, claim.units, ctas),
                         cta_of_unit(bucket_end - 1, claim.units, ctas), scalars, memory);
    unit = part_end;
  }
}

}  // namespace gradprobe::gate
