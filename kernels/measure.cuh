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

// A CTA's part of a bucket.
struct Part {
  Bucket bucket;
  std::uint32_t begin, end;           // superrows
  std::uint32_t first_cta, last_cta;  // that hold parts of the bucket
  std::uint64_t start_ns;
};

// In shared memory lies whatever must outlive the streaming loop: its registers are all taken.
struct CtaMemory {
  union {
    ScalarBlockReduce::TempStorage block;
    ScalarWarpReduce::TempStorage warp;
  } reduce;
  Claim claim;
  const Bucket* bucket;  // of the next part
  std::uint64_t unit;    // where the next part begins
  std::uint64_t end_unit;
  std::uint32_t ctas;
  Part part;
  PartialScalars scalars;
  ReservedResult reserved;
  std::uint32_t last;
};
__device__ __forceinline__ CtaMemory& cta_memory() {
  __shared__ CtaMemory memory;
  return memory;
}

// The CTA of `ctas` that holds unit `unit` of `units`.
__device__ __forceinline__ std::uint32_t cta_of_unit(std::uint64_t unit, std::uint64_t units, std::uint32_t ctas) {
  return static_cast<std::uint32_t>(((unit + 1) * ctas - 1) / units);
}

// The bucket that holds `unit`.
__device__ __forceinline__ const Bucket* bucket_of_unit(const Bucket* buckets, std::uint32_t count,
                                                        std::uint64_t unit) {
  std::uint32_t low = 0, high = count;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (buckets[middle].first_unit <= unit ? low : high) = middle;
  }
  return buckets + low;
}

__device__ __forceinline__ const Bucket* bucket_list(const GateParams& params, MeasuredType type) {
  const auto* workspace = reinterpret_cast<const unsigned char*>(params.workspace);
  return reinterpret_cast<const Bucket*>(workspace + workspace_layout(params.sketch_floats).buckets) +
         type * kMaxEntries;
}

// Finds out what this CTA has to do. By one thread.
__device__ inline void plan_cta(const GateParams& params, MeasuredType type, CtaMemory& memory) {
  const Claim claim = read_claim(params, type);
  const std::uint32_t limit = min(gridDim.x, kMaxCtas);
  const std::uint32_t ctas = claim.units < limit ? static_cast<std::uint32_t>(claim.units) : limit;
  memory.claim = claim;
  memory.ctas = ctas;
  memory.unit = memory.end_unit = 0;
  if (blockIdx.x >= ctas) return;
  memory.unit = claim.units * blockIdx.x / ctas;
  memory.end_unit = claim.units * (blockIdx.x + 1) / ctas;
  memory.bucket = bucket_of_unit(bucket_list(params, type), claim.buckets, memory.unit);
}

// Prepares the next part. By one thread.
__device__ inline void plan_part(const GateParams& params, MeasuredType type, std::uint32_t teams, CtaMemory& memory) {
  const Claim& claim = memory.claim;
  Part& part = memory.part;
  const Bucket* bucket = memory.bucket;
  part.bucket = *bucket;
  const bool last_bucket = bucket + 1 == bucket_list(params, type) + claim.buckets;
  const std::uint64_t bucket_end = last_bucket ? claim.units : bucket[1].first_unit;
  const std::uint64_t part_end = min(memory.end_unit, bucket_end);
  const auto superrows = static_cast<std::uint32_t>((part.bucket.count + kSuperrow - 1) / kSuperrow);
  part.begin = static_cast<std::uint32_t>((memory.unit - part.bucket.first_unit) * teams);
  part.end = min(superrows, static_cast<std::uint32_t>((part_end - part.bucket.first_unit) * teams));
  part.first_cta = cta_of_unit(part.bucket.first_unit, claim.units, memory.ctas);
  part.last_cta = cta_of_unit(bucket_end - 1, claim.units, memory.ctas);
  part.start_ns = global_timer();
  memory.unit = part_end;
  memory.bucket = bucket + 1;

  StreamMemory& stream = stream_memory();
  stream.first_nonfinite = kNoElement;
  stream.source = {reinterpret_cast<const char*>(part.bucket.input), part.bucket.count, sketch_keys(part.bucket.key),
                   part.bucket.input % 16 == 0, (params.flags & kCountZeros) != 0};
}

// Adds the threads' scalars. By all threads.
template <typename Element>
__device__ __forceinline__ void gather_threads(CtaMemory& memory) {
  StreamMemory& stream = stream_memory();
  const SideSums& side = stream.side[threadIdx.x];
  const PartialScalars mine{side.sum_squares,
                            side.nan_count,
                            side.inf_count,
                            side.zero_count,
                            kNoElement,
                            kNoElement,
                            __float_as_uint(Element::decode(side.max_bits)),
                            0};
  const PartialScalars cta = ScalarBlockReduce(memory.reduce.block).Reduce(mine, AddScalars{});
  __syncthreads();
  if (threadIdx.x != 0) return;
  memory.scalars = cta;
  memory.scalars.first_nonfinite = stream.first_nonfinite;
  memory.scalars.start_ns = memory.part.start_ns;
}

// Reserves the result and shows it to the CTA. By all threads.
__device__ __forceinline__ ReservedResult reserve_for_cta(const GateParams& params, CtaMemory& memory) {
  if (threadIdx.x == 0) memory.reserved = reserve_result(params);
  __syncthreads();
  return memory.reserved;
}

// Completes the bucket's result behind its sketch and publishes it. By all threads.
__device__ inline void publish_bucket(const GateParams& params, CtaMemory& memory) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  const Bucket& bucket = memory.part.bucket;
  if (Result* r = memory.reserved.result) {
    PartialScalars& scalars = memory.scalars;
    if (params.flags & kCountZeros) {
      // The elements that fill up the bucket's last superrow were counted as zeros.
      scalars.zero_count -= (kSuperrow - bucket.count % kSuperrow) % kSuperrow;
    } else {
      scalars.zero_count = kNoElement;
    }
    write_scalars(r, params.slot_index, bucket.entry, memory.claim.run, kMeasured, &scalars);
    r->sketch_floats = params.sketch_floats;
    r->gate_wait_ns = memory.claim.gate_wait_ns;
    r->key = bucket.key;
    publish_result(memory.reserved);
  }
  complete_entry(params, memory.claim.run);
}

// Brings a CTA's part together with those of the other CTAs; the last one publishes the result. By all threads.
__device__ __noinline__ void finish_part(const GateParams& params, std::uint32_t teams) {
  CtaMemory& memory = cta_memory();
  const std::uint32_t first = memory.part.first_cta, last = memory.part.last_cta;
  const std::uint32_t k = params.sketch_floats;
  if (first == last) {
    const ReservedResult reserved = reserve_for_cta(params, memory);
    if (k && reserved.result) fold_sketch(stream_memory().sketch, teams, k, reserved.sketch());
    publish_bucket(params, memory);
    return;
  }

  WorkspaceHead& head = *params.workspace;
  unsigned char* workspace = reinterpret_cast<unsigned char*>(&head);
  const WorkspaceLayout layout = workspace_layout(k);
  auto* cta_partials = reinterpret_cast<PartialScalars*>(workspace + layout.cta_scalars);
  auto* cta_sketches = reinterpret_cast<float*>(workspace + layout.cta_sketches);
  const std::uint32_t row = partial_row(blockIdx.x, first);
  if (k) fold_sketch(stream_memory().sketch, teams, k, cta_sketches + std::uint64_t{row} * k);
  if (threadIdx.x == 0) cta_partials[row] = memory.scalars;

  const std::uint32_t block = blockIdx.x / kBlockCtas, first_block = first / kBlockCtas, last_block = last / kBlockCtas;
  const std::uint32_t low = max(first, block * kBlockCtas), high = min(last, block * kBlockCtas + kBlockCtas - 1);
  if (!arrives_last(&head.cta_tickets[partial_row(low, first)], high - low + 1, &memory.last)) return;
  add_scalars(cta_partials, low, high, first, memory.reduce.warp, &memory.scalars);
  if (first_block == last_block) {
    const ReservedResult reserved = reserve_for_cta(params, memory);
    if (k && reserved.result) add_sketches(cta_sketches, low, high, first, k, reserved.sketch());
    publish_bucket(params, memory);
    return;
  }

  auto* block_partials = reinterpret_cast<PartialScalars*>(workspace + layout.block_scalars);
  auto* block_sketches = reinterpret_cast<float*>(workspace + layout.block_sketches);
  const std::uint32_t block_row = partial_row(block, first_block);
  if (k) add_sketches(cta_sketches, low, high, first, k, block_sketches + std::uint64_t{block_row} * k);
  if (threadIdx.x == 0) block_partials[block_row] = memory.scalars;
  if (!arrives_last(&head.block_tickets[first_block], last_block - first_block + 1, &memory.last)) return;
  add_scalars(block_partials, first_block, last_block, first_block, memory.reduce.warp, &memory.scalars);
  const ReservedResult reserved = reserve_for_cta(params, memory);
  if (k && reserved.result) add_sketches(block_sketches, first_block, last_block, first_block, k, reserved.sketch());
  publish_bucket(params, memory);
}

template <typename Element>
__device__ __forceinline__ void measure(const GateParams& params, MeasuredType type) {
  CtaMemory& memory = cta_memory();
  if (threadIdx.x == 0) plan_cta(params, type, memory);
  __syncthreads();
  while (memory.unit < memory.end_unit) {
    __syncthreads();
    if (threadIdx.x == 0) plan_part(params, type, Element::kTeams, memory);
    StreamMemory& stream = stream_memory();
    stream.side[threadIdx.x] = {};
#pragma unroll
    for (int i = 0; i < Element::kPerVector; ++i) stream.sketch[threadIdx.x * Element::kPerVector + i] = 0;
    __syncthreads();
    if (params.sketch_floats) {
      stream_superrows<Element, true>(memory.part.begin, memory.part.end);
    } else {
      stream_superrows<Element, false>(memory.part.begin, memory.part.end);
    }
    gather_threads<Element>(memory);
    finish_part(params, Element::kTeams);
    __syncthreads();
  }
}

}  // namespace gradprobe::gate
