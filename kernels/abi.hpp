// What the plugin (host) and the kernels (device) share: layouts in pinned, mapped host memory and in device memory.
// Private to one build of the plugin: the kernels are embedded in it, so nothing here is versioned.
//
// One GateControl, one slot table, one entry arena and one result ring belong to each communicator.
//
//   host (callbacks)                          device (stream order)
//   ----------------                          ---------------------
//   KernelLaunch start: choose a slot,
//     state = open, launch gate + measure ->  gate: waits until slot.state != open, or the time-out
//   Coll start: fill entries
//   Group stop: state = published (release)   gate: copies the entries to the workspace, measures the raw entries
//                                             measure kernels (one per datatype present): sketch every bucket entry
//                                             last CTA of each entry: Result -> ring, seq (release, system scope)
//   collector: reads results, advances        end of the last entry: slot.runs = run (release, system scope)
//     control.consumed
//
// The results of one run's entries come in any order (Result::entry names them); slot.runs follows the last of them.
#pragma once

#include <cstdint>

namespace gradprobe::gate {

inline constexpr std::uint32_t kMaxEntries = 4096;                  // entries of one slot
inline constexpr std::uint32_t kMaxCtas = 256;                      // CTAs of one measuring launch
inline constexpr std::uint32_t kThreads = 512;                      // threads of a measuring CTA
inline constexpr std::uint32_t kSuperrow = 16384;                   // elements whose permutation is drawn together
inline constexpr std::uint32_t kRegisterSketch = 2048;              // K: register positions, folded to k at the end
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 45;  // elements of one entry; more is kInvalid
// A run that has held the workspace for so long lost its measuring kernel (a launch that failed): the next run takes
// the workspace over. Measuring takes milliseconds.
inline constexpr std::uint64_t kLostRunNs = 60'000'000'000;
inline constexpr std::uint32_t kMaxRawCount = 8;  // elements of a kRaw entry; more is kInvalid

enum SlotState : std::uint32_t {
  kSlotOpen = 0,       // the gate waits
  kSlotPublished = 1,  // entries are valid
  kSlotCancelled = 2,  // the host gave up: nothing to measure, no result
};

enum EntryMode : std::uint16_t {
  kBucket = 0,  // norm, counts, sketch: by the measuring kernel of the datatype
  kRaw = 1,     // count <= 8: the gate copies the bytes into Result::raw and measures nothing
};

enum ResultStatus : std::uint32_t {
  kMeasured = 0,
  kTimedOut = 1,  // the slot as a whole: entry = 0, no measurement
  kBusy = 2,      // the slot as a whole: an earlier measurement holds the workspace
  kInvalid = 3,   // an entry (or, with more than kMaxEntries entries, the slot) that makes no sense: not read
};

// One collective's input. Written by the host before the slot is published. 32 bytes.
struct GateEntry {
  std::uint64_t input;    // device address, aligned to the element
  std::uint64_t count;    // elements, >= 1
  std::uint64_t key;      // base of the sketch key: the run's key is run_key(key, run)
  std::uint8_t datatype;  // gradprobe::Datatype
  std::uint8_t reserved;
  std::uint16_t mode;  // EntryMode
  std::uint32_t reserved2;
};
static_assert(sizeof(GateEntry) == 32);

// Pinned host memory. 64 bytes.
struct alignas(64) GateSlot {
  std::uint32_t state;        // SlotState; polled by the gate with ld.acquire.sys
  std::uint32_t entries;      // valid once published
  std::uint32_t first_entry;  // index into the entry arena
  std::uint32_t runs;         // device: runs finished (measured, timed out or busy); st.release.sys
  std::uint32_t dropped;      // device: results of this slot that found the ring full, over all runs
  std::uint32_t reserved[11];
};
static_assert(sizeof(GateSlot) == 64);

// Pinned host memory; the collector advances `consumed`.
struct alignas(64) GateControl {
  std::uint64_t consumed;  // results that the host has read: the ring's slots before it are free
  std::uint64_t dropped;   // device: results not written because the ring was full
  std::uint64_t reserved[6];
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
  std::uint64_t reserved[2];
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

// Datatypes that a measuring kernel exists for: the index of their lists in the workspace.
inline constexpr std::uint32_t kMeasuredTypes = 3;
enum MeasuredType : std::uint32_t { kTypeF32 = 0, kTypeBf16 = 1, kTypeF16 = 2, kTypeNone = 3 };

// How CTAs share a measuring launch: the buckets of a datatype, one after another, are one row of units (a unit is
// what a CTA works on at a time, see unit_elements); of G CTAs, CTA c takes units [U*c/G, U*(c+1)/G). So a CTA holds
// at most two buckets that other CTAs work on as well, its first ("head") and its last ("tail"), and each of them has
// its own place for a partial result: no place is written twice in a launch, and no CTA ever waits for another.
//
// A bucket that several CTAs share is reduced in two levels. Blocks of 16 neighbouring CTAs are fixed; the last CTA
// to arrive of the bucket's CTAs in one block adds their partials in the order of the CTAs; the last block to arrive
// adds the blocks'. At most one bucket of several blocks begins in a block, and at most one comes in from before.
inline constexpr std::uint32_t kBlockCtas = 16;
inline constexpr std::uint32_t kBlocks = kMaxCtas / kBlockCtas;

// Device memory, zeroed once. Offsets of the parts behind it: workspace_layout(k).
struct alignas(256) WorkspaceHead {
  std::uint64_t busy_since;    // %globaltimer when a run took the workspace, 0: it is free
  std::uint64_t owner;         // launch_owner() of the run whose buckets are listed, 0: none
  std::uint32_t run;           // of that owner
  std::uint32_t entries;       // of that run
  std::uint32_t entries_done;  // entries with a result (or a dropped one) so far
  std::uint32_t reserved;
  std::uint64_t results;        // results written to the ring so far: next index
  std::uint64_t consumed_seen;  // control.consumed as last read
  std::uint64_t gate_wait_ns;
  std::uint64_t units[kMeasuredTypes];
  std::uint32_t buckets[kMeasuredTypes];
  std::uint32_t reserved2;
  std::uint32_t cta_tickets[2 * kMaxCtas];  // of the bucket's first CTA in a block: head 2c, tail 2c + 1
  std::uint32_t block_tickets[kBlocks];     // of the block in which the bucket begins; all wrap to 0 by atomicInc
};
static_assert(sizeof(WorkspaceHead) == 2304);

// A bucket entry as the gate lists it for the measuring kernel of its datatype.
struct Bucket {
  std::uint64_t input;
  std::uint64_t count;
  std::uint64_t first_unit;
  std::uint64_t key;    // run_key
  std::uint32_t entry;  // index in the slot
  std::uint32_t reserved[3];
};
static_assert(sizeof(Bucket) == 48);

// Scalars of one CTA's or one block's part of a bucket.
struct PartialScalars {
  double sum_squares;
  std::uint64_t nan_count, inf_count, zero_count, first_nonfinite;
  std::uint64_t start_ns;  // earliest
  std::uint32_t max_bits;  // |x| as the bits of a float32
  std::uint32_t reserved;
};
static_assert(sizeof(PartialScalars) == 56);

// Parameters of every kernel, by value.
struct GateParams {
  GateSlot* slot;            // mapped
  const GateEntry* arena;    // mapped: entries of all slots
  GateControl* control;      // mapped
  unsigned char* results;    // mapped
  WorkspaceHead* workspace;  // device
  std::uint64_t timeout_ns;
  std::uint32_t slot_index;
  std::uint32_t result_capacity;
  std::uint32_t sketch_floats;  // k: 0, 256, 512, 1024, 2048
  std::uint32_t flags;          // kCountZeros
  std::uint32_t launch;         // differs between the launches of a communicator; a graph's replays share it
  std::uint32_t reserved;
};
static_assert(sizeof(GateParams) == 64 + 8);
inline constexpr std::uint32_t kCountZeros = 1;

// A kernel works on the workspace only while its own launch owns it.
constexpr std::uint64_t launch_owner(const GateParams& p) {
  return std::uint64_t{p.launch} << 32 | (p.slot_index + 1);
}

// Byte offsets in the workspace; every part is aligned to 256 bytes.
struct WorkspaceLayout {
  std::uint64_t buckets;         // Bucket[kMeasuredTypes][kMaxEntries]
  std::uint64_t cta_scalars;     // PartialScalars[2 * kMaxCtas]: head 2c, tail 2c + 1
  std::uint64_t block_scalars;   // PartialScalars[2 * kBlocks]: coming in 2b, beginning 2b + 1
  std::uint64_t cta_sketches;    // float[2 * kMaxCtas][k]
  std::uint64_t block_sketches;  // float[2 * kBlocks][k]
  std::uint64_t bytes;
};
constexpr WorkspaceLayout workspace_layout(std::uint32_t k) {
  WorkspaceLayout l{};
  std::uint64_t at = sizeof(WorkspaceHead);
  l.buckets = at;
  at += sizeof(Bucket) * kMeasuredTypes * kMaxEntries;
  l.cta_scalars = at;
  at += sizeof(PartialScalars) * 2 * kMaxCtas;
  l.block_scalars = at;
  at += sizeof(PartialScalars) * 2 * kBlocks;
  l.cta_sketches = at;
  at += std::uint64_t{4} * k * 2 * kMaxCtas;
  l.block_sketches = at;
  at += std::uint64_t{4} * k * 2 * kBlocks;
  l.bytes = at;
  return l;
}
static_assert(workspace_layout(2048).block_scalars % 256 == 0 && workspace_layout(2048).cta_sketches % 256 == 0);

// Kernel names in the fat binary. Launch: one gate kernel <<<1, 256>>>, then for each datatype present in the slot one
// measuring kernel <<<min(max_ctas, measure_ctas(...)), kThreads>>>, all on the same stream with the same GateParams.
inline constexpr const char* kGateKernel = "gradprobe_gate";
inline constexpr const char* kMeasureF32 = "gradprobe_measure_f32";
inline constexpr const char* kMeasureBf16 = "gradprobe_measure_bf16";
inline constexpr const char* kMeasureF16 = "gradprobe_measure_f16";
inline constexpr std::uint32_t kGateThreads = 256;

// A CTA works on 512 threads * 8 vectors of 16 bytes at a time: one superrow of f32, two of 16-bit elements.
constexpr std::uint64_t unit_elements(std::uint32_t element_bytes) {
  return std::uint64_t{kSuperrow} * (element_bytes == 4 ? 1 : 2);
}

// CTAs that a bucket of `count` elements of `element_bytes` bytes can keep busy (at least 1, at most kMaxCtas). The
// buckets of one launch share its CTAs, so for several the sum of theirs, at most kMaxCtas, is what is worth launching.
constexpr std::uint32_t measure_ctas(std::uint64_t count, std::uint32_t element_bytes) {
  const std::uint64_t per_cta = unit_elements(element_bytes);
  const std::uint64_t ctas = count / per_cta + (count % per_cta != 0);
  return static_cast<std::uint32_t>(ctas < 1 ? 1 : ctas > kMaxCtas ? kMaxCtas : ctas);
}

}  // namespace gradprobe::gate
