// What the plugin (host) and the kernels (device) share: layouts in pinned, mapped host memory and in device memory.
// Private to one build of the plugin: the kernels are embedded in it, so nothing here is versioned.
//
// One GateControl, one slot table, one entry arena, one result ring and one ChannelState belong to each communicator,
// and a few workspaces, one for each stream that it uses.
//
//   host (callbacks)                          device (stream order)
//   ----------------                          ---------------------
//   KernelLaunch start: choose a slot,
//     state = open, launch the input pass ->  the first CTA to arrive (the leader) waits until slot.state != open, or
//   Coll start: fill entries                  the time-out, takes the workspace and lists the buckets;
//   Group stop: state = published (release)   the other CTAs wait for its decision, then all measure;
//                                             last CTA of each entry: Result -> ring, seq (release, system scope)
//                                             last CTA to leave: slot.runs = run (release, system scope)
//                                             NCCL's kernel
//   KernelLaunch stop: launch result pass ->  the same over the outputs of the same entries, without waiting for the
//   collector: reads results, advances        host: only where the input pass of this run has measured;
//     control.consumed                        last CTA to leave: slot.result_runs += 1
//
// A pass is one kernel launch. No CTA ever waits for one that may not have started: the leader is by definition the
// first that did. Results of a run's entries come in any order (Result::entry names them); slot.runs follows them all.
#pragma once

#include <cstdint>

#include "gradprobe/ring_format.hpp"

namespace gradprobe::gate {

inline constexpr std::uint32_t kMaxEntries = 4096;                  // entries of one slot
inline constexpr std::uint32_t kMaxCtas = 256;                      // CTAs of one pass
inline constexpr std::uint32_t kThreads = 512;                      // threads of a CTA
inline constexpr std::uint32_t kSuperrow = 16384;                   // elements whose permutation is drawn together
inline constexpr std::uint32_t kRegisterSketch = 2048;              // K: register positions, folded to k at the end
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 40;  // elements of one entry; more is kInvalid
inline constexpr std::uint32_t kMaxRawCount = 8;                    // elements of a kRaw entry; more is kInvalid
// How long a CTA waits at most for one of its run that has started before it. It never gets to that while every launch
// is counted right (GateParams::first_arrival); should a count be wrong, measuring ends, not the training.
constexpr std::uint64_t patience_ns(std::uint64_t timeout_ns) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const std::uint64_t wanted = 100 * timeout_ns, most = timeout_ns + 10 * kSecond;
  return wanted < kSecond ? kSecond : wanted < most ? wanted : most;
}
// A bucket of fewer elements than this is measured by one CTA: it is done before several could be brought together.
inline constexpr std::uint64_t kSmallCount = 65536;

enum SlotState : std::uint32_t {
  kSlotOpen = 0,       // the gate waits
  kSlotPublished = 1,  // entries are valid
  kSlotCancelled = 2,  // the host gave up: nothing to measure, no result
};

enum EntryMode : std::uint16_t {
  kBucket = 0,  // norm, counts, sketch
  kRaw = 1,     // count <= 8: the leader copies the bytes into Result::raw; norm and counts, no sketch
};

enum ResultStatus : std::uint32_t {
  kMeasured = 0,
  kTimedOut = 1,  // the slot as a whole: entry = 0, no measurement
  kBusy = 2,      // the slot as a whole: another measurement holds the stream's workspace, or the channel is broken
  kInvalid = 3,   // an entry (or, with more than kMaxEntries entries, the slot) that makes no sense: not read
};

// What a launch measures.
enum Pass : std::uint32_t {
  kInputPass = 0,
  kResultPass = 1,
};

// One collective. Written by the host before the slot is published. 48 bytes.
struct GateEntry {
  std::uint64_t input;         // device address, aligned to the element
  std::uint64_t count;         // elements of the input, >= 1
  std::uint64_t output;        // device address of the result; 0: this rank gets none, or it isn't wanted
  std::uint64_t output_count;  // elements of the result (reduce-scatter: this rank's shard)
  std::uint64_t key;           // base of the sketch key: the run's key is run_key(key, run)
  std::uint8_t datatype;       // gradprobe::Datatype
  std::uint8_t reserved;
  std::uint16_t mode;  // EntryMode
  std::uint32_t reserved2;
};
static_assert(sizeof(GateEntry) == 48);

// Pinned host memory. 64 bytes.
struct alignas(64) GateSlot {
  std::uint32_t state;        // SlotState; polled by the gate with ld.acquire.sys
  std::uint32_t entries;      // valid once published
  std::uint32_t first_entry;  // index into the entry arena
  std::uint32_t runs;         // device: input passes finished (measured, timed out or busy); st.release.sys
  std::uint32_t result_runs;  // device: result passes finished; st.release.sys
  std::uint32_t dropped;      // device: input passes' results of this slot that found the ring full, over all runs
  std::uint32_t reserved[10];
};
static_assert(sizeof(GateSlot) == 64);

// Pinned host memory, written by the collector.
struct alignas(64) GateControl {
  std::uint64_t consumed;             // results that the host has read: the ring's slots before it are free
  std::uint64_t dropped;              // device: results not written because the ring was full
  std::uint32_t replay_every;         // of a graph's replays runs 1, 1 + n, 1 + 2 n, ... are measured; 0: none
  std::uint32_t replay_result_every;  // of these the results of runs 1, 1 + n, 1 + 2 n, ...; 0: none
  std::uint64_t reserved[5];
};
static_assert(sizeof(GateControl) == 64);

// Pinned host memory, ring of `capacity` results with a stride of result_bytes(k). Result number i (from 0) lies at
// i % capacity and is valid when seq == i + 1 (ld.acquire on the host).
struct alignas(64) Result {
  std::uint64_t seq;
  std::uint32_t slot;
  std::uint32_t entry;          // index in the slot
  std::uint32_t run;            // 1, 2, ... : graph replays run a slot several times
  std::uint32_t status;         // ResultStatus
  std::uint32_t sketch_floats;  // floats at `sketch`; 0: none
  std::uint32_t flags;          // kResultSketchInvalid
  double sum_squares;
  double max_abs;
  std::uint64_t nan_count, inf_count, zero_count, first_nonfinite;  // ~0: none / not counted
  std::uint64_t start_ns, end_ns;                                   // %globaltimer
  std::uint64_t gate_wait_ns;
  std::uint64_t key;      // run_key: what the sketch was made with
  unsigned char raw[64];  // kRaw
  std::uint64_t
      fingerprint;       // result pass: sum modulo 2^64 of the buffer's 32-bit words, the last filled up with zeros
  std::uint32_t launch;  // GateParams::launch
  std::uint32_t pass;    // GateParams::pass
  // float sketch[k] follows
};
static_assert(sizeof(Result) == 192);
inline constexpr std::uint32_t kResultSketchInvalid = 1;

constexpr std::uint32_t result_bytes(std::uint32_t sketch_floats) {
  return (static_cast<std::uint32_t>(sizeof(Result)) + 4 * sketch_floats + 63) / 64 * 64;
}

// splitmix64's output function (Steele, Lea, Flood 2014; constants of Vigna's public-domain code).
constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The key of run `run` (1, 2, ...) of an entry. The same on every rank, fresh for every replay.
constexpr std::uint64_t run_key(std::uint64_t key, std::uint32_t run) {
  return mix64(key ^ mix64(run));
}

// Datatypes that can be measured.
enum MeasuredType : std::uint32_t {
  kTypeF64,
  kTypeF32,
  kTypeF16,
  kTypeBf16,
  kTypeF8E4m3,
  kTypeF8E5m2,
  kMeasuredTypes,
  kTypeNone = kMeasuredTypes
};
constexpr MeasuredType measured_type(Datatype datatype) {
  switch (datatype) {
    case Datatype::f64:
      return kTypeF64;
    case Datatype::f32:
      return kTypeF32;
    case Datatype::f16:
      return kTypeF16;
    case Datatype::bf16:
      return kTypeBf16;
    case Datatype::f8e4m3:
      return kTypeF8E4m3;
    case Datatype::f8e5m2:
      return kTypeF8E5m2;
    default:
      return kTypeNone;
  }
}

// How CTAs share a pass: its buckets, one after another, are one row of units (a unit is what a CTA works on at a time,
// see bucket_units); of G CTAs, CTA c takes units [U*c/G, U*(c+1)/G). So a CTA holds at most two buckets that other
// CTAs work on as well, its first ("head") and its last ("tail"), and each of them has its own place for a partial
// result: no place is written twice in a pass, and no CTA ever waits for another's part.
//
// A bucket that several CTAs share is reduced in two levels. Blocks of 16 neighbouring CTAs are fixed; the last CTA
// to arrive of the bucket's CTAs in one block adds their partials in the order of the CTAs; the last block to arrive
// adds the blocks'. At most one bucket of several blocks begins in a block, and at most one comes in from before.
inline constexpr std::uint32_t kBlockCtas = 16;
inline constexpr std::uint32_t kBlocks = kMaxCtas / kBlockCtas;

// Device memory, zeroed once: where the runs of one slot stand in one pass. Arrivals and departures are counted over
// all of them; a launch knows how many came before it (GateParams::first_arrival), so of its G CTAs the first to
// arrive is role 0, the leader, and the last to depart ends the run. Replays of a graph continue the count. The leader
// of a run waits until the run before has ended, so nobody's decision is overwritten.
enum RunOutcome : std::uint32_t {
  kRunNothing = 0,   // nothing to measure, the workspace isn't held
  kRunMeasures = 1,  // the workspace is held
};
struct alignas(64) SlotRun {
  std::uint64_t arrived, departed;
  std::uint64_t finished;  // departures of all runs that have ended; st.release.gpu
  std::uint64_t decided;   // arrivals before the run whose decision the rest is, plus 1; st.release.gpu
  std::uint64_t units;     // of all buckets
  std::uint64_t wait_ns;   // that the leader waited for the host
  std::uint32_t buckets;
  std::uint32_t run;      // what Result::run says
  std::uint32_t outcome;  // RunOutcome
  std::uint32_t reserved;
};
static_assert(sizeof(SlotRun) == 64);
struct SlotRuns {
  SlotRun input, result;
};

// Device memory, zeroed once. SlotRuns of every slot follow.
struct alignas(256) ChannelState {
  std::uint64_t results;        // results reserved in the ring so far
  std::uint64_t consumed_seen;  // GateControl::consumed when it was last read
  std::uint32_t broken;         // 1: a CTA waited in vain for another of its run; nothing is measured any more
  std::uint32_t reserved;
};

// Device memory, zeroed once. Offsets of the parts behind it: workspace_layout(k, ctas).
struct alignas(256) WorkspaceHead {
  std::uint32_t taken;  // 1: a run holds the workspace
  std::uint32_t reserved;
  std::uint32_t cta_tickets[2 * kMaxCtas];  // of the bucket's first CTA in a block: head 2c, tail 2c + 1
  std::uint32_t block_tickets[kBlocks];     // of the block in which the bucket begins; all wrap to 0 by atomicInc
};
static_assert(sizeof(WorkspaceHead) == 2304);

// A bucket as the leader lists it.
struct Bucket {
  std::uint64_t address;
  std::uint64_t count;
  std::uint64_t first_unit;
  std::uint64_t key;       // run_key
  std::uint32_t entry;     // index in the slot
  std::uint32_t datatype;  // MeasuredType
};
static_assert(sizeof(Bucket) == 40);

// Scalars of one CTA's or one block's part of a bucket.
struct PartialScalars {
  double sum_squares;
  double max_abs;  // over the finite elements
  std::uint64_t nan_count, inf_count, zero_count, first_nonfinite;
  std::uint64_t words;     // sum of 32-bit words: the fingerprint
  std::uint64_t start_ns;  // earliest
};
static_assert(sizeof(PartialScalars) == 64);

// Parameters of every kernel, by value.
struct GateParams {
  GateSlot* slot;               // mapped
  const GateEntry* arena;       // mapped: entries of all slots
  GateControl* control;         // mapped
  unsigned char* results;       // mapped
  ChannelState* channel;        // device
  SlotRuns* slot_runs;          // device: the slot's
  WorkspaceHead* workspace;     // device: the stream's
  std::uint64_t first_arrival;  // CTAs of all earlier launches of this slot and pass; captured launches: 0
  std::uint64_t timeout_ns;
  std::uint32_t slot_index;
  std::uint32_t result_capacity;
  std::uint32_t sketch_floats;   // k: 0, 256, 512, 1024, 2048, 4096
  std::uint32_t workspace_ctas;  // that the workspace is laid out for: at least those of the launch
  std::uint32_t flags;           // kCountZeros, kReplayed
  std::uint32_t launch;          // comes back in Result::launch
  std::uint32_t pass;            // Pass
  std::uint32_t reserved;
};
static_assert(sizeof(GateParams) == 104);
inline constexpr std::uint32_t kCountZeros = 1;
inline constexpr std::uint32_t kReplayed = 2;  // a graph runs it: GateControl says in which runs

// Byte offsets in the workspace; every part is aligned to 256 bytes.
struct WorkspaceLayout {
  std::uint64_t buckets;         // Bucket[kMaxEntries]
  std::uint64_t cta_scalars;     // PartialScalars[2 * ctas]: head 2c, tail 2c + 1
  std::uint64_t block_scalars;   // PartialScalars[2 * kBlocks]: coming in 2b, beginning 2b + 1
  std::uint64_t cta_sketches;    // float[2 * ctas][k]
  std::uint64_t block_sketches;  // float[2 * kBlocks][k]
  std::uint64_t bytes;
};
constexpr WorkspaceLayout workspace_layout(std::uint32_t k, std::uint32_t ctas) {
  constexpr auto aligned = [](std::uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  WorkspaceLayout l{};
  std::uint64_t at = sizeof(WorkspaceHead);
  l.buckets = at;
  at += aligned(sizeof(Bucket) * kMaxEntries);
  l.cta_scalars = at;
  at += aligned(sizeof(PartialScalars) * 2 * ctas);
  l.block_scalars = at;
  at += aligned(sizeof(PartialScalars) * 2 * kBlocks);
  l.cta_sketches = at;
  at += aligned(std::uint64_t{4} * k * 2 * ctas);
  l.block_sketches = at;
  at += aligned(std::uint64_t{4} * k * 2 * kBlocks);
  l.bytes = at;
  return l;
}

// Kernel names in the fat binary: one per datatype for passes whose buckets all have it, and one for all others. One
// launch a pass: <<<ctas, kThreads>>> with GateParams, ctas >= 1.
inline constexpr const char* kMeasureKernels[kMeasuredTypes + 1] = {
    "gradprobe_measure_f64",    "gradprobe_measure_f32",    "gradprobe_measure_f16",  "gradprobe_measure_bf16",
    "gradprobe_measure_f8e4m3", "gradprobe_measure_f8e5m2", "gradprobe_measure_mixed"};
inline constexpr std::uint32_t kMixed = kMeasuredTypes;  // index of the kernel for passes of several datatypes or none

// Superrows that a CTA works on at a time: 512 threads * 8 vectors of 16 bytes hold one of f32, two of 16-bit and four
// of 8-bit elements; of f64, one in two turns.
constexpr std::uint32_t unit_superrows(std::uint32_t element_bytes) {
  return element_bytes >= 4 ? 1 : 4 / element_bytes;
}

// Units of a bucket of `count` >= 1 elements. A small one is a single unit: it is not divided among CTAs.
constexpr std::uint64_t bucket_units(std::uint64_t count, std::uint32_t element_bytes) {
  if (count < kSmallCount) return 1;
  const std::uint64_t per_unit = std::uint64_t{kSuperrow} * unit_superrows(element_bytes);
  return (count + per_unit - 1) / per_unit;
}

// CTAs that a bucket of `count` elements of `element_bytes` bytes can keep busy (at least 1, at most kMaxCtas). The
// buckets of one launch share its CTAs, so for several the sum of theirs, at most kMaxCtas, is what is worth launching.
constexpr std::uint32_t measure_ctas(std::uint64_t count, std::uint32_t element_bytes) {
  const std::uint64_t units = bucket_units(count, element_bytes);
  return static_cast<std::uint32_t>(units > kMaxCtas ? kMaxCtas : units);
}

}  // namespace gradprobe::gate
