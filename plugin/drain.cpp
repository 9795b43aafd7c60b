#include "drain.hpp"

#include <gradprobe/no_events.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

namespace gradprobe {
namespace {

// The measures of a result in pinned memory.
void fill(RecordHead* record, const gate::Result& result) {
  CollectiveBody& body = record->collective;
  if ((record->flags & kFlagCaptured) != 0) record->replay = result.run;
  if ((result.flags & gate::kResultSketchInvalid) != 0) record->flags |= kFlagSketchInvalid;
  if (result.zero_count != kNone) record->flags |= kFlagZerosCounted;
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
  body.fingerprint = result.fingerprint;
  std::memcpy(
      body.raw, result.raw,
      std::min<std::size_t>(sizeof body.raw, body.raw_count * element_bytes(static_cast<Datatype>(body.datatype))));
}

constexpr std::uint32_t kNoLaunch = UINT32_MAX;

// From some replay on, the buffers that NCCL told were not those that the gate reads.
bool moved(const Op& op, std::uint32_t run) {
  return op.captured && run >= op.moved_from.load(std::memory_order_acquire);
}

std::vector<float> sketch_of(const gate::Result& result) {
  const float* sketch = GateChannel::sketch(result);
  return {sketch, sketch + result.sketch_floats};
}

}  // namespace

Drain::Drain(Communicator* communicator, std::unique_ptr<RingWriter> ring, const Config& config)
    : communicator_(communicator),
      tables_(communicator->tables()),
      channel_(communicator->channel()),
      ring_(std::move(ring)),
      folder_(ring_.get(), config.sketch_floats, config.ops_per_step),
      results_(ring_.get()) {}

bool Drain::poll() {
  follow_control();
  const std::uint32_t released = tables_.graphs_released.load(std::memory_order_acquire);
  // Slots that ended before the results are read: all their results are among those read now, or behind one that a pass
  // on another stream is still writing.
  std::uint64_t ended = freed_;
  const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_acquire);
  while (ended < opened && slot_ended(ended)) ended++;
  bool busy = read_results();
  for (; freed_ < ended && !awaits_results(freed_); busy = true) {
    end_entries(static_cast<std::uint32_t>(freed_ % kDirectSlots));
    tables_.slots_freed.store(++freed_, std::memory_order_release);
  }
  if (released != graphs_released_) end_released_slots(released);
  expire_overdue_slot();
  busy |= advance();
  count_uncounted();
  ring_->set_marks_lost(communicator_->marks().lost());
  count_dropped_replays();
  return busy;
}

bool Drain::awaits_results(std::uint64_t i) {
  const auto index = static_cast<std::uint32_t>(i % kDirectSlots);
  const Slot& slot = tables_.slots[index];
  const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
  std::uint32_t outputs = 0;
  if (slot.results_launched.load(std::memory_order_acquire) != 0)
    for (std::uint32_t e = 0; e < entries; e++) outputs += channel_->entry(slot.first_entry + e).output != 0 ? 1u : 0u;
  // All are there in the usual case, and the ring needn't be searched.
  if (views_[index].inputs_read >= entries &&
      views_[index].results_read >= outputs * slot.results_launched.load(std::memory_order_acquire))
    return false;
  return has_unread_results(index);
}

bool Drain::has_unread_results(std::uint32_t slot) const {
  for (std::uint64_t i = results_read_; i < results_read_ + kResults; i++) {
    gate::Result& result = channel_->result(i);
    if (std::atomic_ref<std::uint64_t>(result.seq).load(std::memory_order_acquire) == i + 1 && result.slot == slot)
      return true;
  }
  return false;
}

void Drain::follow_control() {
  if (channel_ == nullptr) return;
  // Replays make no call that could look at the settings, so the device reads them.
  const Control& control = communicator_->control();
  Sampling sampling;
  if (control.version() == control_version_ || !control.try_get(&sampling, &control_version_)) return;
  gate::GateControl& shared = channel_->control();
  std::atomic_ref<std::uint32_t>(shared.replay_every)
      .store(sampling.measure ? sampling.every : 0, std::memory_order_relaxed);
  std::atomic_ref<std::uint32_t>(shared.replay_result_every).store(sampling.result_every, std::memory_order_relaxed);
}

// Slots of graphs that were gone before the results were read: none can follow.
void Drain::end_released_slots(std::uint32_t released) {
  for (std::uint32_t i = kDirectSlots; i < kWarmUpSlot && graphs_released_ != released; i++) {
    Slot& slot = tables_.slots[i];
    // In this order: a slot that is being given back loses `drained` last.
    if (slot.drained.load(std::memory_order_acquire) || !slot.graph_released.load(std::memory_order_acquire) ||
        has_unread_results(i))
      continue;
    if (replay_slot_ == i) write_replay();
    const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
    for (std::uint32_t e = 0; e < entries; e++) results_.forget(tables_.entry_owners[slot.first_entry + e].ordinal);
    count_dropped_replays(i);
    // Counted; the slot's next graph starts from 0.
    std::atomic_ref<std::uint32_t>(channel_->slot(i).dropped).store(0, std::memory_order_relaxed);
    views_[i] = SlotView{};
    slot.drained.store(true, std::memory_order_release);
    tables_.slots_drained.fetch_add(1, std::memory_order_release);
    graphs_released_++;
  }
}

void Drain::expire_overdue_slot() {
  // Records are written in the order of the calls, so a launch whose buffers NCCL never tells would hold up all that
  // follow. Its gate has timed out; a host callback half a second later than that will not come.
  constexpr auto kPatience = std::chrono::milliseconds(500);
  if (freed_ == tables_.slots_opened.load(std::memory_order_acquire)) return;
  const auto index = static_cast<std::uint32_t>(freed_ % kDirectSlots);
  const Slot& slot = tables_.slots[index];
  if (slot.state.load(std::memory_order_acquire) != SlotState::open || !views_[index].timed_out) return;
  const auto now = std::chrono::steady_clock::now();
  if (overdue_slot_ != freed_) {
    overdue_slot_ = freed_;
    overdue_since_ = now;
  } else if (now - overdue_since_ >= kPatience) {
    communicator_->expire(index);
  }
}

bool Drain::slot_ended(std::uint64_t i) const {
  const Slot& slot = tables_.slots[i % kDirectSlots];
  const SlotState state = slot.state.load(std::memory_order_acquire);
  if (state != SlotState::published && state != SlotState::cancelled) return false;
  if (!slot.launched.load(std::memory_order_acquire) || slot.failed.load(std::memory_order_acquire)) return true;
  if (slot.results_open.load(std::memory_order_acquire)) return false;
  gate::GateSlot& shared = channel_->slot(static_cast<std::uint32_t>(i % kDirectSlots));
  return std::atomic_ref<std::uint32_t>(shared.runs).load(std::memory_order_acquire) > 0 &&
         std::atomic_ref<std::uint32_t>(shared.result_runs).load(std::memory_order_acquire) >=
             slot.results_launched.load(std::memory_order_acquire);
}

void Drain::count_dropped_replays() {
  if (channel_ == nullptr) return;
  const std::uint64_t dropped =
      std::atomic_ref<std::uint64_t>(channel_->control().dropped).load(std::memory_order_acquire);
  if (dropped == dropped_) return;
  dropped_ = dropped;
  // What direct slots lack is seen when they end.
  for (std::uint32_t i = kDirectSlots; i < kWarmUpSlot; i++) count_dropped_replays(i);
}

void Drain::count_dropped_replays(std::uint32_t slot) {
  const std::uint32_t now =
      std::atomic_ref<std::uint32_t>(channel_->slot(slot).dropped).load(std::memory_order_acquire);
  if (now == views_[slot].dropped) return;
  ring_->count_missed(Missed::result_lost, now - views_[slot].dropped);
  views_[slot].dropped = now;
}

bool Drain::read_results() {
  bool any = false;
  if (channel_ == nullptr) return any;
  for (;;) {
    gate::Result& result = channel_->result(results_read_);
    if (std::atomic_ref<std::uint64_t>(result.seq).load(std::memory_order_acquire) != results_read_ + 1) return any;
    any = true;
    if (result.slot < kWarmUpSlot) {
      SlotView& view = views_[result.slot];
      (result.pass == gate::kInputPass ? view.inputs_read : view.results_read)++;
      if (result.status == gate::kMeasured)
        take(result);
      else
        take_slot_status(result);
    }
    results_read_++;
    std::atomic_ref<std::uint64_t>(channel_->control().consumed).store(results_read_, std::memory_order_release);
  }
}

void Drain::take_slot_status(const gate::Result& result) {
  SlotView& view = views_[result.slot];
  const Slot& slot = tables_.slots[result.slot];
  const bool captured = result.slot >= kDirectSlots;
  // One entry that makes no sense, or a slot of more entries than the device takes.
  const bool one_entry =
      result.status == gate::kInvalid && slot.entries.load(std::memory_order_acquire) <= gate::kMaxEntries;
  if (result.pass == gate::kResultPass) {
    // The input was measured; direct collectives' results are completed when their slot ends.
    const Missed reason = result.status == gate::kBusy ? Missed::workspace : Missed::ambiguous;
    view.result_missed = reason;
    if (captured) miss_replayed_results(result, one_entry, reason);
    return;
  }
  view.timed_out |= result.status == gate::kTimedOut;
  view.busy |= result.status == gate::kBusy;
  view.invalid |= result.status == gate::kInvalid;
  ring_->count_gate_wait(result.gate_wait_ns);
  if (!captured && view.timed_out) {
    vain_gates_ += kVainGateWeight;
    if (vain_gates_ >= kVainGateWeight * kMostVainGates) communicator_->stop_gating();
  }
  // A captured slot's entries stay for later replays; this replay's are missed.
  if (captured) {
    const Missed reason = view.busy ? Missed::workspace : view.timed_out ? Missed::timeout : Missed::ambiguous;
    ring_->count_missed(reason, one_entry ? 1 : slot.capacity.load(std::memory_order_relaxed));
    // As records, so that the steps of all ranks stay the same.
    const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
    for (std::uint32_t e = one_entry ? result.entry : 0; e < (one_entry ? result.entry + 1 : entries); e++)
      miss_replayed(result, *tables_.entry_owners[slot.first_entry + e].op, reason);
    // NCCL launches some collectives without a word: replays must not wait for their buffers again and again.
    const std::uint32_t timeouts = view.timeouts + (view.timed_out ? 1 : 0);
    if (view.timed_out && timeouts == kReplaysThatWait) communicator_->expire(result.slot);
    view = SlotView{.dropped = view.dropped, .timeouts = timeouts};
  }
}

void Drain::miss_replayed_results(const gate::Result& result, bool one_entry, Missed reason) {
  const Slot& slot = tables_.slots[result.slot];
  if (result.launch != slot.last_result_launch.load(std::memory_order_acquire)) return;
  write_replay();
  const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < entries; i++) {
    const Op& op = *tables_.entry_owners[slot.first_entry + i].op;
    if (!op.result_wanted || (one_entry && i != result.entry)) continue;
    RecordHead record = result_record_of(op);
    record.replay = result.run;
    record.missed = static_cast<std::uint16_t>(reason);
    results_.write(record, nullptr);
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
  if (op.mode == gate::kRaw) body.raw_count = static_cast<std::uint32_t>(op.count);
  if (op.captured) record.flags |= kFlagCaptured;
  if (op.addressed && op.send == op.recv) record.flags |= kFlagInPlace;
  if (op.symmetric) record.flags |= kFlagSymmetric;
  return record;
}

RecordHead Drain::result_record_of(const Op& op) const {
  RecordHead record = record_of(op);
  record.kind = static_cast<std::uint16_t>(RecordKind::result);
  record.collective.count = op.output_count;
  if (op.mode == gate::kRaw) record.collective.raw_count = static_cast<std::uint32_t>(op.output_count);
  return record;
}

void Drain::take(const gate::Result& result) {
  Slot& slot = tables_.slots[result.slot];
  if (slot.state.load(std::memory_order_acquire) != SlotState::published ||
      result.entry >= slot.entries.load(std::memory_order_acquire))
    return;
  const std::uint32_t at = slot.first_entry + result.entry;
  if (result.pass == gate::kResultPass) {
    if (result.slot >= kDirectSlots)
      take_replayed_result(result, *tables_.entry_owners[at].op);
    else
      take_direct_result(result, tables_.entry_owners[at].ordinal);
    return;
  }
  Op& op = *tables_.entry_owners[at].op;
  if (moved(op, result.run)) {
    ring_->count_missed(Missed::ambiguous);
    if (!op.refused.load(std::memory_order_acquire)) miss_replayed(result, op, Missed::ambiguous);
    return;
  }
  Held held{record_of(op), sketch_of(result)};
  fill(&held.record, result);
  if (result.entry == 0) {
    ring_->count_gate_wait(result.gate_wait_ns);  // one wait, whatever number of entries
    if (vain_gates_ > 0) vain_gates_--;
  }
  if (op.captured) {
    hold_replay(result, std::move(held));
    return;
  }
  if (op.result_wanted) results_.expect(result_record_of(op));
  held_.insert_or_assign(op.ordinal, std::move(held));
  op.state.store(OpState::done, std::memory_order_release);
  advance();
}

void Drain::take_direct_result(const gate::Result& result, std::uint64_t ordinal) {
  const RecordHead* expected = results_.expected(ordinal);
  if (expected == nullptr) return;
  RecordHead record = *expected;
  record.missed = 0;
  fill(&record, result);
  results_.hold(record, sketch_of(result), result.launch);
}

void Drain::take_replayed_result(const gate::Result& result, const Op& op) {
  // Earlier launches of a captured group may have left the result half-made.
  const Slot& slot = tables_.slots[result.slot];
  if (moved(op, result.run) || slot.result_ambiguous.load(std::memory_order_acquire) ||
      tables_.results_void.load(std::memory_order_acquire) ||
      result.launch != slot.last_result_launch.load(std::memory_order_acquire))
    return;
  write_replay();
  RecordHead record = result_record_of(op);
  fill(&record, result);
  results_.write(record, result.sketch_floats != 0 ? GateChannel::sketch(result) : nullptr);
}

void Drain::write(RecordHead* record, const float* sketch) {
  folder_.feed(record, sketch);
  ring_->write(*record, sketch);
  if (record->missed == 0) ring_->count_measured(1);
  results_.input_written(*record);
}

void Drain::miss_replayed(const gate::Result& result, const Op& op, Missed reason) {
  Held held{record_of(op), {}};
  held.record.replay = result.run;
  held.record.missed = static_cast<std::uint16_t>(reason);
  held.record.collective.raw_count = 0;
  hold_replay(result, std::move(held));
}

void Drain::hold_replay(const gate::Result& result, Held held) {
  if (result.slot != replay_slot_ || result.run != replay_run_) write_replay();
  replay_slot_ = result.slot;
  replay_run_ = result.run;
  replay_.push_back(std::move(held));
  if (replay_.size() == tables_.slots[result.slot].entries.load(std::memory_order_acquire)) write_replay();
}

void Drain::write_replay() {
  // By op: the device's order within a run may differ between ranks, and steps must not.
  std::sort(replay_.begin(), replay_.end(), [](const Held& a, const Held& b) { return a.record.op < b.record.op; });
  for (Held& held : replay_) write(&held.record, held.sketch.empty() ? nullptr : held.sketch.data());
  replay_.clear();
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
    reason = Missed::workspace;
  else if (view.invalid)
    reason = Missed::ambiguous;
  const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < entries; i++) {
    if (tables_.entry_owners[slot.first_entry + i].index < collected_)
      continue;  // the op's place may be another's by now
    Op& op = *tables_.entry_owners[slot.first_entry + i].op;
    if (op.state.load(std::memory_order_acquire) != OpState::announced) continue;
    op.reason = reason;
    op.state.store(OpState::missed, std::memory_order_release);
  }
  end_results(slot, view.result_missed);
  view = SlotView{};
  slot.state.store(SlotState::free, std::memory_order_release);
}

void Drain::end_results(const Slot& slot, Missed missed) {
  if (slot.result_failed.load(std::memory_order_acquire)) missed = Missed::launch_failed;
  const std::uint32_t entries = slot.entries.load(std::memory_order_acquire);
  std::uint32_t last = slot.last_result_launch.load(std::memory_order_acquire);
  if (slot.result_ambiguous.load(std::memory_order_acquire) || tables_.results_void.load(std::memory_order_acquire)) {
    missed = Missed::ambiguous;
    last = kNoLaunch;
  }
  for (std::uint32_t i = 0; i < entries; i++)
    results_.complete(tables_.entry_owners[slot.first_entry + i].ordinal, last, missed);
}

void Drain::write_missed(Op* op) {
  RecordHead record = record_of(*op);
  record.missed = static_cast<std::uint16_t>(op->reason);
  record.collective.raw_count = 0;
  write(&record, nullptr);
  ring_->count_missed(op->reason);
}

bool Drain::advance() {
  const std::uint64_t announced = tables_.announced.load(std::memory_order_acquire);
  const std::uint64_t before = collected_;
  while (collected_ < announced) {
    write_marks();
    Op& op = tables_.direct_op(collected_);
    const OpState state = op.state.load(std::memory_order_acquire);
    if (state == OpState::announced) break;
    if (op.user_tag != 0) {
      tagged_++;
      last_tag_ = op.user_tag;
    }
    if (state == OpState::missed) {
      write_missed(&op);
    } else if (state == OpState::passed) {
      folder_.pass(op.function, op.datatype, op.count);
    } else if (state == OpState::done && op.refused.load(std::memory_order_acquire)) {
      held_.erase(op.ordinal);
      results_.forget(op.ordinal);
      op.reason = Missed::no_events;
      write_missed(&op);
    } else if (state == OpState::done) {
      auto held = held_.extract(op.ordinal);
      Held& measured = held.mapped();
      write(&measured.record, measured.sketch.empty() ? nullptr : measured.sketch.data());
    }
    tables_.collected.store(++collected_, std::memory_order_release);
  }
  write_marks();
  ring_->set_announced(tables_.calls.load(std::memory_order_relaxed));
  return collected_ != before;
}

void Drain::write_marks() {
  while (const std::optional<Mark> mark = communicator_->marks().take(collected_)) {
    RecordHead record{};
    record.kind = static_cast<std::uint16_t>(RecordKind::mark);
    record.op = mark->op;
    MarkBody& body = record.mark;
    body.value = mark->value;
    body.number = mark->number;
    body.kind = static_cast<std::uint8_t>(mark->kind);
    std::memcpy(body.name, mark->name, sizeof body.name);
    folder_.mark(*mark, &record);
    ring_->write(record, nullptr);
  }
}

void Drain::count_uncounted() {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Missed::count_); i++) {
    const std::uint64_t n = tables_.uncounted[i].load(std::memory_order_relaxed);
    if (n != counted_[i]) ring_->count_missed(static_cast<Missed>(i), n - counted_[i]);
    counted_[i] = n;
  }
}

bool Drain::settled() const {
  return freed_ == tables_.slots_opened.load(std::memory_order_acquire);
}

void Drain::finish(RingState state) {
  poll();
  const std::uint64_t announced = tables_.announced.load(std::memory_order_acquire);
  for (std::uint64_t i = collected_; i < announced; i++) {
    Op& op = tables_.direct_op(i);
    if (op.state.load(std::memory_order_acquire) != OpState::announced) continue;
    op.reason = op.placed ? Missed::result_lost : Missed::no_events;
    op.state.store(OpState::missed, std::memory_order_release);
  }
  advance();
  write_replay();
  // Of what the device has not finished nothing counts but a measurement behind the last launch.
  for (std::uint64_t i = freed_; i < tables_.slots_opened.load(std::memory_order_acquire); i++)
    end_results(tables_.slots[i % kDirectSlots], Missed::result_lost);
  results_.finish();
  count_uncounted();
  ring_->set_marks_lost(communicator_->marks().lost());
  folder_.finish();
  ring_->heartbeat();
  ring_->set_state(state);
}

void Drain::abandon() {
  const std::uint64_t announced = tables_.announced.load(std::memory_order_acquire);
  for (std::uint64_t i = collected_; i < announced; i++) {
    const Op& op = tables_.direct_op(i);
    const OpState state = op.state.load(std::memory_order_acquire);
    if (state == OpState::missed)
      ring_->count_missed(op.reason);
    else if (state == OpState::announced || state == OpState::done)
      ring_->count_missed(Missed::result_lost);
  }
  count_uncounted();
  ring_->set_announced(tables_.calls.load(std::memory_order_relaxed));
}

std::string Drain::summary() const {
  std::string reasons;
  std::uint64_t missed = 0;
  for (std::size_t i = 1; i < static_cast<std::size_t>(Missed::count_); i++) {
    const auto reason = static_cast<Missed>(i);
    const std::uint64_t n = ring_->missed(reason);
    // Never meant to be measured: not missed.
    if (n == 0 || reason == Missed::unsupported_function || reason == Missed::not_selected ||
        reason == Missed::not_sampled || reason == Missed::model_parallel)
      continue;
    missed += n;
    reasons += std::string(reasons.empty() ? " (" : ", ") + name(reason) + " " + std::to_string(n);
  }
  std::string text = std::to_string(ring_->measured()) + " measured, " + std::to_string(missed) + " missed" +
                     (reasons.empty() ? "" : reasons + ")");
  if (tagged_ != 0)
    text += ", " + std::to_string(tagged_) + " with a user tag (the last " + std::to_string(last_tag_) + ")";
  return text;
}

std::string Drain::causes() const {
  if (ring_->missed(Missed::no_events) == 0) return {};
  return std::string("; no_events: ") + no_events_causes(communicator_->identity().profiler_abi);
}

}  // namespace gradprobe
