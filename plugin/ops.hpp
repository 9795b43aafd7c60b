// What callbacks tell the collector about each collective, in tables that never allocate after construction.
//
// An op is one collective call on a communicator that belongs to what is recorded. Its ordinal counts all of the
// communicator's collective calls from 0 (the same on all ranks), its index only the ops. Callbacks fill an Op and hand
// it over by storing `state`; the collector walks the ops in order and frees them by moving its cursor on. Captured ops
// live as long as the graph, since every replay refers to them.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <atomic>
#include <cstdint>
#include <memory>

#include "gate_channel.hpp"

namespace gradprobe {

inline constexpr std::uint32_t kNoSlot = UINT32_MAX;
inline constexpr std::uint32_t kNoOp = UINT32_MAX;
inline constexpr std::uint32_t kDirectOps = 8192;
inline constexpr std::uint32_t kCapturedOps = 4096;

enum class OpState : std::uint32_t {
  announced,  // CollApi seen, outcome open
  done,       // measured; the collector writes its record when the op's turn comes
  missed,     // `reason` says why; the collector writes the record
  passed,     // not measured and without a record, but part of the sequence in which steps are found
  captured,   // placeholder in the table of direct ops: the op itself is in the table of captured ops
};

struct Op {
  std::atomic<OpState> state{OpState::passed};
  Missed reason = Missed::none;
  bool eligible = false;   // can be measured
  bool placed = false;     // has an entry in a slot
  bool addressed = false;  // send and recv are known
  bool captured = false;
  bool symmetric = false;  // NCCL says that a symmetric kernel does it
  gate::EntryMode mode = gate::kBucket;
  Function function = Function::unknown;
  Datatype datatype = Datatype::unknown;
  std::uint64_t ordinal = kNone;
  std::uint64_t index = kNone;     // direct: which place of the table it has
  std::uint32_t next = kNoOp;      // captured: the next of its batch, or the next free one
  std::uint64_t count = 0;         // elements of the input
  std::uint64_t output_count = 0;  // elements of this rank's result
  bool result_wanted = false;      // the result is to be measured too
  std::uint64_t send = 0, recv = 0;
  std::uint64_t user_tag = 0;  // of the call; 0: none
  std::uint32_t batch = 0;
  // Captured: how often its buffers were told (at capture or at each replay), and from which time on they were not
  // those that the gate reads.
  std::uint32_t told = 0;
  std::atomic<std::uint32_t> moved_from{UINT32_MAX};
  std::atomic<bool> refused{false};  // NCCL returned an error for the call: what was measured doesn't count
};

enum class SlotState : std::uint32_t {
  free,
  open,       // gate launched, buffers not told yet
  published,  // buffers told
  cancelled,  // given up by the host
};

// The host's side of a gate slot.
struct Slot {
  std::atomic<SlotState> state{SlotState::free};
  std::atomic<bool> launched{false};        // the gate runs or will: wait for the device before reuse
  std::atomic<bool> graph_released{false};  // captured: no graph can run it any more
  std::atomic<bool> drained{false};         // and the collector has read all its results
  std::atomic<bool> failed{false};          // the launch was refused
  // Result passes: how many were launched, GateParams::launch of the last one, whether more may come, whether one was
  // refused.
  std::atomic<std::uint32_t> results_launched{0};
  std::atomic<std::uint32_t> last_result_launch{0};
  std::atomic<bool> results_open{false};
  std::atomic<bool> result_failed{false};
  // Results that no launch is known to complete: of buffers told inline beside others told by host callbacks.
  std::atomic<bool> result_ambiguous{false};
  std::uint32_t first_entry = 0;
  std::atomic<std::uint32_t> capacity{0};  // entries; those used once it is published
  std::uint64_t arena_end = 0;             // direct: entries of the arena handed out so far, this slot's the last
  std::atomic<std::uint32_t> entries{0};
  std::uint32_t inline_entries = 0;  // of these, told inline
  bool grouped = false;              // the launch that opened it has a GroupApi
  bool before_callbacks = false;     // its gate precedes every launch whose buffers a host callback tells
  std::uint32_t batch = 0;
  std::uint64_t arrivals[2] = {};                    // thread blocks launched so far, by pass; stays over reuse
  std::uint32_t input_ctas = 0;                      // of the input pass
  std::uint32_t result_kernel = 0, result_ctas = 0;  // of all result passes; 0 thread blocks: none yet
};

// Whose input an entry of the arena is. The numbers outlive the op: its place may be another's by now.
struct EntryOwner {
  Op* op = nullptr;
  std::uint64_t index = 0;
  std::uint64_t ordinal = 0;
};

struct OpTables {
  std::unique_ptr<Op[]> direct = std::make_unique<Op[]>(kDirectOps);
  std::unique_ptr<Op[]> captured = std::make_unique<Op[]>(kCapturedOps);
  std::unique_ptr<Slot[]> slots = std::make_unique<Slot[]>(kSlots);
  std::unique_ptr<EntryOwner[]> entry_owners = std::make_unique<EntryOwner[]>(kEntries);

  std::atomic<std::uint64_t> calls{0};         // collective calls on the communicator, recorded or not
  std::atomic<std::uint64_t> announced{0};     // ops handed over; op i is direct[i % kDirectOps]
  std::atomic<std::uint64_t> collected{0};     // ops that the collector has finished: their places are free
  std::atomic<std::uint64_t> slots_opened{0};  // direct slots handed out so far; slot i is slots[i % kDirectSlots]
  std::atomic<std::uint64_t> slots_freed{0};
  std::atomic<std::uint32_t> graphs_released{0};  // captured slots whose graph is gone, so far
  std::atomic<std::uint32_t> slots_drained{0};    // of these, those of which no result is left, so far

  std::atomic<bool> results_void{false};  // results that are still in flight may be half-made

  // Collectives that never became an op or a record, by reason.
  std::atomic<std::uint64_t> uncounted[static_cast<std::size_t>(Missed::count_)] = {};

  void count_without_record(Missed reason) {
    uncounted[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  Op& direct_op(std::uint64_t index) const { return direct[index % kDirectOps]; }
};

}  // namespace gradprobe
