#include "step_folder.hpp"

#include <gradprobe/scalar.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace gradprobe {

StepFolder::StepFolder(RingWriter* ring, std::uint32_t sketch_floats, std::uint64_t ops_per_step)
    : ring_(ring),
      ops_per_step_(ops_per_step),
      detector_(ops_per_step),
      sketch_floats_(sketch_floats),
      sum_(sketch_floats) {}

void StepFolder::mark(const Mark& mark, RecordHead* record) {
  record->step = kNone;
  if (replays_) return;
  if (mark.kind == MarkKind::step && mark.step != marked_step_) {
    marked_step_ = mark.step;
    marked_ops_ = 0;
    pending_ = {};  // no step was found for what came before the first mark
    if (open_) write();
  }
  if (marked_step_ == kNone) return;
  record->step = marked_step_;
  record->flags |= kFlagStepConfirmed;
}

void StepFolder::begin_replays() {
  if (std::exchange(replays_, true) || marked_step_ == kNone) return;
  if (open_) write();
  found_from_ = marked_step_ + 1;
  marked_step_ = kNone;
  detector_ = StepDetector(ops_per_step_);
}

StepDetector::Position StepFolder::position_of(Function function, Datatype datatype, std::uint64_t count) {
  if (marked_step_ != kNone) return {true, marked_step_, marked_ops_++, 0, false};
  StepDetector::Position p = detector_.feed(step_signature(function, datatype, count));
  if (p.confirmed) p.step += found_from_;
  if (detector_.confirmed_now()) fold_pending();
  return p;
}

void StepFolder::feed(RecordHead* record, const float* sketch) {
  if ((record->flags & kFlagCaptured) != 0) begin_replays();
  const CollectiveBody& body = record->collective;
  const StepDetector::Position p =
      position_of(static_cast<Function>(body.function), static_cast<Datatype>(body.datatype), body.count);
  const std::uint64_t fed = detector_.fed() - 1;
  if (!p.confirmed) {
    // An irregular run without steps must not keep everything for ever.
    if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
    Item item{fed, *record, {}};
    if (sketch != nullptr) item.sketch.assign(sketch, sketch + sketch_floats_);
    pending_.push_back(std::move(item));
    return;
  }
  record->step = p.step;
  record->step_op = p.step_op;
  record->ops_per_step = p.ops_per_step;
  record->flags |= kFlagStepConfirmed | (p.extra ? kFlagExtraOp : 0u);
  fold(*record, sketch, p.step, p.ops_per_step);
}

void StepFolder::pass(Function function, Datatype datatype, std::uint64_t count) {
  position_of(function, datatype, count);
}

void StepFolder::fold_pending() {
  for (const Item& item : pending_) {
    const StepDetector::Position earlier = detector_.confirmation().locate(item.fed);
    if (earlier.step == kNone) continue;
    fold(item.record, item.sketch.empty() ? nullptr : item.sketch.data(), earlier.step + found_from_,
         earlier.ops_per_step);
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
