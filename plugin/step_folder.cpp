#include "step_folder.hpp"

#include <gradprobe/scalar.hpp>

#include <algorithm>
#include <limits>

namespace gradprobe {

StepFolder::StepFolder(RingWriter* ring, std::uint32_t sketch_floats, std::uint64_t ops_per_step)
    : ring_(ring), detector_(ops_per_step), sketch_floats_(sketch_floats), sum_(sketch_floats) {}

void StepFolder::feed(RecordHead* record, const float* sketch) {
  const CollectiveBody& body = record->collective;
  const std::uint64_t fed = detector_.fed();
  const StepDetector::Position p = detector_.feed(
      step_signature(static_cast<Function>(body.function), static_cast<Datatype>(body.datatype), body.count));
  if (!p.confirmed) {
    // An irregular run without steps must not keep everything for ever.
    if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
    Item item{fed, *record, {}};
    if (sketch != nullptr) item.sketch.assign(sketch, sketch + sketch_floats_);
    pending_.push_back(std::move(item));
    return;
  }
  if (detector_.confirmed_now()) fold_pending();
  record->step = p.step;
  record->step_op = p.step_op;
  record->ops_per_step = p.ops_per_step;
  record->flags |= kFlagStepConfirmed | (p.extra ? kFlagExtraOp : 0u);
  fold(*record, sketch, p.step, p.ops_per_step);
}

void StepFolder::pass(Function function, Datatype datatype, std::uint64_t count) {
  detector_.feed(step_signature(function, datatype, count));
  if (detector_.confirmed_now()) fold_pending();
}

void StepFolder::fold_pending() {
  for (const Item& item : pending_) {
    const StepDetector::Position earlier = detector_.confirmation().locate(item.fed);
    if (earlier.step == kNone) continue;
    fold(item.record, item.sketch.empty() ? nullptr : item.sketch.data(), earlier.step, earlier.ops_per_step);
  }
  pending_ = {};
}

void StepFolder::fold(const RecordHead& record, const float* sketch, std::uint64_t step, std::uint32_t ops_per_step) {
  if (open_ && current_.step != step) write();
  StepBody& s = current_.step_body;
  if (!open_) {
    open_ = true;
    current_ = RecordHead{};
    current_.kind = static_cast<std::uint16_t>(RecordKind::step);
    current_.op = record.op;
    current_.step = step;
    current_.ops_per_step = ops_per_step;
    current_.flags = kFlagStepConfirmed;
    s = StepBody{};
    s.first_op = record.op;
    s.first_bad_op = s.first_nonfinite = kNone;
    s.gpu_start_ns = std::numeric_limits<std::uint64_t>::max();
    s.scalar_sum = std::numeric_limits<double>::quiet_NaN();
    std::fill(sum_.begin(), sum_.end(), 0.0f);
  }
  const CollectiveBody& body = record.collective;
  s.ops++;
  if (record.missed != 0) {
    s.missed++;
    return;
  }
  s.gpu_start_ns = std::min(s.gpu_start_ns, body.gpu_start_ns);
  s.gpu_end_ns = std::max(s.gpu_end_ns, body.gpu_end_ns);
  if (static_cast<RecordKind>(record.kind) == RecordKind::scalar) {
    s.scalars++;
    if (const auto loss = loss_value(record)) s.scalar_sum = *loss;
    return;
  }
  s.measured++;
  s.elements += body.count;
  s.sum_squares += body.sum_squares;
  s.max_abs = std::max(s.max_abs, body.max_abs);
  s.nan_count += body.nan_count;
  s.inf_count += body.inf_count;
  if (body.first_nonfinite != kNone && s.first_bad_op == kNone) {
    s.first_bad_op = record.op;
    s.first_nonfinite = body.first_nonfinite;
  }
  current_.flags |= record.flags & (kFlagSketchInvalid | kFlagCaptured);
  if (sketch == nullptr) return;
  for (std::uint32_t i = 0; i < sketch_floats_; i++) sum_[i] += sketch[i];
}

void StepFolder::write() {
  if (current_.step_body.gpu_start_ns == std::numeric_limits<std::uint64_t>::max()) current_.step_body.gpu_start_ns = 0;
  const bool any = current_.step_body.measured > 0 && sketch_floats_ > 0;
  ring_->write(current_, any ? sum_.data() : nullptr);
  open_ = false;
}

void StepFolder::finish() {
  if (open_) write();
}

}  // namespace gradprobe
