// Who does what in a pass: CTAs arrive and get a role, the leader waits for the host, takes the workspace and lists the
// buckets, the others wait for its decision, and the last to depart ends the run.
#pragma once

#include <cub/block/block_scan.cuh>

#include "abi.hpp"
#include "gradprobe/ring_format.hpp"
#include "memory.cuh"
#include "raw.cuh"
#include "result.cuh"

namespace gradprobe::gate {

// Of one CTA in one run.
struct Role {
  std::uint64_t run_begin;  // arrivals before the run's first
  std::uint32_t cta;        // 0 (the leader) ... gridDim.x - 1
  std::uint32_t run;        // 1, 2, ... of the pass
};

// In shared memory, where every function finds it: arguments of those that aren't inlined would take registers from the
// streaming loop.
struct PassMemory {
  GateParams params;
  Role role;
  std::uint32_t types;  // that the kernel can measure, as a bit set
};
__device__ __forceinline__ PassMemory& pass_memory() {
  __shared__ PassMemory memory;
  return memory;
}

__device__ inline SlotRun& slot_run(const GateParams& params) {
  return params.pass == kInputPass ? params.slot_runs->input : params.slot_runs->result;
}

// By one thread. Roles go by arrival and not by blockIdx, so the leader always runs already, and two executables of one
// graph that overlap share out whole runs among their CTAs.
__device__ inline Role arrive(const GateParams& params) {
  auto* arrived = reinterpret_cast<unsigned long long*>(&slot_run(params).arrived);
  const std::uint64_t before = atomicAdd(arrived, 1ull);
  if (before < params.first_arrival) atomicExch(&params.channel->broken, 1u);
  const std::uint64_t number = before - params.first_arrival;
  const std::uint64_t run = number / gridDim.x;
  return {params.first_arrival + run * gridDim.x, static_cast<std::uint32_t>(number % gridDim.x),
          static_cast<std::uint32_t>(run) + 1};
}

// Waits until `word` is `value`. By one thread. False when the channel is broken, or is from now on, because the wait
// was too long: then nothing that other CTAs may be using must be touched.
__device__ inline bool await(const GateParams& params, const std::uint64_t* word, std::uint64_t value) {
  const std::uint64_t start = global_timer();
  const volatile std::uint32_t* broken = &params.channel->broken;
  while (load_acquire_device(word) != value) {
    if (*broken) return false;
    if (global_timer() - start > patience_ns(params.timeout_ns)) {
      if (load_acquire_device(word) == value) return true;
      atomicExch(&params.channel->broken, 1u);
      return false;
    }
    pause();
  }
  return true;
}

// By one thread, behind a barrier of the CTA.
__device__ inline void depart(const GateParams& params, const Role& role) {
  SlotRun& state = slot_run(params);
  __threadfence();
  const std::uint64_t departed = atomicAdd(reinterpret_cast<unsigned long long*>(&state.departed), 1ull) + 1;
  const std::uint64_t run_end = role.run_begin + gridDim.x;
  if (departed != run_end) return;
  __threadfence();
  const bool measured = *const_cast<volatile std::uint32_t*>(&state.outcome) == kRunMeasures;
  // Nobody needs the workspace of a broken channel any more, and this run may not be the one that holds it.
  if (measured && !*const_cast<volatile std::uint32_t*>(&params.channel->broken)) {
    atomicExch(&params.workspace->taken, 0u);
  }
  if (params.pass == kInputPass) {
    store_release_system(&params.slot->runs, role.run);
  } else {
    store_release_system(&params.slot->result_runs, load_acquire_system(&params.slot->result_runs) + 1);
  }
  store_release_device(&state.finished, run_end);
}

struct Decision {
  RunOutcome outcome;
  std::uint32_t entries;
  std::uint32_t first_entry;
  std::uint32_t run;
  std::uint64_t wait_ns;
};

__device__ inline bool take_workspace(const GateParams& params) {
  if (*const_cast<volatile std::uint32_t*>(&params.channel->broken)) return false;
  const bool taken = atomicCAS(&params.workspace->taken, 0u, 1u) == 0;
  if (taken) __threadfence();
  return taken;
}

// Whether the run is one of those that are measured. By one thread.
__device__ inline bool in_turn(const GateParams& params, std::uint32_t run) {
  if (!(params.flags & kReplayed)) return true;
  const std::uint64_t both = load_acquire_system(reinterpret_cast<const std::uint64_t*>(&params.control->replay_every));
  const auto every = static_cast<std::uint32_t>(params.pass == kInputPass ? both : both >> 32);
  return every != 0 && (run - 1) % every == 0;
}

// Waits for the slot and decides what becomes of the run. By one thread.
__device__ inline Decision await_slot(const GateParams& params, const Role& role) {
  if (!in_turn(params, role.run)) return {kRunNothing, 0, 0, role.run, 0};
  const std::uint64_t start = global_timer();
  std::uint64_t now = start;
  std::uint32_t state;
  while ((state = load_acquire_system(&params.slot->state)) == kSlotOpen) {
    now = global_timer();
    if (now - start > params.timeout_ns) break;
  }
  const ulonglong2 head = load_host(params.slot);
  Decision d{kRunNothing, static_cast<std::uint32_t>(head.x >> 32), static_cast<std::uint32_t>(head.y), role.run,
             now - start};
  if (state == kSlotCancelled) return d;
  if (state == kSlotPublished && d.entries <= kMaxEntries && take_workspace(params)) {
    d.outcome = kRunMeasures;
    return d;
  }
  const ResultStatus status = state == kSlotOpen ? kTimedOut : d.entries > kMaxEntries ? kInvalid : kBusy;
  report_unmeasured(params, 0, d.run, status, d.wait_ns);
  return d;
}

// The result pass measures what the input pass of the same run has measured. By one thread.
__device__ inline Decision follow_input(const GateParams& params) {
  const volatile SlotRun& input = params.slot_runs->input;
  const ulonglong2 head = load_host(params.slot);
  Decision d{kRunNothing, static_cast<std::uint32_t>(head.x >> 32), static_cast<std::uint32_t>(head.y), input.run, 0};
  if (input.outcome != kRunMeasures || !in_turn(params, d.run)) return d;
  if (take_workspace(params)) {
    d.outcome = kRunMeasures;
  } else {
    report_unmeasured(params, 0, d.run, kBusy, 0);
  }
  return d;
}

__device__ inline GateEntry load_entry(const GateEntry* entry) {
  static_assert(sizeof(GateEntry) == 3 * sizeof(ulonglong2));
  union {
    ulonglong2 words[3];
    GateEntry entry;
  } u;
  for (int i = 0; i < 3; ++i) u.words[i] = load_host(reinterpret_cast<const ulonglong2*>(entry) + i);
  return u.entry;
}

__device__ __forceinline__ WorkspaceLayout layout_of(const GateParams& params) {
  return workspace_layout(params.sketch_floats, params.workspace_ctas);
}
// The run's buckets, in the order of their units.
__device__ __forceinline__ Bucket* bucket_list(const GateParams& params) {
  return reinterpret_cast<Bucket*>(reinterpret_cast<unsigned char*>(params.workspace) + layout_of(params).buckets);
}

// Lists the run's buckets for all CTAs and answers all other entries. By all threads of the leader.
__device__ inline void list_entries(const Decision& decision) {
  const GateParams& params = pass_memory().params;
  // One scan gives a bucket its place in the list and its first unit: places above, units below.
  constexpr int kPlaceShift = 48;
  constexpr std::uint64_t kUnits = (std::uint64_t{1} << kPlaceShift) - 1;
  static_assert((kMaxCount / kSuperrow + 1) * kMaxEntries <= kUnits);
  using Scan = cub::BlockScan<unsigned long long, static_cast<int>(kThreads), cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage scan_storage;

  Bucket* list = bucket_list(params);
  unsigned long long listed = 0;
  for (std::uint32_t at = 0; at < decision.entries; at += kThreads) {
    const std::uint32_t index = at + threadIdx.x;
    unsigned long long mine = 0;
    Bucket bucket{};
    if (index < decision.entries) {
      const GateEntry e = load_entry(params.arena + decision.first_entry + index);
      const auto datatype = static_cast<Datatype>(e.datatype);
      const MeasuredType type = measured_type(datatype);
      const std::uint32_t bytes = element_bytes(datatype);
      const Operand operand = params.pass == kInputPass ? Operand{e.input, e.count} : Operand{e.output, e.output_count};
      const bool readable = bytes != 0 && operand.count != 0 && operand.address != 0 && operand.address % bytes == 0;
      const ResultOrigin origin{index, decision.run, decision.wait_ns, run_key(e.key, decision.run)};
      if (params.pass == kResultPass && e.output == 0) {
        // This rank has no result of the collective.
      } else if (readable && e.mode == kRaw && operand.count <= kMaxRawCount) {
        report_raw(params, operand, datatype, origin);
      } else if (readable && e.mode == kBucket && operand.count <= kMaxCount && (pass_memory().types >> type & 1)) {
        bucket = {operand.address, operand.count, 0, origin.key, index, type};
        mine = (1ull << kPlaceShift) + bucket_units(operand.count, bytes);
      } else {
        report_unmeasured(params, index, decision.run, kInvalid, decision.wait_ns);
      }
    }
    unsigned long long before, all;
    __syncthreads();  // the scan's storage is free again
    Scan(scan_storage).ExclusiveSum(mine, before, all);
    if (mine != 0) {
      before += listed;
      bucket.first_unit = before & kUnits;
      list[before >> kPlaceShift] = bucket;
    }
    listed += all;
  }
  if (threadIdx.x == 0) {
    SlotRun& state = slot_run(params);
    state.units = listed & kUnits;
    state.buckets = static_cast<std::uint32_t>(listed >> kPlaceShift);
  }
}

// Decides what the run does and tells the other CTAs. By all threads of the leader. Not inlined: it would take
// registers from the streaming loop.
static __device__ __noinline__ void lead() {
  __shared__ Decision decision;
  __shared__ bool alone;  // the run before has ended
  if (threadIdx.x == 0) {
    const GateParams& params = pass_memory().params;
    const Role& role = pass_memory().role;
    SlotRun& state = slot_run(params);
    alone = await(params, &state.finished, role.run_begin);
    if (alone) {
      decision = params.pass == kInputPass ? await_slot(params, role) : follow_input(params);
      state.units = 0;
      state.buckets = 0;
      state.run = decision.run;
      state.wait_ns = decision.wait_ns;
      state.outcome = decision.outcome;
    }
  }
  __syncthreads();
  if (!alone) return;
  if (decision.outcome == kRunMeasures) list_entries(decision);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) store_release_device(&slot_run(pass_memory().params).decided, pass_memory().role.run_begin + 1);
}

// The run as the leader has decided it; valid until this CTA departs.
struct Run {
  std::uint64_t units;  // of all buckets; 0: nothing to do
  std::uint64_t wait_ns;
  std::uint32_t buckets;
  std::uint32_t number;
};

// By one thread.
__device__ inline Run await_decision(const GateParams& params, const Role& role) {
  SlotRun& state = slot_run(params);
  if (!await(params, &state.decided, role.run_begin + 1)) return {};
  const volatile SlotRun& decided = state;
  return {decided.units, decided.wait_ns, decided.buckets, decided.run};
}

}  // namespace gradprobe::gate
