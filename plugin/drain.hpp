// Moves one communicator's results from pinned memory to its ring file, and tells what became of every collective.
// Called by the collector thread, by NCCL's finalize and by the exit handler; they exclude each other
// (Process::mutex_). No CUDA calls: results are read from memory, so this is safe while CUDA is being torn down.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "communicator.hpp"
#include "result_records.hpp"
#include "ring_writer.hpp"
#include "step_folder.hpp"

namespace gradprobe {

class Drain {
 public:
  Drain(Communicator* communicator, std::unique_ptr<RingWriter> ring, const Config& config);

  // Handles what is there. True when there was something.
  bool poll();

  // True when nothing more is to be expected: every direct launch has an outcome, and none of their kernels runs.
  bool settled() const;

  // After Communicator::stop(): what is still open is missed; finishes the last step and the ring.
  void finish(RingState state);

  // Instead of finish() when memory ran out: counts what will have no record. Allocates nothing.
  void abandon();

  RingWriter& ring() { return *ring_; }
  // "123 measured, 4 missed (timeout 3, no_events 1)" for the log; behind it the calls with a user tag, if any.
  std::string summary() const;
  // What the reasons in the summary can mean; empty where their names say it.
  std::string causes() const;

 private:
  struct SlotView {
    bool timed_out = false, busy = false, invalid = false;
    Missed result_missed = Missed::result_lost;       // of results that didn't come
    std::uint32_t dropped = 0;                        // captured: inputs that found the ring full, as last counted
    std::uint32_t timeouts = 0;                       // captured: replays that waited in vain
    std::uint32_t inputs_read = 0, results_read = 0;  // results of input and result passes
  };
  // A record whose turn hasn't come: a group's results arrive in any order.
  struct Held {
    RecordHead record;
    std::vector<float> sketch;
  };

  // Replays of one captured slot that may wait in vain for buffers to be told.
  static constexpr std::uint32_t kReplaysThatWait = 3;
  // Gates outside graphs that time out in a row before the communicator is gated no more; one in 256 is bearable.
  static constexpr std::uint32_t kMostVainGates = 16, kVainGateWeight = 256;

  void follow_control();
  // Of an ended direct slot; of any slot.
  bool awaits_results(std::uint64_t i);
  bool has_unread_results(std::uint32_t slot) const;
  void end_released_slots(std::uint32_t released);
  bool read_results();
  void take(const gate::Result& result);
  void take_direct_result(const gate::Result& result, std::uint64_t ordinal);
  void take_replayed_result(const gate::Result& result, const Op& op);
  void take_slot_status(const gate::Result& result);
  void miss_replayed_results(const gate::Result& result, bool one_entry, Missed reason);
  void count_dropped_replays();
  void count_dropped_replays(std::uint32_t slot);
  void end_results(const Slot& slot, Missed missed);
  bool slot_ended(std::uint64_t i) const;
  void expire_overdue_slot();
  void miss_replayed(const gate::Result& result, const Op& op, Missed reason);
  void hold_replay(const gate::Result& result, Held held);
  void write_replay();
  void write(RecordHead* record, const float* sketch);
  void end_entries(std::uint32_t index);
  bool advance();
  void write_marks();
  void write_missed(Op* op);
  RecordHead record_of(const Op& op) const;
  RecordHead result_record_of(const Op& op) const;
  void count_uncounted();

  Communicator* communicator_;
  OpTables& tables_;
  GateChannel* channel_;  // null: nothing is measured
  std::unique_ptr<RingWriter> ring_;
  StepFolder folder_;
  ResultRecords results_;
  std::unique_ptr<SlotView[]> views_ = std::make_unique<SlotView[]>(kSlots);
  std::map<std::uint64_t, Held> held_;  // measured direct ops behind one that is still open, by ordinal
  std::vector<Held> replay_;            // results so far of the run of a captured slot
  std::uint32_t replay_slot_ = kNoSlot, replay_run_ = 0;
  std::uint64_t overdue_slot_ = kNone;  // direct slot whose gate has ended while the host still says nothing
  std::chrono::steady_clock::time_point overdue_since_;
  std::uint64_t results_read_ = 0;
  std::uint64_t dropped_ = 0;  // results that the device could not write, as last seen
  std::uint64_t freed_ = 0;
  std::uint32_t graphs_released_ = 0;  // as far as their slots are drained
  std::uint32_t control_version_ = 0;
  std::uint32_t vain_gates_ = 0;  // kVainGateWeight for each that timed out, less those since that didn't
  std::uint64_t collected_ = 0;
  std::uint64_t tagged_ = 0, last_tag_ = 0;  // calls that came with a user tag, which records have no field for
  std::uint64_t counted_[static_cast<std::size_t>(Missed::count_)] = {};
};

}  // namespace gradprobe
