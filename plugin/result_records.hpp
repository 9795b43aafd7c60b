// Records of what collectives left in their outputs (GRADPROBE_RESULT). Of several measurements of one result, one
// after every launch that may have completed it, only the last counts; its record follows that of the collective's
// input. Owned by the collector; not thread-safe.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "ops.hpp"
#include "ring_writer.hpp"

namespace gradprobe {

class ResultRecords {
 public:
  explicit ResultRecords(RingWriter* ring) : ring_(ring) {}

  // The record of a collective's input has been written: its steps are those of the result, too.
  void input_written(const RecordHead& input);

  // The input of a directly launched collective has been measured and its result will be; `unmeasured` is the result's
  // record without measures.
  void expect(const RecordHead& unmeasured);
  // The expected record; null when there is none for this op.
  const RecordHead* expected(std::uint64_t op) const;
  // A measurement of an expected result. `sketch` may be empty.
  void hold(const RecordHead& record, std::vector<float> sketch);
  // No measurement of an expected result follows; `missed` says why when there was none.
  void complete(std::uint64_t op, Missed missed);

  // A result that needs no waiting: that of a graph's replay, behind its input.
  void write(RecordHead record, const float* sketch);

  // Writes what can still be waiting: nothing follows.
  void finish();

 private:
  struct Held {
    RecordHead record;
    std::vector<float> sketch;
    bool measured = false, complete = false;
  };
  // Of the newest input record with this place in the table.
  struct InputSteps {
    std::uint64_t op = kNone;
    std::uint64_t step = kNone;
    std::uint32_t replay = 0;
    std::uint32_t step_op = 0;
    std::uint32_t ops_per_step = 0;
    std::uint32_t flags = 0;
    bool measured = false;
  };

  InputSteps* steps_of(std::uint64_t op) { return &steps_[op % kDirectOps]; }
  void release(std::map<std::uint64_t, Held>::iterator held);

  RingWriter* ring_;
  std::unique_ptr<InputSteps[]> steps_ = std::make_unique<InputSteps[]>(kDirectOps);
  std::map<std::uint64_t, Held> held_;  // by op
};

}  // namespace gradprobe
