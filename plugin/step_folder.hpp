// Folds a communicator's records into step records: one per optimizer step, written when the next step begins.
// Owned by the collector; not thread-safe.
#pragma once

#include <gradprobe/ring_format.hpp>
#include <gradprobe/step_detector.hpp>

#include <cstdint>
#include <vector>

#include "marks.hpp"
#include "ring_writer.hpp"

namespace gradprobe {

class StepFolder {
 public:
  StepFolder(RingWriter* ring, std::uint32_t sketch_floats, std::uint64_t ops_per_step);

  // The next op in the communicator's order: fills the record's step fields and folds it. `sketch` may be null.
  void feed(RecordHead* record, const float* sketch);

  // The next op, one without a record.
  void pass(Function function, Datatype datatype, std::uint64_t count);

  // A mark before the next op: a step mark begins a step. Fills the record's step fields.
  void mark(const Mark& mark, RecordHead* record);

  // Writes the step in progress; nothing may follow.
  void finish();

 private:
  // What a step needs of a record: kept for the ops whose step isn't known yet.
  struct Item {
    std::uint64_t fed = 0;  // which feed() it was, from 0
    RecordHead record;
    std::vector<float> sketch;
  };
  static constexpr std::size_t kMaxPending = 256;

  void begin_replays();
  StepDetector::Position position_of(Function function, Datatype datatype, std::uint64_t count);
  void fold_pending();
  void fold(const RecordHead& record, const float* sketch, std::uint64_t step, std::uint32_t ops_per_step);
  void write();

  RingWriter* ring_;
  const std::uint64_t ops_per_step_;
  StepDetector detector_;
  // Steps are told by marks until a graph replays: a replay's place among the marks is not known.
  bool replays_ = false;
  std::uint64_t marked_step_ = kNone;
  std::uint32_t marked_ops_ = 0;  // so far
  std::uint64_t found_from_ = 0;  // what is added to the detector's steps: the first one after the last marked step
  std::vector<Item> pending_;
  std::uint32_t sketch_floats_;
  bool open_ = false;
  RecordHead current_{};
  std::vector<float> sum_;
};

}  // namespace gradprobe
