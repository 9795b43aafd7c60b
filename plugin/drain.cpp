#include "drain.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace gradprobe {

Drain::Drain(Communicator* communicator, std::unique_ptr<RingWriter> ring, const Config& config,
             std::atomic<bool>* switched_off)
    : communicator_(communicator),
      tables_(communicator->tables()),
      channel_(communicator->channel()),
      ring_(std::move(ring)),
      switched_off_(switched_off),
      folder_(ring_.get(), config.sketch_floats, config.ops_per_step) {}

bool Drain::poll() {
  // Slots that ended before the results are read: all their results are among those read now.
  std::uint64_t ended = freed_;
  const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_acquire);
  while (ended < opened && slot_ended(ended)) ended++;
  bool busy = read_results();
  for (; freed_ < ended; busy = true) {
    end_entries(static_cast<std::uint32_t>(freed_ % kDirectSlots));
    tables_.slots_freed.store(++freed_, std::memory_order_release);
  }
  busy |= advance();
  count_uncounted();
  return busy;
}

bool Drain::slot_ended(std::uint64_t i) const {
  const Slot& slot = tables_.slots[i % kDirectSlots];
  const SlotState state = slot.state.load(std::memory_order_acquire);
  if (state != SlotState::published && state != SlotState::cancelled) return false;
  if (!slot.launched.load(std::memory_order_acquire) || slot.failed.load(std::memory_order_acquire)) return true;
  std::uint32_t& runs = channel_.slot(static_cast<std::uint32_t>(i % kDirectSlots)).runs;
  return std::atomic_ref<std::uint32_t>(runs).load(std::memory_order_acquire) > 0;
}

bool Drain::read_results() {
  bool any = false;
  for (;;) {
    gate::Result& result = channel_.result(results_read_);
    if (std::atomic_ref<std::uint64_t>(result.seq).load(std::memory_order_acquire) != results_read_ + 1) return any;
    any = true;
    if (result.slot < kWarmUpSlot) {
      if (result.status == gate::kMeasured)
        take(result);
      else
        take_slot_status(result);
    }
    results_read_++;
    std::atomic_ref<std::uint64_t>(channel_.control().consumed).store(results_read_, std::memory_order_release);
  }
}

void Drain::take_slot_status(const gate::Result& result) {
  SlotView& view = views_[result.slot];
  const Slot& slot = tables_.slots[result.slot];
  view.timed_out |= result.status == gate::kTimedOut;
  view.busy |= result.status == gate::kBusy;
  view.invalid |= result.status == gate::kInvalid;
  ring_->count_gate_wait(result.gate_wait_ns);
  if (result.status == gate::kTimedOut && slot.slow_launch.load(std::memory_order_relaxed) &&
      !switched_off_->exchange(true)) {
    communicator_->log().warn(
        "kernel launches of this process block until the kernel ends (a debugger or another profiler?): measuring is "
        "switched off for the whole process");
  }
  // A captured slot's entries stay for later replays; this replay's are missed.
  if (result.slot >= kDirectSlots) {
    const Missed reason = view.busy ? Missed::busy : view.timed_out ? Missed::timeout : Missed::ambiguous;
    ring_->count_missed(reason, slot.capacity);
    view = SlotView{};
  }
}

RecordHead Drain::record_of(const Op& op) const {
  RecordHead record{};
  record.kind = static_cast<std::uint16_t>(op.mode == gate::kRaw ? RecordKind::scalar : RecordKind::collective);
  record.op = op.ordinal;
  record.step = kNone;
  CollectiveBody& body = record.collective;
  body.count = op.count;
  body.input = op.send;
  body.output = op.recv;
  body.function = static_cast<std::uint8_t>(op.function);
  body.datatype = static_cast<std::uint8_t>(op.datatype);
  body.zero_count = body.first_nonfinite = kNone;
  if (op.captured) record.flags |= kFlagCaptured;
  if (op.addressed && op.send == op.recv) record.flags |= kFlagInPlace;
  return record;
}

void Drain::take(const gate::Result& result) {
  Slot& slot = tables_.slots[result.slot];
  if (slot.state.load(std::memory_order_acquire) != SlotState::published ||
      result.entry >= slot.entries.load(std::memory_order_acquire))
    return;
  Op& op = *tables_.entry_op[slot.first_entry + result.entry];
  if (op.captured && result.run >= op.moved_from.load(std::memory_order_acquire)) {
    ring_->count_missed(Missed::ambiguous);
    return;
  }
  if (!op.captured) advance();  // what was missed before this op comes first
  RecordHead record = record_of(op);
  CollectiveBody& body = record.collective;
  if (op.captured) record.replay = result.run;
  if ((result.flags & gate::kResultSketchInvalid) != 0) record.flags |= kFlagSketchInvalid;
  if (result.zero_count != kNone) record.flags |= kFlagZerosCounted;
  body.sum_squares = result.sum_squares;
  body.max_abs = result.max_abs;
  body.nan_count = result.nan_count;
  body.inf_count = result.inf_count;
  body.zero_count = result.zero_count;
  body.first_nonfinite = result.first_nonfinite;
  body.gpu_start_ns = result.start_ns;
  body.gpu_end_ns = result.end_ns;
  body.gate_wait_ns = result.gate_wait_ns;
  body.sketch_key = result.key;
  const float* sketch = nullptr;
  if (op.mode == gate::kRaw) {
    body.raw_count = static_cast<std::uint32_t>(op.count);
    std::memcpy(body.raw, result.raw, std::min<std::size_t>(sizeof body.raw, op.count * element_bytes(op.datatype)));
  } else if (result.sketch_floats != 0) {
    sketch = GateChannel::sketch(result);
  }
  if (op.captured || op.ordinal == collected_) folder_.feed(&record, sketch);
  ring_->write(record, sketch);
  ring_->count_measured(1);
  ring_->count_gate_wait(result.gate_wait_ns);
  if (!op.captured) op.state.store(OpState::done, std::memory_order_release);
  if (!op.captured && op.ordinal == collected_) tables_.collected.store(++collected_, std::memory_order_release);
}

void Drain::end_entries(std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  SlotView& view = views_[index];
  Missed reason = Missed::result_lost;
  if (slot.failed.load(std::memory_order_acquire))
    reason = Missed::launch_failed;
  else if (view.timed_out || slot.state.load(std::memory_order_acquire) == SlotState::cancelled)
    reason = Missed::timeout;
  else if (view.busy)
    reason = Missed::busy;
  else if (view.invalid)
    reason = Missed::ambiguous;
  const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < entries; i++) {
    Op& op = *tables_.entry_op[slot.first_entry + i];
    if (op.state.load(std::memory_order_acquire) != OpState::announced) continue;
    op.reason = reason;
    op.state.store(OpState::missed, std::memory_order_release);
  }
  view = SlotView{};
  slot.state.store(SlotState::free, std::memory_order_release);
}

void Drain::write_missed(Op* op) {
  RecordHead record = record_of(*op);
  record.missed = static_cast<std::uint16_t>(op->reason);
  folder_.feed(&record, nullptr);
  ring_->write(record, nullptr);
  ring_->count_missed(op->reason);
}

bool Drain::advance() {
  const std::uint64_t announced = tables_.announced.load(std::memory_order_acquire);
  const std::uint64_t before = collected_;
  while (collected_ < announced) {
    Op& op = tables_.direct_op(collected_);
    const OpState state = op.state.load(std::memory_order_acquire);
    if (state == OpState::announced) break;
    if (state == OpState::missed) {
      write_missed(&op);
    } else if (state == OpState::done) {
      // Its result came before an earlier op's: the record is written, only the step's order still waits for it.
      RecordHead record = record_of(op);
      record.missed = static_cast<std::uint16_t>(Missed::result_lost);
      folder_.feed(&record, nullptr);
    }
    tables_.collected.store(++collected_, std::memory_order_release);
  }
  ring_->set_announced(announced);
  return collected_ != before;
}

void Drain::count_uncounted() {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Missed::count_); i++) {
    const std::uint64_t n = tables_.uncounted[i].load(std::memory_order_relaxed);
    if (n != counted_[i]) ring_->count_missed(static_cast<Missed>(i), n - counted_[i]);
    counted_[i] = n;
  }
}

bool Drain::quiescent() const {
  const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_acquire);
  if (freed_ != opened) return false;
  for (std::uint32_t i = 0; i < kDirectSlots; i++)
    if (tables_.slots[i].failed.load() && tables_.slots[i].launched.load()) return false;
  return true;
}

void Drain::finish() {
  poll();
  const std::uint64_t announced = tables_.announced.load(std::memory_order_acquire);
  for (std::uint64_t i = collected_; i < announced; i++) {
    Op& op = tables_.direct_op(i);
    if (op.state.load(std::memory_order_acquire) != OpState::announced) continue;
    op.reason = op.placed ? Missed::result_lost : Missed::no_events;
    op.state.store(OpState::missed, std::memory_order_release);
  }
  advance();
  count_uncounted();
  folder_.finish();
  ring_->heartbeat();
  ring_->set_state(RingState::finalized);
}

std::string Drain::summary() const {
  std::string reasons;
  std::uint64_t missed = 0;
  for (std::size_t i = 1; i < static_cast<std::size_t>(Missed::count_); i++) {
    const auto reason = static_cast<Missed>(i);
    const std::uint64_t n = ring_->missed(reason);
    if (n == 0 || reason == Missed::unsupported_function) continue;  // never meant to be measured: not missed
    missed += n;
    reasons += std::string(reasons.empty() ? " (" : ", ") + name(reason) + " " + std::to_string(n);
  }
  return std::to_string(ring_->measured()) + " measured, " + std::to_string(missed) + " missed" +
         (reasons.empty() ? "" : reasons + ")");
}

}  // namespace gradprobe
