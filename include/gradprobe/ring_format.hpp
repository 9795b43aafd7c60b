// The ring file, byte by byte: what libnccl-profiler-gradprobe.so writes and every reader must understand.
// Prose version with the reasons: docs/FORMAT.md. Reader: ring_reader.hpp. The only writer: plugin/ring_writer.hpp.
//
// One file holds the records of one rank of one communicator in one process. It is mapped MAP_SHARED, so it survives
// the death of the process (not the power loss of the host). All fields are little-endian with explicit sizes; a
// reader must trust no field: sizes, indexes and checksums are checked before use.
//
//   file:    +----------------------+  0
//            | FileHeader           |    static part, written once, CRC-32C over bytes [0, 2044)
//            |   0 .. 2047          |
//            +----------------------+  2048
//            | LiveCounters         |    changes while the process runs, 8-byte atomics, no checksum
//            |   2048 .. 4095       |
//            +----------------------+  4096 = header_bytes
//            | record slot 0        |    record_bytes each (a multiple of 64)
//            | record slot 1        |    record number i (0, 1, 2, ...) lies in slot i % capacity,
//            | ...                  |    so slot i holds the newest record that belongs there
//            | slot capacity-1      |
//            +----------------------+  4096 + capacity * record_bytes
//
//   record:  0        8        16       24                    64                 256
//            +--------+--------+--------+---------------------+------------------+---------------------------+
//            | before | after  |crc kind| common fields       | body by kind     | sketch_floats * float32   |
//            +--------+--------+--------+---------------------+------------------+---------------------------+
//
// Writing record i (seqlock): before = i + 1; release fence; everything else; after = i + 1 with release.
// Reading: load after (acquire); copy; acquire fence; load before. Equal and i + 1: consistent. Otherwise the writer
// was at work, was killed there, or has lapped the reader. The CRC catches what the stamps can't (a torn page, disk).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace gradprobe {

static_assert(std::endian::native == std::endian::little, "ring files are little-endian; so is every CUDA host");

inline constexpr char kRingMagic[8] = {'G', 'R', 'A', 'D', 'P', 'R', 'B', '\n'};
inline constexpr std::uint32_t kRingVersion = 1;
inline constexpr std::uint32_t kHeaderBytes = 4096;
inline constexpr std::uint32_t kRecordHeadBytes = 256;  // common fields and body; the sketch follows
inline constexpr std::uint32_t kMaxSketchFloats = 4096;
inline constexpr std::uint32_t kMaxRawElements = 8;        // tiny inputs are kept as raw values
inline constexpr std::uint32_t kRawBytes = 64;             // 8 elements of at most 8 bytes
inline constexpr std::uint64_t kNone = ~std::uint64_t{0};  // "no such step, element, ..."

// Incompatible features: a reader that doesn't know a set bit must refuse the file. None so far.
inline constexpr std::uint64_t kKnownIncompatible = 0;
// Compatible features: the writer keeps LiveCounters::results, and RecordKind::result may occur.
inline constexpr std::uint64_t kFeatureResults = 1;
// ... and LiveCounters::marks_lost, and RecordKind::mark may occur.
inline constexpr std::uint64_t kFeatureMarks = 2;
// ... and kFlagSymmetric is set where NCCL says so. Without it nobody knows.
inline constexpr std::uint64_t kFeatureSymmetric = 4;

enum class RingState : std::uint32_t {
  running = 0,    // or killed: see the writer's process
  finalized = 1,  // the communicator was destroyed
  exited = 2,     // the process ended in order without destroying it
};

// collective and scalar are inputs, before the reduction. result is what the reduction left on this rank; it has the
// op, replay and step fields of the collective's input. mark is what the application said (gradprobe.h); its op is the
// communicator's first one after it.
enum class RecordKind : std::uint16_t { empty = 0, collective = 1, step = 2, scalar = 3, result = 4, mark = 5 };

// Why an input (or a result) was not measured. Also the index into LiveCounters::missed, which counts inputs. Never
// renumber: files keep the numbers.
enum class Missed : std::uint16_t {
  none = 0,             // measured
  timeout = 1,          // NCCL told the buffers later than GRADPROBE_GATE_TIMEOUT
  launch_blocking = 2,  // CUDA_LAUNCH_BLOCKING: a gate would wait for its own host thread
  launch_failed = 3,    // cuLaunchKernel refused the gate or the measuring kernel
  backlog = 4,          // too many collectives in flight
  unsupported_datatype = 5,
  unsupported_nccl = 6,  // NCCL older than 2.28: no event before the launch
  no_cuda = 7,           // no libcuda.so.1, no context, or module and memory set-up failed
  ambiguous = 8,         // the launch could not be linked to this collective without doubt
  no_events = 9,         // NCCL announced the call and never launched it through a kernel that it reports
  workspace = 10,        // another measurement held the stream's workspace, or there are more streams than workspaces
  result_lost = 11,      // measured, but the collector fell too far behind to read it
  switched_off = 12,     // gating was switched off for the process (see the log)
  unsupported_function = 13,
  not_selected = 14,    // left out by GRADPROBE_COLLECTIVES, _MIN_COUNT or _DTYPES; counted, no record
  not_sampled = 15,     // in a step that GRADPROBE_EVERY or the control file leaves out; counted, no record
  copy_engine = 16,     // done by copy engines: no kernel that a measurement could precede
  model_parallel = 17,  // taken for activations, not gradients (GRADPROBE_COMMS); counted, no record
  count_ = 18
};

// NCCL's public numbering of ncclDataType_t (nccl.h).
enum class Datatype : std::uint8_t {
  i8 = 0,
  u8 = 1,
  i32 = 2,
  u32 = 3,
  i64 = 4,
  u64 = 5,
  f16 = 6,
  f32 = 7,
  f64 = 8,
  bf16 = 9,
  f8e4m3 = 10,
  f8e5m2 = 11,
  unknown = 255
};

enum class Function : std::uint8_t {
  unknown = 0,
  all_reduce = 1,
  reduce_scatter = 2,
  all_gather = 3,
  broadcast = 4,
  reduce = 5
};

enum RecordFlags : std::uint32_t {
  kFlagStepConfirmed = 1u << 0,  // step, step_op and ops_per_step come from an established period or an override
  kFlagCaptured = 1u << 1,       // launched from a CUDA graph; replay >= 1
  kFlagInPlace = 1u << 2,
  kFlagSketchInvalid = 1u << 3,  // max |x| > 2^100: float32 sums may have overflowed
  kFlagSketchPresent = 1u << 4,  // the sketch area of this record holds a sketch
  kFlagZerosCounted = 1u << 5,
  kFlagExtraOp = 1u << 6,    // not part of the step's usual sequence
  kFlagSymmetric = 1u << 7,  // collective, scalar, result: one of NCCL's symmetric kernels did it (kFeatureSymmetric)
};

struct FileHeader {
  char magic[8];                        //    0
  std::uint32_t version;                //    8  kRingVersion
  std::uint32_t header_bytes;           //   12  4096
  std::uint32_t record_bytes;           //   16  256 + 4 * sketch_floats, rounded up to 64
  std::uint32_t sketch_floats;          //   20  k: 0 or 256, 512, 1024, 2048, 4096
  std::uint64_t capacity;               //   24  records
  std::uint64_t features_compatible;    //   32  unknown bits may be ignored
  std::uint64_t features_incompatible;  //   40  unknown bits: refuse
  std::uint64_t comm_id;                //   48  equal on all ranks of the communicator: NCCL's commHash, or (preload
                                        //       library) a hash of how it was made
  std::uint32_t rank;                   //   56
  std::uint32_t nranks;                 //   60
  std::uint32_t nnodes;                 //   64  0: unknown
  std::uint32_t profiler_abi;           //   68  5 for ncclProfiler_v5, ...; 0: the preload library
  std::uint64_t sketch_seed;            //   72  GRADPROBE_SEED; equal on all ranks
  std::uint64_t start_time_ns;          //   80  CLOCK_REALTIME at creation
  std::uint32_t pid;                    //   88
  std::uint32_t comm_ordinal;           //   92  this process's n-th communicator of this id and rank
  std::uint64_t ops_per_step;           //   96  GRADPROBE_OPS_PER_STEP; 0: detected
  char boot_id[40];                     //  104  /proc/sys/kernel/random/boot_id, NUL-terminated
  char host[64];                        //  144
  char comm_name[128];                  //  208  may be empty: frameworks seldom name communicators
  unsigned char device_uuid[16];        //  336  zeros without CUDA
  char device_name[64];                 //  352
  char job[64];                         //  416
  char plugin_version[32];              //  480
  char config[1024];                    //  512  the settings in force, "NAME=value\n" each
  std::uint64_t pid_namespace;          // 1536  inode of the writer's /proc/self/ns/pid, where `pid` counts; 0: unknown
  unsigned char reserved[500];          // 1544  zeros
  std::uint32_t crc;                    // 2044  CRC-32C of bytes [0, 2044)
};
static_assert(sizeof(FileHeader) == 2048);
static_assert(offsetof(FileHeader, config) == 512 && offsetof(FileHeader, crc) == 2044);

// Each field is read and written as an 8-byte atomic (std::atomic_ref).
struct LiveCounters {
  std::uint64_t written;       // 2048  records ever written; min(written, capacity) can still be there
  std::uint64_t state;         // 2056  RingState
  std::uint64_t heartbeat_ns;  // 2064  CLOCK_REALTIME, at least once a second while the collector lives
  std::uint64_t measured;      // 2072  inputs measured
  std::uint64_t gated_ns;      // 2080  sum of the times that gates waited on the device
  std::uint64_t announced;     // 2088  collectives that NCCL announced on this communicator
  std::uint64_t results;       // 2096  results measured (kFeatureResults)
  std::uint64_t marks_lost;    // 2104  marks that found the queue full (kFeatureMarks)
  std::uint64_t missed[32];    // 2112  inputs by reason (Missed)
  unsigned char room[1728];    // 2368  zeros
};
static_assert(sizeof(LiveCounters) == 2048);
static_assert(static_cast<std::size_t>(Missed::count_) <= 32);

// Body of RecordKind::collective (one input bucket), RecordKind::scalar (a tiny input) and RecordKind::result (one
// output, measured as an input is; "the buffer" is the output then).
struct CollectiveBody {
  std::uint64_t count;            //  64  elements of the buffer (reduce-scatter: input of all shards, result of one)
  std::uint64_t input;            //  72  device address, for grouping equal buckets; never dereferenced
  std::uint64_t output;           //  80
  double sum_squares;             //  88  over the finite elements, as float64
  double max_abs;                 //  96  over the finite elements
  std::uint64_t nan_count;        // 104
  std::uint64_t inf_count;        // 112
  std::uint64_t zero_count;       // 120  kNone when not counted
  std::uint64_t first_nonfinite;  // 128  element index, kNone when all are finite
  std::uint64_t gpu_start_ns;     // 136  %globaltimer when the measurement began
  std::uint64_t gpu_end_ns;       // 144
  std::uint64_t sketch_key;       // 152  key that the sketch's signs and permutation came from
  std::uint64_t gate_wait_ns;     // 160  time that the gate waited for the host; 0 nearly always
  std::uint32_t raw_count;        // 168  elements in raw: of a scalar, or of a result as small; 0 otherwise
  std::uint8_t function;          // 172  Function
  std::uint8_t datatype;          // 173  Datatype
  std::uint16_t reserved;         // 174
  unsigned char raw[kRawBytes];   // 176  the buffer's bytes as they were in device memory
  std::uint64_t fingerprint;      // 240  result: sum modulo 2^64 of the buffer's 32-bit words; input: 0
  unsigned char room[8];          // 248  zeros
};
static_assert(sizeof(CollectiveBody) == 192);
static_assert(offsetof(CollectiveBody, fingerprint) == 240 - 64);

// Body of RecordKind::step: the step's collective records folded. The sketch is the sum of the buckets' sketches.
struct StepBody {
  std::uint64_t first_op;         //  64  op of the step's first collective
  std::uint32_t ops;              //  72  collectives in the step, scalars included
  std::uint32_t measured;         //  76  of these, measured buckets
  std::uint32_t missed;           //  80
  std::uint32_t scalars;          //  84
  std::uint64_t elements;         //  88  sum of the measured buckets' counts
  double sum_squares;             //  96
  double max_abs;                 // 104
  std::uint64_t nan_count;        // 112
  std::uint64_t inf_count;        // 120
  std::uint64_t first_bad_op;     // 128  op of the first bucket with NaN or Inf; kNone
  std::uint64_t first_nonfinite;  // 136  element index in that bucket; kNone
  std::uint64_t gpu_start_ns;     // 144
  std::uint64_t gpu_end_ns;       // 152
  double scalar_sum;              // 160  value of the step's last floating-point scalar of one element; NaN without
  unsigned char room[88];         // 168
};
static_assert(sizeof(StepBody) == 192);

enum class MarkKind : std::uint8_t { none = 0, step = 1, scalar = 2, phase = 3 };

inline constexpr std::size_t kMarkNameBytes = 160;

// Body of RecordKind::mark. The record's `step` is the one that the application's step marks put it in; kNone (and no
// kFlagStepConfirmed) where they put it in none.
struct MarkBody {
  double value;               //  64  scalar: the value, NaN included
  std::uint64_t number;       //  72  step: as the application counts; otherwise kNone
  std::uint8_t kind;          //  80  MarkKind
  unsigned char reserved[7];  //  81
  char name[kMarkNameBytes];  //  88  scalar, phase: UTF-8, NUL-terminated, cut between characters
  unsigned char room[8];      // 248
};
static_assert(sizeof(MarkBody) == 192);
static_assert(offsetof(MarkBody, name) == 88 - 64);

struct RecordHead {
  std::uint64_t before;        //   0  seqlock stamps: record number + 1
  std::uint64_t after;         //   8
  std::uint32_t crc;           //  16  CRC-32C of bytes [20, 256 + 4 * sketch_floats of the record)
  std::uint16_t kind;          //  20  RecordKind
  std::uint16_t missed;        //  22  Missed; none: the body's measurements are valid
  std::uint64_t op;            //  24  ordinal of the API call on this communicator, from 0: equal on all ranks
  std::uint32_t replay;        //  32  0: launched directly; n: n-th replay of the captured call
  std::uint32_t flags;         //  36  RecordFlags
  std::uint64_t step;          //  40  kNone while unknown
  std::uint32_t step_op;       //  48  position in the step
  std::uint32_t ops_per_step;  //  52  0 while unknown
  std::uint64_t time_ns;       //  56  CLOCK_REALTIME when the record was written
  union {
    CollectiveBody collective;  //  64
    StepBody step_body;         //  64
    MarkBody mark;              //  64
  };
};
static_assert(sizeof(RecordHead) == kRecordHeadBytes);
static_assert(offsetof(RecordHead, collective) == 64);

// Bytes of one record slot for a sketch of `sketch_floats` floats (0 ... kMaxSketchFloats): a multiple of 64.
constexpr std::uint32_t record_bytes(std::uint32_t sketch_floats) {
  return (kRecordHeadBytes + 4 * sketch_floats + 63) / 64 * 64;
}

// Size of one element in bytes; 0 for Datatype::unknown.
constexpr std::uint32_t element_bytes(Datatype t) {
  switch (t) {
    case Datatype::i8:
    case Datatype::u8:
    case Datatype::f8e4m3:
    case Datatype::f8e5m2:
      return 1;
    case Datatype::f16:
    case Datatype::bf16:
      return 2;
    case Datatype::i32:
    case Datatype::u32:
    case Datatype::f32:
      return 4;
    case Datatype::i64:
    case Datatype::u64:
    case Datatype::f64:
      return 8;
    case Datatype::unknown:
      return 0;
  }
  return 0;
}

constexpr const char* name(Datatype t) {
  switch (t) {
    case Datatype::i8:
      return "i8";
    case Datatype::u8:
      return "u8";
    case Datatype::i32:
      return "i32";
    case Datatype::u32:
      return "u32";
    case Datatype::i64:
      return "i64";
    case Datatype::u64:
      return "u64";
    case Datatype::f16:
      return "f16";
    case Datatype::f32:
      return "f32";
    case Datatype::f64:
      return "f64";
    case Datatype::bf16:
      return "bf16";
    case Datatype::f8e4m3:
      return "f8e4m3";
    case Datatype::f8e5m2:
      return "f8e5m2";
    case Datatype::unknown:
      return "unknown";
  }
  return "unknown";
}

constexpr const char* name(Function f) {
  switch (f) {
    case Function::all_reduce:
      return "AllReduce";
    case Function::reduce_scatter:
      return "ReduceScatter";
    case Function::all_gather:
      return "AllGather";
    case Function::broadcast:
      return "Broadcast";
    case Function::reduce:
      return "Reduce";
    case Function::unknown:
      return "unknown";
  }
  return "unknown";
}

constexpr const char* name(RecordKind k) {
  switch (k) {
    case RecordKind::collective:
      return "collective";
    case RecordKind::step:
      return "step";
    case RecordKind::scalar:
      return "scalar";
    case RecordKind::result:
      return "result";
    case RecordKind::mark:
      return "mark";
    case RecordKind::empty:
      return "empty";
  }
  return "unknown";
}

constexpr const char* name(MarkKind k) {
  switch (k) {
    case MarkKind::step:
      return "step";
    case MarkKind::scalar:
      return "scalar";
    case MarkKind::phase:
      return "phase";
    case MarkKind::none:
      break;
  }
  return "unknown";
}

constexpr const char* name(Missed m) {
  switch (m) {
    case Missed::none:
      return "measured";
    case Missed::timeout:
      return "timeout";
    case Missed::launch_blocking:
      return "launch_blocking";
    case Missed::launch_failed:
      return "launch_failed";
    case Missed::backlog:
      return "backlog";
    case Missed::unsupported_datatype:
      return "unsupported_datatype";
    case Missed::unsupported_nccl:
      return "unsupported_nccl";
    case Missed::no_cuda:
      return "no_cuda";
    case Missed::ambiguous:
      return "ambiguous";
    case Missed::no_events:
      return "no_events";
    case Missed::workspace:
      return "workspace";
    case Missed::result_lost:
      return "result_lost";
    case Missed::switched_off:
      return "switched_off";
    case Missed::unsupported_function:
      return "unsupported_function";
    case Missed::not_selected:
      return "not_selected";
    case Missed::not_sampled:
      return "not_sampled";
    case Missed::copy_engine:
      return "copy_engine";
    case Missed::model_parallel:
      return "model_parallel";
    case Missed::count_:
      break;
  }
  return "unknown";
}

}  // namespace gradprobe
