// Results into the pinned ring, and the end of a run.
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

// Claims the ring's next place, or counts the result as dropped. By one thread.
__device__ inline ReservedResult reserve_result(const GateParams& params) {
  WorkspaceHead& head = *params.workspace;
  volatile std::uint64_t* seen = &head.consumed_seen;
  std::uint64_t next = *const_cast<volatile std::uint64_t*>(&head.results);
  for (;;) {
    // Reading the host's counter costs a trip over the bus: only when the last reading leaves no room.
    if (next - *seen >= params.result_capacity) {
      *seen = load_acquire_system(&params.control->consumed);
      if (next - *seen >= params.result_capacity) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&params.control->dropped), 1ull);
        atomicAdd(&params.slot->dropped, 1u);
        return {nullptr, 0};
      }
    }
    const std::uint64_t found = atomicCAS(reinterpret_cast<unsigned long long*>(&head.results), next, next + 1);
    if (found == next) break;
    next = found;
  }
  const std::uint64_t at = next % params.result_capacity * result_bytes(params.sketch_floats);
  return {reinterpret_cast<Result*>(params.results + at), next};
}

// Everything but the sketch, seq excepted. `scalars` may be null: a result without a measurement.
__device__ inline void write_scalars(Result* r, std::uint32_t slot, std::uint32_t entry, std::uint32_t run,
                                     ResultStatus status, const PartialScalars* scalars) {
  r->slot = slot;
  r->entry = entry;
  r->run = run;
  r->status = status;
  r->flags = 0;
  r->sum_squares = 0;
  r->max_abs = 0;
  r->nan_count = r->inf_count = 0;
  r->zero_count = r->first_nonfinite = ~std::uint64_t{0};
  r->start_ns = r->end_ns = global_timer();
  if (!scalars) return;
  const float max_abs = __uint_as_float(scalars->max_bits);
  r->flags = max_abs > 0x1p100f ? kResultSketchInvalid : 0;
  r->sum_squares = scalars->sum_squares;
  r->max_abs = max_abs;
  r->nan_count = scalars->nan_count;
  r->inf_count = scalars->inf_count;
  r->zero_count = scalars->zero_count;
  r->first_nonfinite = scalars->first_nonfinite;
  r->start_ns = scalars->start_ns;
}

// Makes a reserved and written result visible to the host. By one thread, after a barrier behind all writers.
__device__ inline void publish_result(const ReservedResult& reserved) {
  if (reserved.result) store_release_system(&reserved.result->seq, reserved.index + 1);
}

// A result for the slot as a whole, or for an entry that isn't measured. By one thread.
__device__ inline void report_unmeasured(const GateParams& params, std::uint32_t entry, std::uint32_t run,
                                         ResultStatus status, std::uint64_t gate_wait_ns) {
  const ReservedResult reserved = reserve_result(params);
  if (!reserved.result) return;
  write_scalars(reserved.result, params.slot_index, entry, run, status, nullptr);
  reserved.result->sketch_floats = 0;
  reserved.result->gate_wait_ns = gate_wait_ns;
  reserved.result->key = 0;
  publish_result(reserved);
}

// Frees the workspace, then tells the host. The slot and the workspace may belong to another run from here on.
__device__ inline void finish_run(const GateParams& params, std::uint32_t run) {
  WorkspaceHead& head = *params.workspace;
  *const_cast<volatile std::uint64_t*>(&head.owner) = 0;
  __threadfence();
  atomicExch(reinterpret_cast<unsigned long long*>(&head.busy_since), 0ull);
  store_release_system(&params.slot->runs, run);
}

// Counts an entry as done; the last one of the run finishes it. By one thread, after its result is published.
__device__ inline void complete_entry(const GateParams& params, std::uint32_t run) {
  WorkspaceHead& head = *params.workspace;
  const std::uint32_t entries = head.entries;
  __threadfence();
  if (atomicAdd(&head.entries_done, 1u) + 1 == entries) {
    __threadfence();
    finish_run(params, run);
  }
}

}  // namespace gradprobe::gate
