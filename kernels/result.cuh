// Results into the pinned ring.
#pragma once

#include <cstdint>

#include "abi.hpp"
#include "memory.cuh"

namespace gradprobe::gate {

struct ReservedResult {
  Result* result;       // null: the ring is full
  std::uint64_t index;  // of the result in the ring's history

  __device__ float* sketch() const { return reinterpret_cast<float*>(result + 1); }
};

// True when result number `next` has no place. Another CTA may have reserved it already, and the host have read it.
__device__ __forceinline__ bool full(const GateParams& params, std::uint64_t next, std::uint64_t consumed) {
  return static_cast<std::int64_t>(next - consumed) >= static_cast<std::int64_t>(params.result_capacity);
}

// Claims the ring's next place, or counts the result as dropped. By one thread.
__device__ inline ReservedResult reserve_result(const GateParams& params) {
  ChannelState& channel = *params.channel;
  volatile std::uint64_t* seen = &channel.consumed_seen;
  std::uint64_t next = *const_cast<volatile std::uint64_t*>(&channel.results);
  for (;;) {
    // Reading the host's counter costs a trip over the bus: only when the last reading leaves no room.
    if (full(params, next, *seen)) {
      *seen = load_acquire_system(&params.control->consumed);
      if (full(params, next, *seen)) {
        if (params.pass == kInputPass) atomicAdd(&params.slot->dropped, 1u);
        __threadfence_system();
        atomicAdd(reinterpret_cast<unsigned long long*>(&params.control->dropped), 1ull);
        return {nullptr, 0};
      }
    }
    const std::uint64_t found = atomicCAS(reinterpret_cast<unsigned long long*>(&channel.results), next, next + 1);
    if (found == next) break;
    next = found;
  }
  const std::uint64_t at = next % params.result_capacity * result_bytes(params.sketch_floats);
  return {reinterpret_cast<Result*>(params.results + at), next};
}

// What a result belongs to.
struct ResultOrigin {
  std::uint32_t entry;
  std::uint32_t run;
  std::uint64_t wait_ns;
  std::uint64_t key;  // run_key
};

// Everything but raw bytes and sketch, seq excepted. `scalars` may be null: a result without a measurement.
__device__ inline void write_scalars(const GateParams& params, Result* r, const ResultOrigin& origin,
                                     ResultStatus status, const PartialScalars* scalars) {
  r->slot = params.slot_index;
  r->entry = origin.entry;
  r->run = origin.run;
  r->status = status;
  r->sketch_floats = 0;
  r->flags = 0;
  r->sum_squares = 0;
  r->max_abs = 0;
  r->nan_count = r->inf_count = 0;
  r->zero_count = r->first_nonfinite = ~std::uint64_t{0};
  r->gate_wait_ns = origin.wait_ns;
  r->key = origin.key;
  r->fingerprint = 0;
  r->launch = params.launch;
  r->pass = params.pass;
  r->start_ns = r->end_ns = global_timer();
  if (!scalars) return;
  r->flags = scalars->max_abs > 0x1p100 ? kResultSketchInvalid : 0;
  r->sum_squares = scalars->sum_squares;
  r->max_abs = scalars->max_abs;
  r->nan_count = scalars->nan_count;
  r->inf_count = scalars->inf_count;
  if (params.flags & kCountZeros) r->zero_count = scalars->zero_count;
  r->first_nonfinite = scalars->first_nonfinite;
  if (params.pass == kResultPass) r->fingerprint = scalars->words;
  r->start_ns = scalars->start_ns;
}

// Makes a reserved and written result visible to the host. By one thread, after a barrier behind all writers.
__device__ inline void publish_result(const ReservedResult& reserved) {
  if (reserved.result) store_release_system(&reserved.result->seq, reserved.index + 1);
}

// A result for the slot as a whole, or for an entry that isn't measured. By one thread.
__device__ inline void report_unmeasured(const GateParams& params, std::uint32_t entry, std::uint32_t run,
                                         ResultStatus status, std::uint64_t wait_ns) {
  const ReservedResult reserved = reserve_result(params);
  if (!reserved.result) return;
  write_scalars(params, reserved.result, {entry, run, wait_ns, 0}, status, nullptr);
  publish_result(reserved);
}

}  // namespace gradprobe::gate
