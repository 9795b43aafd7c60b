// The communicator's tables: batches of calls, slots and their entries, what of them graphs hold, and how they are
// given up and given back.
#include <thread>
#include <utility>

#include "communicator.hpp"

namespace gradprobe {

// The newest batch takes no calls any more. Host callbacks may still tell its buffers.
[[gnu::noinline]] void Communicator::leave_batch() {
  // Calls that no launch took: inline launches have told all their buffers by now.
  if (current_->all_inline()) give_up(current_);
  if (!current_->ends_later) close_results(*current_);
  if (current_->captured && current_->slots == 0) free_captured_batch(current_);
  current_ = nullptr;
  // In this order: a host callback that looks meanwhile must not find that nobody waits for it.
  callbacks_matter_.store(true, std::memory_order_relaxed);
  awaits_launch_.store(false, std::memory_order_release);
}

// Null when there is no room for another one: never of direct ones.
Communicator::Batch* Communicator::open_batch(bool captured) {
  if (current_ != nullptr) leave_batch();
  Batch* b = nullptr;
  std::uint32_t serial = kNoBatch;
  if (captured) {
    b = new_captured_batch(&serial);
    if (b == nullptr) return nullptr;
  } else {
    serial = ++direct_batches_opened_ & ~kCapturedBit;
    if (serial == kNoBatch) serial = direct_batches_opened_ = 1;
    b = &direct_batches_[serial % kDirectBatches];
    if (b->serial != kNoBatch) give_up(b);
  }
  *b = Batch{};
  b->serial = serial;
  b->captured = captured;
  b->first_op = next_op_;
  current_ = b;
  if ((idle_.load(std::memory_order_relaxed) & kMeasures) == 0) idle_.fetch_or(kMeasures, std::memory_order_relaxed);
  awaits_launch_.store(true, std::memory_order_relaxed);
  if (captured) callbacks_matter_.store(true, std::memory_order_relaxed);
  return b;
}

Communicator::Batch* Communicator::new_captured_batch(std::uint32_t* serial) {
  static_assert((kCapturedBatches & (kCapturedBatches - 1)) == 0);
  reclaim_captured_slots();
  for (std::uint32_t i = 0; i < kCapturedBatches; i++) {
    const std::uint32_t at = (captured_batch_at_ + i) % kCapturedBatches;
    if (captured_batches_[at].serial != kNoBatch) continue;
    captured_batch_at_ = at + 1;
    captured_generation_ = (captured_generation_ + 1) % (kCapturedBit / kCapturedBatches);
    *serial = kCapturedBit | captured_generation_ * kCapturedBatches | at;
    return &captured_batches_[at];
  }
  return nullptr;
}

void Communicator::free_captured_batch(Batch* b) {
  for (std::uint32_t i = b->first_captured; i != kNoOp;) {
    Op& op = tables_.captured[i];
    const std::uint32_t next = op.next;
    op.ordinal = kNone;
    op.batch = kNoBatch;
    op.state.store(OpState::passed, std::memory_order_relaxed);
    op.next = std::exchange(free_captured_op_, i);
    i = next;
  }
  *b = Batch{};
}

Op* Communicator::new_captured_op(Batch* b) {
  if (free_captured_op_ == kNoOp) return nullptr;
  const std::uint32_t i = free_captured_op_;
  Op& op = tables_.captured[i];
  free_captured_op_ = std::exchange(op.next, kNoOp);
  if (b->last_captured == kNoOp)
    b->first_captured = i;
  else
    tables_.captured[b->last_captured].next = i;
  b->last_captured = i;
  op.moved_from.store(UINT32_MAX, std::memory_order_relaxed);
  return &op;
}

// Slots whose graph is gone and whose results have all been read, their entries, and the ops of their batches.
void Communicator::reclaim_captured_slots() {
  const std::uint32_t drained = tables_.slots_drained.load(std::memory_order_acquire);
  if (drained == reclaimed_captured_slots_) return;
  for (std::uint32_t i = kDirectSlots; i < kDirectSlots + kCapturedSlots; i++) {
    Slot& slot = tables_.slots[i];
    if (!slot.drained.load(std::memory_order_acquire)) continue;
    reclaimed_captured_slots_++;
    slot.graph_released.store(false, std::memory_order_relaxed);
    slot.drained.store(false, std::memory_order_release);
    // Later launches of the slot count on from here.
    const gate::GateSlot& shared = channel_->slot(i);
    slot.arrivals[gate::kInputPass] += std::uint64_t{shared.runs} * slot.input_ctas;
    slot.arrivals[gate::kResultPass] += std::uint64_t{shared.result_runs} * slot.result_ctas;
    for (std::uint32_t e = 0; e < slot.capacity; e++) captured_entries_.reset(slot.first_entry - kDirectEntries + e);
    slot.state.store(SlotState::free, std::memory_order_relaxed);
    Batch* b = batch(slot.batch);
    if (b == nullptr) continue;
    if (b->slot == i) b->slot = kNoSlot;
    if (--b->slots == 0 && b != current_) free_captured_batch(b);
  }
}

// A free stretch of the captured launches' entries; kNoOp if there is none.
std::uint32_t Communicator::take_captured_entries(std::uint32_t entries) {
  std::uint32_t free = 0;
  for (std::uint32_t i = 0; i < kCapturedEntries; i++) {
    free = captured_entries_[i] ? 0 : free + 1;
    if (free < entries) continue;
    for (std::uint32_t e = i + 1 - entries; e <= i; e++) captured_entries_.set(e);
    return i + 1 - entries;
  }
  return kNoOp;
}

Op* Communicator::captured_op_of(std::uint64_t payload) {
  Op& op = tables_.captured[payload % kCapturedOps];
  return op.batch != kNoBatch && captured_payload(op) == payload ? &op : nullptr;
}

std::uint64_t Communicator::captured_payload(const Op& op) const {
  const auto place = static_cast<std::uint64_t>(&op - tables_.captured.get());
  return (kCapturedOp | op.ordinal << kCapturedOpBits | place) & Handle::kPayloadMask;
}

void Communicator::close_results(const Batch& b) {
  if (b.slot != kNoSlot && tables_.slots[b.slot].batch == b.serial)
    tables_.slots[b.slot].results_open.store(false, std::memory_order_release);
}

void Communicator::drop_results(std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  if (!slot.results_open.load(std::memory_order_relaxed)) return;
  slot.result_ambiguous.store(true, std::memory_order_release);
  slot.results_open.store(false, std::memory_order_release);
}

void Communicator::miss(Op* op, Batch* b, Missed reason) {
  if (op->state.load(std::memory_order_relaxed) != OpState::announced || op->placed || !op->eligible) return;
  op->eligible = false;
  op->reason = reason;
  if (b != nullptr) b->eligible--;
  op->state.store(OpState::missed, std::memory_order_release);
  if (op->captured)  // its place in the table of direct ops is passed already
    tables_.count_without_record(reason);
}

void Communicator::miss_unplaced(Batch* b, Missed reason, bool keep_addressed) {
  for_each_op(*b, [&](Op& op) {
    if (!(keep_addressed && op.addressed)) miss(&op, b, reason);
  });
}

void Communicator::give_up(Batch* b) {
  if (b->serial == kNoBatch || b->captured) return;  // a captured batch may be completed by any later replay
  close_results(*b);
  const bool waited = b->slot != kNoSlot && tables_.slots[b->slot].batch == b->serial &&
                      tables_.slots[b->slot].state.load(std::memory_order_acquire) == SlotState::open;
  // Entries placed in a slot that is never published are missed too; the collector sees them when the slot ends.
  if (waited) cancel(b->slot);
  if (b->eligible == b->placed) return;
  // The table of direct ops may have moved on past ops that are finished; their places belong to others now.
  const std::uint64_t alive = tables_.collected.load(std::memory_order_acquire);
  for_each_op(*b, [&](Op& op) {
    if (op.index >= alive) miss(&op, b, waited ? Missed::timeout : Missed::no_events);
  });
}

// A slot for a graph, its first entry set; kNoSlot if there is none.
std::uint32_t Communicator::take_captured_slot(std::uint32_t entries) {
  reclaim_captured_slots();
  std::uint32_t index = kDirectSlots;
  while (index < kDirectSlots + kCapturedSlots &&
         tables_.slots[index].state.load(std::memory_order_relaxed) != SlotState::free)
    index++;
  if (index == kDirectSlots + kCapturedSlots) return kNoSlot;
  const std::uint32_t first = take_captured_entries(entries);
  if (first == kNoOp) return kNoSlot;
  tables_.slots[index].first_entry = kDirectEntries + first;
  return index;
}

// A batch of many launches gets a slot for each, with room for all that is left: what a slot doesn't use is given back.
void Communicator::give_back_entries(std::uint32_t index, std::uint32_t used) {
  Slot& slot = tables_.slots[index];
  const std::uint32_t capacity = slot.capacity.load(std::memory_order_relaxed);
  const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_relaxed);
  if (index >= kDirectSlots) {
    for (std::uint32_t e = used; e < capacity; e++) captured_entries_.reset(slot.first_entry - kDirectEntries + e);
  } else if (opened % kDirectSlots == (index + 1) % kDirectSlots) {
    direct_entries_used_ -= capacity - used;
    slot.arena_end = direct_entries_used_;
  } else {
    return;  // others have followed in the arena
  }
  slot.capacity.store(used, std::memory_order_relaxed);
}

void Communicator::cancel(std::uint32_t index) {
  tables_.slots[index].results_open.store(false, std::memory_order_release);
  tables_.slots[index].state.store(SlotState::cancelled, std::memory_order_release);
  std::atomic_ref<std::uint32_t>(channel_->slot(index).state).store(gate::kSlotCancelled, std::memory_order_release);
}

bool Communicator::stop(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (; !lock.owns_lock() && patience.count() > 0; lock.try_lock()) {
    constexpr std::chrono::milliseconds kPause(1);
    std::this_thread::sleep_for(kPause);
    patience -= kPause;
  }
  if (!lock.owns_lock()) return false;
  stopped_ = true;
  for (std::uint32_t i = 0; i < kDirectBatches; i++) give_up(&direct_batches_[i]);
  return true;
}

std::unique_ptr<GateChannel> Communicator::release() {
  const std::lock_guard lock(mutex_);
  if (launching_.load(std::memory_order_acquire) > 0) {
    channel_->leave_memory();
    return nullptr;
  }
  // This object stays for callbacks of other threads that just end, its memory need not: no callback gets past
  // `stopped_` to it.
  direct_batches_.reset();
  captured_batches_.reset();
  tables_.direct.reset();
  tables_.captured.reset();
  tables_.slots.reset();
  tables_.entry_owners.reset();
  marks_.release();
  return std::move(channel_);
}

bool Communicator::graphs_alive() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = kDirectSlots; i < kDirectSlots + kCapturedSlots; i++) {
    const Slot& slot = tables_.slots[i];
    const bool used = slot.state.load(std::memory_order_relaxed) != SlotState::free;
    if (used && slot.launched.load(std::memory_order_relaxed) && !slot.graph_released.load(std::memory_order_acquire))
      return true;
  }
  return false;
}

void Communicator::release_captured_slot(std::uint32_t slot) {
  if (slot < kDirectSlots || slot >= kDirectSlots + kCapturedSlots) return;
  tables_.slots[slot].graph_released.store(true, std::memory_order_release);
  tables_.graphs_released.fetch_add(1, std::memory_order_release);
}

}  // namespace gradprobe
