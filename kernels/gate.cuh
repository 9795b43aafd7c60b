// The gate: waits for the host to publish the slot, then prepares the run for the measuring kernels behind it on the
// stream. One CTA.
#pragma once

#include <cub/block/block_scan.cuh>

#include "abi.hpp"
#include "element.cuh"
#include "gradprobe/ring_format.hpp"
#include "memory.cuh"
#include "result.cuh"

namespace gradprobe::gate {

enum class GateOutcome : std::uint32_t { measure, unmeasured, cancelled };

struct GateDecision {
  GateOutcome outcome;
  ResultStatus status;  // of an unmeasured slot
  std::uint32_t entries;
  std::uint32_t first_entry;
  std::uint32_t run;
  std::uint64_t wait_ns;
};

// Takes the workspace for this run.
__device__ inline bool take_workspace(const GateParams& params) {
  auto* busy_since = reinterpret_cast<unsigned long long*>(&params.workspace->busy_since);
  const unsigned long long now = global_timer();
  const unsigned long long since = atomicCAS(busy_since, 0ull, now);
  const bool lost = now > since && now - since > kLostRunNs;
  const bool taken = since == 0 || (lost && atomicCAS(busy_since, since, now) == since);
  if (taken) __threadfence();
  return taken;
}

// Waits for the slot and decides what becomes of the run. By one thread.
__device__ inline GateDecision await_slot(const GateParams& params) {
  const std::uint64_t start = global_timer();
  std::uint64_t now = start;
  std::uint32_t state;
  while ((state = load_acquire_system(&params.slot->state)) == kSlotOpen) {
    now = global_timer();
    if (now - start > params.timeout_ns) break;
  }
  const ulonglong2 head = load_host(params.slot);
  GateDecision d{};
  d.entries = static_cast<std::uint32_t>(head.x >> 32);
  d.first_entry = static_cast<std::uint32_t>(head.y);
  d.run = static_cast<std::uint32_t>(head.y >> 32) + 1;
  d.wait_ns = now - start;
  d.outcome = GateOutcome::unmeasured;
  if (state == kSlotOpen) {
    d.status = kTimedOut;
  } else if (state != kSlotPublished) {
    d.outcome = GateOutcome::cancelled;
  } else if (d.entries > kMaxEntries) {
    d.status = kInvalid;
  } else if (!take_workspace(params)) {
    d.status = kBusy;
  } else {
    d.outcome = GateOutcome::measure;
  }
  return d;
}

__device__ inline GateEntry load_entry(const GateEntry* entry) {
  static_assert(sizeof(GateEntry) == 2 * sizeof(ulonglong2));
  union {
    ulonglong2 words[2];
    GateEntry entry;
  } u;
  u.words[0] = load_host(entry);
  u.words[1] = load_host(reinterpret_cast<const ulonglong2*>(entry) + 1);
  return u.entry;
}

__device__ inline bool valid(const GateEntry& e) {
  const std::uint32_t bytes = element_bytes(static_cast<Datatype>(e.datatype));
  if (bytes == 0 || e.count == 0 || e.input == 0 || e.input % bytes != 0) return false;
  return e.mode == kRaw ? e.count <= kMaxRawCount : e.mode == kBucket && e.count <= kMaxCount;
}

// The measuring kernel of a bucket entry; kTypeNone: there is none.
__device__ inline MeasuredType measured_type(const GateEntry& e) {
  if (!valid(e) || e.mode != kBucket) return kTypeNone;
  switch (static_cast<Datatype>(e.datatype)) {
    case Datatype::f32:
      return kTypeF32;
    case Datatype::bf16:
      return kTypeBf16;
    case Datatype::f16:
      return kTypeF16;
    default:
      return kTypeNone;
  }
}

// The bits of one raw element and, for a floating-point type with a kernel or f64, its value.
struct RawElement {
  std::uint64_t bits;
  double value;
};
__device__ inline RawElement load_raw(const GateEntry& e, std::uint32_t bytes, std::uint64_t i) {
  const std::uint64_t address = e.input + i * bytes;
  switch (bytes) {
    case 1:
      return {*reinterpret_cast<const std::uint8_t*>(address), 0};
    case 2: {
      const std::uint32_t bits = *reinterpret_cast<const std::uint16_t*>(address);
      const auto datatype = static_cast<Datatype>(e.datatype);
      const std::uint32_t sign = bits >> 15, magnitude = bits & 0x7fff;
      const double value = datatype == Datatype::bf16  ? Bf16::decode(magnitude)
                           : datatype == Datatype::f16 ? F16::decode(magnitude)
                                                       : 0;
      return {bits, sign ? -value : value};
    }
    case 4: {
      const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(address);
      return {bits, static_cast<Datatype>(e.datatype) == Datatype::f32 ? __uint_as_float(bits) : 0.0};
    }
    default: {
      const std::uint64_t bits = *reinterpret_cast<const std::uint64_t*>(address);
      return {bits, static_cast<Datatype>(e.datatype) == Datatype::f64
                        ? __longlong_as_double(static_cast<long long>(bits))
                        : 0.0};
    }
  }
}

// A raw entry's result: its bytes and, where they are floating-point numbers, the same scalars as a bucket's.
__device__ inline void report_raw(const GateParams& params, const GateEntry& e, std::uint32_t entry,
                                  const GateDecision& decision) {
  const ReservedResult reserved = reserve_result(params);
  if (!reserved.result) return;
  const std::uint64_t start_ns = global_timer();
  const std::uint32_t bytes = element_bytes(static_cast<Datatype>(e.datatype));
  Result* r = reserved.result;
  double sum_squares = 0, max_abs = 0;
  std::uint64_t nan_count = 0, inf_count = 0, zero_count = 0, first_nonfinite = ~std::uint64_t{0};
  for (std::uint32_t i = 0; i < e.count; ++i) {
    const RawElement x = load_raw(e, bytes, i);
    for (std::uint32_t b = 0; b < bytes; ++b) {
      r->raw[i * bytes + b] = static_cast<unsigned char>(x.bits >> (8 * b));
    }
    const double magnitude = fabs(x.value);
    if (magnitude < __longlong_as_double(0x7ff0000000000000)) {
      sum_squares += magnitude * magnitude;
      max_abs = fmax(max_abs, magnitude);
      zero_count += magnitude == 0;
    } else {
      ++(isnan(magnitude) ? nan_count : inf_count);
      if (first_nonfinite == ~std::uint64_t{0}) first_nonfinite = i;
    }
  }
  for (auto b = static_cast<std::uint32_t>(e.count) * bytes; b < sizeof(r->raw); ++b) r->raw[b] = 0;
  write_scalars(r, params.slot_index, entry, decision.run, kMeasured, nullptr);
  r->sum_squares = sum_squares;
  r->max_abs = max_abs;
  r->nan_count = nan_count;
  r->inf_count = inf_count;
  if (params.flags & kCountZeros) r->zero_count = zero_count;
  r->first_nonfinite = first_nonfinite;
  r->start_ns = start_ns;
  r->sketch_floats = 0;
  r->gate_wait_ns = decision.wait_ns;
  r->key = run_key(e.key, decision.run);
  publish_result(reserved);
}

// Lists the buckets for their kernels and answers all other entries. By all threads; returns the answered ones.
__device__ inline std::uint32_t list_entries(const GateParams& params, const GateDecision& decision) {
  // One scan gives a bucket its place in the list and its first unit: places above, units below.
  constexpr int kPlaceShift = 48;
  static_assert((kMaxCount / kSuperrow) * kMaxEntries <= std::uint64_t{1} << kPlaceShift);
  using Scan = cub::BlockScan<unsigned long long, static_cast<int>(kGateThreads)>;
  __shared__ typename Scan::TempStorage scan_storage;
  __shared__ std::uint32_t answered;
  if (threadIdx.x == 0) answered = 0;

  WorkspaceHead& head = *params.workspace;
  auto* lists = reinterpret_cast<Bucket*>(reinterpret_cast<unsigned char*>(&head) +
                                          workspace_layout(params.sketch_floats).buckets);
  unsigned long long listed[kMeasuredTypes] = {};
  for (std::uint32_t at = 0; at < decision.entries; at += kGateThreads) {
    const std::uint32_t index = at + threadIdx.x;
    GateEntry e{};
    MeasuredType type = kTypeNone;
    if (index < decision.entries) {
      e = load_entry(params.arena + decision.first_entry + index);
      type = measured_type(e);
    }
#pragma unroll
    for (std::uint32_t t = 0; t < kMeasuredTypes; ++t) {
      const std::uint64_t per_unit = unit_elements(t == kTypeF32 ? 4 : 2);
      const unsigned long long mine = type == t ? (1ull << kPlaceShift) + (e.count + per_unit - 1) / per_unit : 0;
      unsigned long long before, all;
      __syncthreads();  // the scan's storage is free again
      Scan(scan_storage).ExclusiveSum(mine, before, all);
      if (type == t) {
        before += listed[t];
        lists[t * kMaxEntries + (before >> kPlaceShift)] = {
            e.input, e.count, before & ((1ull << kPlaceShift) - 1), run_key(e.key, decision.run), index, {}};
      }
      listed[t] += all;
    }
    if (index < decision.entries && type == kTypeNone) {
      if (valid(e) && e.mode == kRaw) {
        report_raw(params, e, index, decision);
      } else {
        report_unmeasured(params, index, decision.run, kInvalid, decision.wait_ns);
      }
      atomicAdd(&answered, 1u);
    }
  }
  if (threadIdx.x == 0) {
    for (std::uint32_t t = 0; t < kMeasuredTypes; ++t) {
      head.units[t] = listed[t] & ((1ull << kPlaceShift) - 1);
      head.buckets[t] = static_cast<std::uint32_t>(listed[t] >> kPlaceShift);
    }
  }
  __syncthreads();
  return answered;
}

__device__ inline void run_gate(const GateParams& params) {
  __shared__ GateDecision decision;
  if (threadIdx.x == 0) decision = await_slot(params);
  __syncthreads();
  if (decision.outcome != GateOutcome::measure) {
    if (threadIdx.x == 0) {
      if (decision.outcome == GateOutcome::unmeasured) {
        report_unmeasured(params, 0, decision.run, decision.status, decision.wait_ns);
      }
      store_release_system(&params.slot->runs, decision.run);
    }
    return;
  }
  const std::uint32_t answered = list_entries(params, decision);
  if (threadIdx.x != 0) return;
  if (answered == decision.entries) {
    finish_run(params, decision.run);
    return;
  }
  WorkspaceHead& head = *params.workspace;
  head.run = decision.run;
  head.entries = decision.entries;
  head.entries_done = answered;
  head.gate_wait_ns = decision.wait_ns;
  __threadfence();
  head.owner = launch_owner(params);
}

}  // namespace gradprobe::gate
