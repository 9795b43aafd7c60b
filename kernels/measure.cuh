// The measuring kernel: every CTA takes its share of the run's buckets, one after another; whoever comes last on a
// bucket writes its result.
#pragma once

#include "abi.hpp"
#include "element.cuh"
#include "gate.cuh"
#include "memory.cuh"
#include "reduce.cuh"
#include "result.cuh"
#include "stream.cuh"

namespace gradprobe::gate {

// A CTA's part of a bucket.
struct Part {
  Bucket bucket;
  std::uint32_t begin, end;           // superrows
  std::uint32_t first_cta, last_cta;  // that hold parts of the bucket
  std::uint32_t teams;                // superrows that the CTA streams side by side
  std::uint64_t start_ns;
};

// In shared memory lies whatever must outlive the streaming loop: its registers are all taken.
struct CtaMemory {
  union {
    PartialScalars warps[kWarps];
    ScalarWarpReduce::TempStorage warp;
  } reduce;
  Run run;
  const Bucket* bucket;  // of the next part
  std::uint64_t unit;    // where the next part begins
  std::uint64_t end_unit;
  std::uint32_t ctas;  // that have work
  std::uint32_t half;  // whose superrows are streamed: 0, 1 or kAllSuperrows
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

// The sketch partials of CTAs: partial_row(cta, first) * k floats on.
__device__ __forceinline__ float* cta_sketches(const GateParams& params) {
  return reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(params.workspace) + layout_of(params).cta_sketches);
}

// Finds out what this CTA has to do. By one thread.
__device__ inline void plan_cta(const GateParams& params, CtaMemory& memory) {
  const Run run = await_decision(params, pass_memory().role);
  const std::uint32_t limit = min(gridDim.x, params.workspace_ctas);
  const std::uint32_t ctas = run.units < limit ? static_cast<std::uint32_t>(run.units) : limit;
  const std::uint32_t cta = pass_memory().role.cta;
  memory.run = run;
  memory.ctas = ctas;
  memory.unit = memory.end_unit = 0;
  if (cta >= ctas) return;
  memory.unit = run.units * cta / ctas;
  memory.end_unit = run.units * (cta + 1) / ctas;
  memory.bucket = bucket_of_unit(bucket_list(params), run.buckets, memory.unit);
}

__device__ __forceinline__ std::uint32_t bytes_of(std::uint32_t type) {
  return type == kTypeF64 ? 8 : type == kTypeF32 ? 4 : type >= kTypeF8E4m3 ? 1 : 2;
}

// Prepares the next part. By one thread.
__device__ inline void plan_part(const GateParams& params, CtaMemory& memory) {
  Part& part = memory.part;
  const Bucket* bucket = memory.bucket;
  part.bucket = *bucket;
  const bool last_bucket = bucket + 1 == bucket_list(params) + memory.run.buckets;
  const std::uint64_t bucket_end = last_bucket ? memory.run.units : bucket[1].first_unit;
  const std::uint64_t part_end = min(memory.end_unit, bucket_end);
  const auto superrows = static_cast<std::uint32_t>((part.bucket.count + kSuperrow - 1) / kSuperrow);
  part.teams = unit_superrows(bytes_of(part.bucket.datatype));
  part.begin = static_cast<std::uint32_t>((memory.unit - part.bucket.first_unit) * part.teams);
  // The only unit of a small bucket holds all of its superrows.
  part.end =
      part_end == bucket_end ? superrows : static_cast<std::uint32_t>((part_end - part.bucket.first_unit) * part.teams);
  part.first_cta = cta_of_unit(part.bucket.first_unit, memory.run.units, memory.ctas);
  part.last_cta = cta_of_unit(bucket_end - 1, memory.run.units, memory.ctas);
  part.start_ns = global_timer();
  memory.unit = part_end;
  memory.bucket = bucket + 1;

  memory.half = params.sketch_floats > kRegisterSketch ? 0 : kAllSuperrows;
  StreamMemory& stream = stream_memory();
  stream.first_nonfinite = kNoElement;
  stream.source = {reinterpret_cast<const char*>(part.bucket.address),
                   part.bucket.count,
                   sketch_keys(part.bucket.key),
                   part.bucket.address % 16 == 0,
                   (params.flags & kCountZeros) != 0,
                   params.pass == kResultPass};
}

// Adds the threads' scalars. By all threads.
template <typename Element>
__device__ __forceinline__ void gather_threads() {
  CtaMemory& memory = cta_memory();
  ThreadScalarReduce::TempStorage nothing;  // whole warps exchange by shuffles
  const PartialScalars warp = ThreadScalarReduce(nothing).Reduce(thread_scalars<Element>(), AddScalars{});
  if (thread_index() % 32 == 0) memory.reduce.warps[thread_index() / 32] = warp;
  __syncthreads();
  if (thread_index() >= kWarps) return;
  static_assert(kWarps == kBlockCtas);
  const PartialScalars mine = memory.reduce.warps[thread_index()];
  __syncwarp(0xffff);
  const PartialScalars cta = ScalarWarpReduce(memory.reduce.warp).Reduce(mine, AddScalars{});
  if (thread_index() != 0) return;
  memory.scalars = cta;
  memory.scalars.first_nonfinite = stream_memory().first_nonfinite;
  memory.scalars.start_ns = memory.part.start_ns;
}

// A sketch of 4096 floats is made in two halves of 2048, each of its own superrows: keeps the one that was streamed.
// True when the other is left. By all threads.
static __device__ __noinline__ bool next_half() {
  CtaMemory& memory = cta_memory();
  const std::uint32_t half = memory.half;
  if (half == kAllSuperrows) return false;
  const GateParams& params = pass_memory().params;
  const std::uint32_t row = partial_row(pass_memory().role.cta, memory.part.first_cta);
  __syncthreads();
  fold_sketch(stream_memory().sketch, memory.part.teams, kRegisterSketch,
              cta_sketches(params) + std::uint64_t{row} * params.sketch_floats + half * kRegisterSketch);
  if (thread_index() == 0) memory.half = half + 1;
  __syncthreads();
  return half == 0;
}

// Measures the CTA's part: the register sketches stay in shared memory, or with 4096 floats go to the workspace. Not
// inlined: nothing around it may take registers from the streaming loops.
template <typename Element>
__device__ __noinline__ void measure_part() {
  CtaMemory& memory = cta_memory();
  clear_sums<Element>();
  __syncthreads();
  for (;;) {
    stream_superrows<Element>(memory.part.begin, memory.part.end, memory.half, pass_memory().params.sketch_floats != 0);
    if (!next_half()) break;
    clear_sketch<Element>();
  }
  gather_threads<Element>();
}

// Reserves the result and shows it to the CTA. By all threads.
__device__ __forceinline__ ReservedResult reserve_for_cta(const GateParams& params, CtaMemory& memory) {
  if (thread_index() == 0) memory.reserved = reserve_result(params);
  __syncthreads();
  return memory.reserved;
}

// Completes the bucket's result behind its sketch and publishes it. By all threads.
__device__ inline void publish_bucket(const GateParams& params, CtaMemory& memory) {
  __syncthreads();
  if (thread_index() != 0) return;
  Result* r = memory.reserved.result;
  if (!r) return;
  const Bucket& bucket = memory.part.bucket;
  PartialScalars& scalars = memory.scalars;
  // The elements that fill up the bucket's last superrow were counted as zeros.
  scalars.zero_count -= (kSuperrow - bucket.count % kSuperrow) % kSuperrow;
  write_scalars(params, r, {bucket.entry, memory.run.number, memory.run.wait_ns, bucket.key}, kMeasured, &scalars);
  r->sketch_floats = params.sketch_floats;
  publish_result(memory.reserved);
}

// Brings a CTA's part together with those of the other CTAs; the last one publishes the result. By all threads.
static __device__ __noinline__ void finish_part() {
  const GateParams& params = pass_memory().params;
  CtaMemory& memory = cta_memory();
  const std::uint32_t first = memory.part.first_cta, last = memory.part.last_cta, cta = pass_memory().role.cta;
  const std::uint32_t k = params.sketch_floats, teams = memory.part.teams;
  const bool in_registers = k != 0 && k <= kRegisterSketch;
  float* const sketches = cta_sketches(params);
  if (first == last) {
    const ReservedResult reserved = reserve_for_cta(params, memory);
    if (reserved.result) {
      if (in_registers) fold_sketch(stream_memory().sketch, teams, k, reserved.sketch());
      if (k > kRegisterSketch) add_sketches(sketches, cta, cta, first, k, reserved.sketch());
    }
    publish_bucket(params, memory);
    return;
  }

  WorkspaceHead& head = *params.workspace;
  unsigned char* workspace = reinterpret_cast<unsigned char*>(&head);
  const WorkspaceLayout layout = layout_of(params);
  auto* cta_partials = reinterpret_cast<PartialScalars*>(workspace + layout.cta_scalars);
  const std::uint32_t row = partial_row(cta, first);
  if (in_registers) fold_sketch(stream_memory().sketch, teams, k, sketches + std::uint64_t{row} * k);
  if (thread_index() == 0) cta_partials[row] = memory.scalars;

  const std::uint32_t block = cta / kBlockCtas, first_block = first / kBlockCtas, last_block = last / kBlockCtas;
  const std::uint32_t low = max(first, block * kBlockCtas), high = min(last, block * kBlockCtas + kBlockCtas - 1);
  if (!arrives_last(&head.cta_tickets[partial_row(low, first)], high - low + 1, &memory.last)) return;
  add_scalars(cta_partials, low, high, first, memory.reduce.warp, &memory.scalars);
  if (first_block == last_block) {
    const ReservedResult reserved = reserve_for_cta(params, memory);
    if (k && reserved.result) add_sketches(sketches, low, high, first, k, reserved.sketch());
    publish_bucket(params, memory);
    return;
  }

  auto* block_partials = reinterpret_cast<PartialScalars*>(workspace + layout.block_scalars);
  auto* block_sketches = reinterpret_cast<float*>(workspace + layout.block_sketches);
  const std::uint32_t block_row = partial_row(block, first_block);
  if (k) add_sketches(sketches, low, high, first, k, block_sketches + std::uint64_t{block_row} * k);
  if (thread_index() == 0) block_partials[block_row] = memory.scalars;
  if (!arrives_last(&head.block_tickets[first_block], last_block - first_block + 1, &memory.last)) return;
  add_scalars(block_partials, first_block, last_block, first_block, memory.reduce.warp, &memory.scalars);
  const ReservedResult reserved = reserve_for_cta(params, memory);
  if (k && reserved.result) add_sketches(block_sketches, first_block, last_block, first_block, k, reserved.sketch());
  publish_bucket(params, memory);
}

template <typename Element>
inline constexpr MeasuredType kTypeOf = kTypeNone;
template <>
inline constexpr MeasuredType kTypeOf<F64> = kTypeF64;
template <>
inline constexpr MeasuredType kTypeOf<F32> = kTypeF32;
template <>
inline constexpr MeasuredType kTypeOf<F16> = kTypeF16;
template <>
inline constexpr MeasuredType kTypeOf<Bf16> = kTypeBf16;
template <>
inline constexpr MeasuredType kTypeOf<F8E4m3> = kTypeF8E4m3;
template <>
inline constexpr MeasuredType kTypeOf<F8E5m2> = kTypeF8E5m2;

// Takes this CTA's part in the pass: its role, and what it has to do. By all threads.
__device__ __forceinline__ void begin_pass() {
  PassMemory& pass = pass_memory();
  if (thread_index() == 0) pass.role = arrive(pass.params);
  __syncthreads();
  if (pass.role.cta == 0) lead();
  if (thread_index() == 0) plan_cta(pass.params, cta_memory());
  __syncthreads();
}

// A whole pass, for buckets of the given datatypes. By all threads.
template <typename... Elements>
__device__ __forceinline__ void measure(const GateParams& params) {
  if (thread_index() == 0) {
    pass_memory().params = params;
    pass_memory().types = ((1u << kTypeOf<Elements>) | ...);
  }
  begin_pass();
  CtaMemory& memory = cta_memory();
  while (memory.unit < memory.end_unit) {
    __syncthreads();
    if (thread_index() == 0) plan_part(pass_memory().params, memory);
    __syncthreads();
    if constexpr (sizeof...(Elements) == 1) {
      (measure_part<Elements>(), ...);
    } else {
      const std::uint32_t type = memory.part.bucket.datatype;
      ((type == kTypeOf<Elements> ? measure_part<Elements>() : void()), ...);
    }
    finish_part();
    __syncthreads();
  }
  if (thread_index() == 0) depart(pass_memory().params, pass_memory().role);
}

}  // namespace gradprobe::gate
