// Folds a communicator's records into step records: one per optimizer step, written when the next step begins.
// Owned by the collector; not thread-safe.
#pragma once

#include <gradprobe/ring_format.hpp>
#include <gradprobe/step_detector.hpp>

#include <cstdint>
#include <vector>

#include "ring_writer.hpp"

namespace gradprobe {

class StepFolder {
 public:
  StepFolder(RingWriter* ring, std::uint32_t sketch_floats, std::uint64_t ops_per_step);

  // The next op in the communicator's order: fills the record's step fields and folds it. `sketch` may be null.
  void feed(RecordHead* record, const float* sketch);

  // The next op, one without a record.
  void pass(Function function, Datatype datatype, std::uint64_t count);

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

  void fold_pending();
  void fold(const RecordHead& record, const float* sketch, std::uint64_t step, std::uint32_t ops_per_step);
  void write();

  RingWriter* ring_;
  StepDetector detector_;
  std::vector<Item> pending_;
  std::uint32_t sketch_floats_;
  bool open_ = false;
  RecordHead current_{};
  std::vector<float> sum_;
};

}  // namespace gradprobe
