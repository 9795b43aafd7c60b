#include "result_records.hpp"

namespace gradprobe {

ResultRecords::InputSteps::InputSteps(const RecordHead& input)
    : step(input.step),
      replay(input.replay),
      step_op(input.step_op),
      ops_per_step(input.ops_per_step),
      flags(input.flags & (kFlagStepConfirmed | kFlagExtraOp)) {}

void ResultRecords::InputSteps::fill(RecordHead* result) const {
  result->step = step;
  result->step_op = step_op;
  result->ops_per_step = ops_per_step;
  result->flags |= flags;
}

void ResultRecords::input_written(const RecordHead& input) {
  if (input.replay != 0) {
    replays_.insert_or_assign(input.op, InputSteps(input));
    return;
  }
  const auto held = held_.find(input.op);
  if (held == held_.end()) return;
  held->second.steps.emplace(input);
  if (held->second.complete) release(held);
}

void ResultRecords::release(std::map<std::uint64_t, Held>::iterator held) {
  const Held result = std::move(held->second);
  held_.erase(held);
  RecordHead record = result.measured ? result.record : result.unmeasured;
  if (result.steps) result.steps->fill(&record);
  put(record, result.measured && !result.sketch.empty() ? result.sketch.data() : nullptr);
}

void ResultRecords::expect(const RecordHead& unmeasured) {
  Held held;
  held.unmeasured = unmeasured;
  held.unmeasured.missed = static_cast<std::uint16_t>(Missed::result_lost);
  held_.insert_or_assign(unmeasured.op, std::move(held));
}

const RecordHead* ResultRecords::expected(std::uint64_t op) const {
  const auto held = held_.find(op);
  return held == held_.end() ? nullptr : &held->second.unmeasured;
}

void ResultRecords::hold(const RecordHead& record, std::vector<float> sketch, std::uint32_t launch) {
  const auto held = held_.find(record.op);
  if (held == held_.end()) return;
  held->second.record = record;
  held->second.sketch = std::move(sketch);
  held->second.launch = launch;
  held->second.measured = true;
}

void ResultRecords::complete(std::uint64_t op, std::uint32_t last_launch, Missed missed) {
  const auto held = held_.find(op);
  if (held == held_.end()) return;
  held->second.complete = true;
  held->second.measured &= held->second.launch == last_launch;
  held->second.unmeasured.missed = static_cast<std::uint16_t>(missed);
  if (held->second.steps) release(held);
}

void ResultRecords::write(RecordHead record, const float* sketch) {
  if (const auto steps = replays_.find(record.op); steps != replays_.end() && steps->second.replay == record.replay)
    steps->second.fill(&record);
  put(record, sketch);
}

void ResultRecords::put(RecordHead record, const float* sketch) {
  if (record.missed == 0)
    ring_->count_results(1);
  else
    record.collective.raw_count = 0;
  ring_->write(record, sketch);
}

void ResultRecords::finish() {
  while (!held_.empty()) release(held_.begin());
}

}  // namespace gradprobe
