// Records of what collectives left in their outputs (GRADPROBE_RESULT_EVERY). Of several measurements of one result,
// one after every launch that may have completed it, only the last counts; its record follows that of the collective's
// input. Owned by the collector; not thread-safe.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstdint>
#include <map>
#include <optional>
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
  // A measurement of an expected result, made by launch number `launch`. `sketch` may be empty.
  void hold(const RecordHead& record, std::vector<float> sketch, std::uint32_t launch);
  // No measurement of an expected result follows. Only one by `last_launch` counts; `missed` says why there is none.
  void complete(std::uint64_t op, std::uint32_t last_launch, Missed missed);

  // A result that needs no waiting: that of a graph's replay, behind its input.
  void write(RecordHead record, const float* sketch);

  // No result of the op is recorded any more: the captured op's graph is gone, or NCCL refused the call.
  void forget(std::uint64_t op) {
    replays_.erase(op);
    held_.erase(op);
  }

  // Writes what can still be waiting: nothing follows.
  void finish();

 private:
  // What a result's record has of its input's.
  struct InputSteps {
    std::uint64_t step = kNone;
    std::uint32_t replay = 0;
    std::uint32_t step_op = 0;
    std::uint32_t ops_per_step = 0;
    std::uint32_t flags = 0;

    explicit InputSteps(const RecordHead& input);
    void fill(RecordHead* result) const;
  };
  struct Held {
    RecordHead unmeasured{};
    RecordHead record{};  // the newest measurement
    std::vector<float> sketch;
    std::uint32_t launch = 0;  // of the measurement
    bool measured = false, complete = false;
    std::optional<InputSteps> steps;  // since the input's record was written
  };

  void put(RecordHead record, const float* sketch);
  void release(std::map<std::uint64_t, Held>::iterator held);

  RingWriter* ring_;
  std::map<std::uint64_t, Held> held_;           // results of direct launches, by op
  std::map<std::uint64_t, InputSteps> replays_;  // of the newest replay of captured ops, by op
};

}  // namespace gradprobe
