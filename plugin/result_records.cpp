#include "result_records.hpp"

namespace gradprobe {

void ResultRecords::input_written(const RecordHead& input) {
  InputSteps& steps = *steps_of(input.op);
  steps.op = input.op;
  steps.step = input.step;
  steps.replay = input.replay;
  steps.step_op = input.step_op;
  steps.ops_per_step = input.ops_per_step;
  steps.flags = input.flags & (kFlagStepConfirmed | kFlagExtraOp);
  steps.measured = input.missed == 0;
  if (const auto held = held_.find(input.op); held != held_.end() && held->second.complete) release(held);
}

void ResultRecords::release(std::map<std::uint64_t, Held>::iterator held) {
  const Held result = std::move(held->second);
  held_.erase(held);
  write(result.record, result.sketch.empty() ? nullptr : result.sketch.data());
}

void ResultRecords::expect(const RecordHead& unmeasured) {
  Held& held = held_[unmeasured.op] = Held{unmeasured, {}, false, false};
  held.record.missed = static_cast<std::uint16_t>(Missed::result_lost);
}

const RecordHead* ResultRecords::expected(std::uint64_t op) const {
  const auto held = held_.find(op);
  return held == held_.end() ? nullptr : &held->second.record;
}

void ResultRecords::hold(const RecordHead& record, std::vector<float> sketch) {
  held_[record.op] = Held{record, std::move(sketch), true, false};
}

void ResultRecords::complete(std::uint64_t op, Missed missed) {
  const auto held = held_.find(op);
  if (held == held_.end()) return;
  held->second.complete = true;
  if (!held->second.measured) held->second.record.missed = static_cast<std::uint16_t>(missed);
  // Otherwise the input's turn hasn't come.
  if (const InputSteps& input = *steps_of(op); input.op == op && input.replay == 0) release(held);
}

void ResultRecords::write(RecordHead record, const float* sketch) {
  const InputSteps& input = *steps_of(record.op);
  if (input.op == record.op && input.replay == record.replay) {
    record.step = input.step;
    record.step_op = input.step_op;
    record.ops_per_step = input.ops_per_step;
    record.flags |= input.flags;
    // The input's record has said why already.
    if (record.missed != 0 && !input.measured) return;
  }
  if (record.missed == 0)
    ring_->count_results(1);
  else
    record.collective.raw_count = 0;
  ring_->write(record, sketch);
}

void ResultRecords::finish() {
  for (const auto& [op, result] : held_) write(result.record, result.sketch.empty() ? nullptr : result.sketch.data());
  held_.clear();
}

}  // namespace gradprobe
