#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace gradprobe {
namespace {

// What links consecutive callbacks on one thread. The initial-exec model keeps the access a plain load: no call into
// the dynamic linker, no lazy allocation on NCCL's path.
struct ThreadLinks {
  // Set at a launch's stop and used by the Group event that follows at once on the same thread.
  bool launch_valid = false;
  CommunicatorId launch_communicator;
  std::uint32_t launch_slot = kNoSlot;
  std::uint32_t launch_batch = 0;
  // Between a launch's start and stop.
  CommunicatorId launching_communicator;
  std::uint32_t launching_slot = kNoSlot;  // whose gate waits for this launch's buffers
  std::uint32_t result_slot = kNoSlot;     // whose results this launch completes
  std::uint32_t launching_batch = 0;       // whose calls the launch may carry; kNoBatch: none
  void* launching_stream = nullptr;
  // Between a group's start and stop.
  bool group_inline = false;
  CommunicatorId group_communicator;
  std::uint32_t group_slot = kNoSlot;
  std::uint32_t group_batch = 0;  // inline: of the launch; else of the last Coll
};
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local constinit ThreadLinks t_links;

bool reduces(Function f) {
  return f == Function::all_reduce || f == Function::reduce_scatter || f == Function::reduce;
}

// Kept as raw values: where frameworks reduce their losses. A reduce-scatter's input is never as small in practice.
bool is_tiny(const CollApiEvent& e) {
  return e.count >= 1 && e.count <= kMaxRawElements && element_bytes(e.datatype) != 0 &&
         e.function != Function::reduce_scatter && e.function != Function::unknown;
}

}  // namespace

Communicator::Communicator(CommunicatorId id, const CommunicatorIdentity& identity, const Config& config,
                           std::unique_ptr<GateChannel> channel, Missed unmeasured, const Log& log, SharedState* shared)
    : id_(id),
      identity_(identity),
      identified_(identity.known),
      unmeasured_(unmeasured),
      launch_blocking_(config.launch_blocking),
      key_base_(gate::mix64(config.seed ^ identity.comm_id)),
      max_ctas_(config.max_ctas),
      selection_(config.selection),
      channel_(std::move(channel)),
      log_(log),
      shared_(shared),
      traffic_(config.job_nodes > 1 && identity.nnodes == 1),
      steps_(config.ops_per_step),
      sampling_(config.sampling) {
  for (std::uint32_t i = 0; i < kCapturedOps; i++) tables_.captured[i].next = i + 1 < kCapturedOps ? i + 1 : kNoOp;
  free_captured_op_ = 0;
  activations_ = identity.role == Role::activations;
  if (identity.role == Role::undecided) watched_functions_ = traffic_.watched_functions();
  if (channel_ == nullptr) return;
  channel_->control().replay_every = sampling_.measure ? sampling_.every : 0;
  channel_->control().replay_result_every = sampling_.result_every;
}

Handle Communicator::group_api_start() {
  t_links.launch_valid = false;
  // Of the process: the calls of several communicators can have one group.
  static constinit std::atomic<std::uint64_t> groups{0};
  return Handle(HandleType::group_api, id_, groups.fetch_add(1, std::memory_order_relaxed) + 1);
}

bool Communicator::belongs(const Batch& b, Handle group_api) const {
  if (group_api.type() != HandleType::group_api) return true;
  std::uint64_t first = b.first_group, last = b.last_group;
  if (b.launches == 0) {
    first = first_group_.load(std::memory_order_relaxed);
    last = last_group_.load(std::memory_order_relaxed);
  }
  return group_api.payload() >= first && group_api.payload() <= last;
}

void Communicator::group_api_stop() {
  t_links.launch_valid = false;
}

std::uint64_t Communicator::input_count(const CollApiEvent& e) const {
  // Without the number of ranks the input of a reduce-scatter is as unknown: then it is the count that NCCL tells.
  return e.function == Function::reduce_scatter ? e.count * std::max(identity_.nranks, 1u) : e.count;
}

// Whether the large call may reduce gradients.
[[gnu::noinline]] bool Communicator::observe_traffic(const CollApiEvent& e) {
  const bool gradients =
      traffic_.takes(e.function, e.datatype, e.count, shared_->communicators.load(std::memory_order_relaxed) > 1);
  if (!traffic_.decided()) return gradients;
  watched_functions_ = 0;
  activations_ = traffic_.role() == Role::activations;
  if (activations_)
    log_.warn(
        "rank %u: this communicator of %u ranks seems to reduce activations, not gradients: it is not measured any "
        "more (GRADPROBE_COMMS=all measures all)",
        identity_.rank, identity_.nranks);
  return gradients;
}

// What needs no op: it would have no record, and is no part of the sequence in which steps are found.
inline Missed Communicator::leave_out(const CollApiEvent& e) {
  bool gradients = true;
  if ((watched_functions_ & Selection::bit(e.function)) != 0 && e.count >= TrafficRole::kLarge) [[unlikely]]
    gradients = observe_traffic(e);
  if (!selection_.takes_function(e.function)) {
    const bool decides = (watched_functions_ & Selection::bit(e.function)) != 0;
    left_out_name_ = decides || channel_ == nullptr ? nullptr : names_.function_name;
    return Missed::not_selected;
  }
  if (activations_) gradients = e.count < TrafficRole::kLarge;
  const bool tiny = is_tiny(e);
  if (!selection_.takes(e.function, e.datatype, input_count(e), tiny)) return Missed::not_selected;
  if ((!tiny && !reduces(e.function)) || e.count == 0) return Missed::unsupported_function;
  if (e.function == Function::broadcast) {
    // From 2.29 on NCCL announces broadcasts and reports no launch. In a graph only the root would have a record.
    if (identity_.profiler_abi >= 6) return Missed::no_events;
    if (e.captured) return Missed::unsupported_function;
  }
  return gradients || tiny ? Missed::none : Missed::model_parallel;
}

// What has no record on this rank or in this step, and yet is part of the sequence in which steps are found.
bool Communicator::pass_by(const CollApiEvent& e, const StepDetector::Position& at) const {
  if (e.captured) return false;  // a graph holds the same kernels every time: the device skips replays
  if (e.function == Function::broadcast && static_cast<std::uint32_t>(e.root) != identity_.rank) return true;
  return at.confirmed ? !sampling_.takes(at.step) : !sampling_.measure;
}

void Communicator::follow_control(const StepDetector::Position& at) {
  if (shared_->control.version() != control_version_ && shared_->control.try_get(&next_sampling_, &control_version_))
    sampling_changes_ = true;
  if (!sampling_changes_) return;
  const std::uint64_t from = next_sampling_.from_step;
  if (from != 0 && !(at.confirmed && at.step >= from)) return;
  sampling_ = next_sampling_;
  sampling_changes_ = false;
}

void Communicator::classify(const CollApiEvent& event, Op* op) const {
  op->function = event.function;
  op->datatype = event.datatype;
  op->count = input_count(event);
  op->output_count = event.count;
  op->mode = is_tiny(event) ? gate::kRaw : gate::kBucket;
  op->eligible = op->mode == gate::kRaw || gate::measured_type(event.datatype) != gate::kTypeNone;
  op->reason = op->eligible ? Missed::none : Missed::unsupported_datatype;
}

Communicator::Batch* Communicator::batch(std::uint32_t serial) {
  if (serial == kNoBatch) return nullptr;
  Batch& b = (serial & kCapturedBit) != 0 ? captured_batches_[serial % kCapturedBatches]
                                          : direct_batches_[serial % kDirectBatches];
  return b.serial == serial ? &b : nullptr;
}

Communicator::Batch* Communicator::open_batch(bool captured) {
  if (Batch* last = batch(current_); last != nullptr) {
    // Calls of the last batch that no launch took: inline launches have told all their buffers by now.
    if (last->all_inline()) give_up(last);
    if (!last->ends_later) close_results(*last);
    current_ = kNoBatch;
    if (last->captured && last->slots == 0) free_captured_batch(last);
  }
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
  measures_something_.store(true, std::memory_order_relaxed);
  idle_.store(false, std::memory_order_relaxed);
  *b = Batch{};
  b->serial = serial;
  b->captured = captured;
  b->first_op = next_op_;
  current_ = serial;
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
    if (--b->slots == 0 && b->serial != current_) free_captured_batch(b);
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

Op* Communicator::op_of(Handle coll_api) {
  if (coll_api.type() != HandleType::coll_api || coll_api.communicator() != id_) return nullptr;
  const std::uint64_t payload = coll_api.payload();
  if ((payload & kCapturedOp) != 0) {
    Op& op = tables_.captured[payload % kCapturedOps];
    return op.batch != kNoBatch && captured_payload(op) == payload ? &op : nullptr;
  }
  Op& op = tables_.direct_op(payload);
  return op.index == payload && payload >= tables_.collected.load(std::memory_order_acquire) ? &op : nullptr;
}

std::uint64_t Communicator::captured_payload(const Op& op) const {
  const auto place = static_cast<std::uint64_t>(&op - tables_.captured.get());
  return (kCapturedOp | op.ordinal << kCapturedOpBits | place) & Handle::kPayloadMask;
}

void Communicator::note_unmeasured(const CollApiEvent& event, Op* op) {
  op->placed = op->addressed = op->captured = op->result_wanted = false;
  op->send = op->recv = 0;
  classify(event, op);
  if (op->eligible) op->reason = unmeasured_;
  op->eligible = false;
  // No replay of a captured call will be seen, so it gets no record either.
  if (event.captured) tables_.uncounted[static_cast<std::size_t>(op->reason)].fetch_add(1, std::memory_order_relaxed);
  op->state.store(event.captured ? OpState::captured : OpState::missed, std::memory_order_release);
}

void Communicator::identify(std::uint64_t comm_id, std::uint32_t rank, const char* name) {
  if (identified()) return;
  const std::lock_guard lock(mutex_);
  identity_.comm_id = comm_id;
  identity_.rank = rank;
  if (name != nullptr) std::strncpy(name_, name, sizeof name_ - 1);
  identified_.store(true, std::memory_order_release);
}

inline Handle Communicator::note_call(const CollApiEvent& event) {
  const std::uint64_t ordinal = tables_.calls.load(std::memory_order_relaxed);
  tables_.calls.store(ordinal + 1, std::memory_order_release);
  if (event.group_api.type() == HandleType::group_api) {
    last_group_.store(event.group_api.payload(), std::memory_order_relaxed);
    if (first_group_.load(std::memory_order_relaxed) == 0)
      first_group_.store(event.group_api.payload(), std::memory_order_relaxed);
  }
  if (const Missed reason = leave_out(event); reason != Missed::none) {
    if (ordinal == kCallsToIdle && !measures_something_.load(std::memory_order_relaxed)) [[unlikely]]
      idle_.store(channel_ != nullptr && shared_->communicators.load(std::memory_order_relaxed) == 1,
                  std::memory_order_relaxed);
    tables_.uncounted[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  return take_up(event, ordinal);
}

// Apart from what every call costs.
[[gnu::noinline]] Handle Communicator::take_up(const CollApiEvent& event, std::uint64_t ordinal) {
  StepDetector::Position at;
  if (!event.captured) at = position_of(event);
  follow_control(at);
  return announce(event, ordinal, at);
}

Handle Communicator::coll_api_start(const CollApiEvent& event) {
  t_links.launch_valid = false;
  if (channel_ != nullptr) [[likely]]
    return note_call(event);
  // NCCL before 2.28 tells its calls from host callbacks, too, at the same time as from the caller's thread.
  const std::lock_guard lock(untold_mutex_);
  return note_call(event);
}

StepDetector::Position Communicator::position_of(const CollApiEvent& event) {
  if (const std::uint64_t marked = marks_.step(); marked != kNone) return {true, marked, 0, 0, false};
  return steps_.feed(step_signature(event.function, event.datatype, input_count(event)));
}

Handle Communicator::announce(const CollApiEvent& event, std::uint64_t ordinal, const StepDetector::Position& at) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return {};
  const std::uint64_t index = next_op_;
  if (overflowed_ || index - tables_.collected.load(std::memory_order_acquire) >= kDirectOps) {
    // From here on steps could differ between ranks, so nothing more of this communicator is recorded.
    if (!std::exchange(overflowed_, true))
      log_.warn("rank %u: %u collectives without an outcome: this communicator is not recorded any more",
                identity_.rank, kDirectOps);
    tables_.uncounted[static_cast<std::size_t>(Missed::backlog)].fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  Op& direct = tables_.direct_op(index);
  direct.ordinal = ordinal;
  direct.index = index;
  direct.batch = kNoBatch;
  if (pass_by(event, at)) {
    classify(event, &direct);
    direct.state.store(OpState::passed, std::memory_order_release);
    next_op_ = index + 1;
    if (!event.provisional) tables_.announced.store(next_op_, std::memory_order_release);
    const Missed reason = event.function == Function::broadcast ? Missed::unsupported_function : Missed::not_sampled;
    tables_.uncounted[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  if (channel_ == nullptr) {
    note_unmeasured(event, &direct);
    next_op_ = index + 1;
    if (!event.provisional) tables_.announced.store(next_op_, std::memory_order_release);
    return {};
  }

  Batch* b = batch(current_);
  if (b == nullptr || b->closed || b->captured != event.captured) b = open_batch(event.captured);
  Op* captured = event.captured && b != nullptr ? new_captured_op(b) : nullptr;
  const bool storable = b != nullptr && (!event.captured || captured != nullptr);
  Op& op = captured != nullptr ? *captured : direct;
  op.ordinal = ordinal;
  op.placed = op.addressed = false;
  op.captured = event.captured;
  op.send = op.recv = 0;
  op.told = 0;
  op.refused.store(false, std::memory_order_relaxed);
  op.batch = b != nullptr ? b->serial : kNoBatch;
  classify(event, &op);
  if (op.eligible && !storable) {
    op.reason = Missed::backlog;
    op.eligible = false;
  }
  const OpState state = op.eligible ? OpState::announced : OpState::missed;
  op.result_wanted = event.result_follows && result_due(op, event, at);
  op.state.store(state, std::memory_order_release);
  Handle handle(HandleType::coll_api, id_, index);
  if (captured != nullptr) {
    direct.state.store(OpState::captured, std::memory_order_release);
    if (state == OpState::missed)
      tables_.uncounted[static_cast<std::size_t>(op.reason)].fetch_add(1, std::memory_order_relaxed);
    handle = Handle(HandleType::coll_api, id_, captured_payload(op));
  }
  if (b != nullptr && storable) {
    b->end_op = index + 1;
    if (op.eligible) b->eligible++;
    b->results_wanted |= op.result_wanted;
  }
  next_op_ = index + 1;
  if (!event.provisional) tables_.announced.store(next_op_, std::memory_order_release);
  return handle;
}

bool Communicator::result_due(const Op& op, const CollApiEvent& event, const StepDetector::Position& at) const {
  if (sampling_.result_every == 0 || !op.eligible || !reduces(op.function)) return false;
  if (op.function == Function::reduce && static_cast<std::uint32_t>(event.root) != identity_.rank) return false;
  // The device skips replays by itself: a graph holds the same kernels every time. Of the others all, until the steps
  // are known; by the sequence of calls alone, so that all ranks choose the same ones.
  return op.captured || !at.confirmed || sampling_.takes_result(at.step);
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
    tables_.uncounted[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
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

void Communicator::reclaim_slots() {
  const std::uint64_t freed = tables_.slots_freed.load(std::memory_order_acquire);
  for (; reclaimed_slots_ < freed; reclaimed_slots_++)
    direct_entries_freed_ += tables_.slots[reclaimed_slots_ % kDirectSlots].arena_entries;
}

std::uint32_t Communicator::open_slot(Batch* b, std::uint32_t entries) {
  close_results(*b);
  std::uint32_t index = kNoSlot, first = 0;
  if (b->captured) {
    reclaim_captured_slots();
    for (index = kDirectSlots; index < kDirectSlots + kCapturedSlots; index++)
      if (tables_.slots[index].state.load(std::memory_order_relaxed) == SlotState::free) break;
    if (index == kDirectSlots + kCapturedSlots) return kNoSlot;
    first = take_captured_entries(entries);
    if (first == kNoOp) return kNoSlot;
    first += kDirectEntries;
    b->slots++;
  } else {
    reclaim_slots();
    const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_relaxed);
    if (opened - reclaimed_slots_ >= kDirectSlots || entries > kDirectEntries) return kNoSlot;
    // A slot's entries lie in one piece: what is left at the end of the arena goes unused when it is too short.
    std::uint32_t reserved = entries;
    first = static_cast<std::uint32_t>(direct_entries_used_ % kDirectEntries);
    if (first + entries > kDirectEntries) {
      reserved += kDirectEntries - first;
      first = 0;
    }
    if (direct_entries_used_ + reserved - direct_entries_freed_ > kDirectEntries) return kNoSlot;
    direct_entries_used_ += reserved;
    index = static_cast<std::uint32_t>(opened % kDirectSlots);
    tables_.slots[index].arena_entries = reserved;
  }
  Slot& slot = tables_.slots[index];
  slot.capacity.store(entries, std::memory_order_relaxed);
  slot.first_entry = first;
  slot.entries.store(0, std::memory_order_relaxed);
  slot.batch = b->serial;
  slot.launched.store(false, std::memory_order_relaxed);
  slot.failed.store(false, std::memory_order_relaxed);
  slot.results_launched.store(0, std::memory_order_relaxed);
  slot.results_open.store(b->results_wanted, std::memory_order_relaxed);
  slot.result_failed.store(false, std::memory_order_relaxed);
  slot.result_ambiguous.store(false, std::memory_order_relaxed);
  slot.inline_entries = 0;
  slot.result_ctas = 0;
  gate::GateSlot& shared = channel_->slot(index);
  shared.entries = 0;
  shared.first_entry = first;
  shared.runs = 0;
  shared.result_runs = 0;
  shared.dropped = 0;
  std::atomic_ref<std::uint32_t>(shared.state).store(gate::kSlotOpen, std::memory_order_release);
  slot.state.store(SlotState::open, std::memory_order_release);
  b->slot = index;
  return index;
}

void Communicator::place(Op* op, Batch* b, std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  const std::uint32_t n = slot.entries.load(std::memory_order_relaxed);
  const std::uint32_t at = slot.first_entry + n;
  gate::GateEntry& entry = channel_->entry(at);
  entry = gate::GateEntry{};
  entry.input = op->send;
  entry.count = op->count;
  entry.output = op->result_wanted ? op->recv : 0;
  entry.output_count = op->output_count;
  entry.key = gate::mix64(key_base_ ^ op->ordinal);
  entry.datatype = static_cast<std::uint8_t>(op->datatype);
  entry.mode = op->mode;
  tables_.entry_op[at] = op;
  tables_.entry_index[at] = op->index;
  tables_.entry_ordinal[at] = op->ordinal;
  slot.entries.store(n + 1, std::memory_order_release);
  op->placed = true;
  b->placed++;
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
    slot.arena_entries -= capacity - used;
  } else {
    return;  // others have followed in the arena
  }
  slot.capacity.store(used, std::memory_order_relaxed);
}

void Communicator::publish(std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  if (slot.state.load(std::memory_order_relaxed) != SlotState::open) return;
  slot.state.store(SlotState::published, std::memory_order_release);
  const std::uint32_t entries = slot.entries.load(std::memory_order_relaxed);
  give_back_entries(index, entries);
  if (slot.inline_entries == entries) {
    // The launch just made has completed all results.
    slot.results_open.store(false, std::memory_order_release);
  } else if (slot.inline_entries != 0 || !slot.grouped) {
    drop_results(index);
  }
  gate::GateSlot& shared = channel_->slot(index);
  shared.entries = entries;
  std::atomic_ref<std::uint32_t>(shared.state).store(gate::kSlotPublished, std::memory_order_release);
}

void Communicator::cancel(std::uint32_t index) {
  tables_.slots[index].results_open.store(false, std::memory_order_release);
  tables_.slots[index].state.store(SlotState::cancelled, std::memory_order_release);
  std::atomic_ref<std::uint32_t>(channel_->slot(index).state).store(gate::kSlotCancelled, std::memory_order_release);
}

MeasurePlan Communicator::plan(const Batch& b, gate::Pass pass) {
  MeasurePlan plan;
  for_each_op(b, [&](const Op& op) {
    if (!op.eligible || op.mode == gate::kRaw || (pass == gate::kResultPass && !op.result_wanted)) return;
    const std::uint64_t count = pass == gate::kInputPass ? op.count : op.output_count;
    plan.add(gate::measured_type(op.datatype), count, element_bytes(op.datatype));
  });
  return plan;
}

void Communicator::stop_gating() {
  if (gates_in_vain_.exchange(true)) return;
  log_.warn(
      "rank %u: NCCL names the buffers too late, or not at all, too often: collectives of this communicator outside "
      "CUDA "
      "graphs are not measured any more (a larger GRADPROBE_GATE_TIMEOUT waits longer)",
      identity_.rank);
}

Missed Communicator::reason_not_to_gate(const Batch& b) const {
  if (launch_failed_) return Missed::launch_failed;
  if (shared_->switched_off.load(std::memory_order_relaxed)) return Missed::switched_off;
  if (gates_in_vain_.load(std::memory_order_relaxed) && !b.captured) return Missed::switched_off;
  // The host would wait for the gate inside the launch call, and so never come to tell the buffers.
  if (launch_blocking_ && !b.captured) return Missed::launch_blocking;
  return Missed::none;
}

Handle Communicator::kernel_launch_start(Handle group_api, void* stream) {
  t_links.launch_valid = false;
  t_links.launching_slot = t_links.result_slot = kNoSlot;
  t_links.launching_batch = kNoBatch;
  if (!measures_something_.load(std::memory_order_relaxed)) return {};
  std::unique_lock lock(mutex_);
  if (stopped_) return {};
  t_links.launching_communicator = id_;
  t_links.launching_stream = stream;
  const Handle handle(HandleType::kernel_launch, id_, 0);
  Batch* b = batch(current_);
  if (b == nullptr) return handle;
  b->closed = true;
  // Sends, receives and calls that aren't recorded are launched, too: they tell no buffers of this batch and complete
  // no result of it, and no gate may wait in front of them.
  if (!belongs(*b, group_api)) return handle;
  t_links.launching_batch = b->serial;
  const bool before_callbacks = b->all_inline();
  if (b->launches++ == 0) {
    b->first_group = first_group_.exchange(0, std::memory_order_relaxed);
    b->last_group = last_group_.load(std::memory_order_relaxed);
  }
  // Without a GroupApi a launch may be one of sends and receives, when the buffers of earlier collectives may be gone.
  const bool grouped = group_api.type() == HandleType::group_api;
  if (!grouped && b->slot != kNoSlot) drop_results(b->slot);
  if (b->slot != kNoSlot && tables_.slots[b->slot].state.load(std::memory_order_relaxed) == SlotState::open) {
    // The earlier launch's gate still waits for this batch's buffers; an earlier gate is as good as a second one.
    t_links.launching_slot = t_links.result_slot = b->slot;
    return handle;
  }
  // Buffers that came before the launch (host callbacks) need no waiting gate, even when launches block.
  const Missed reason = reason_not_to_gate(*b);
  const bool told_ones_serve =
      reason == Missed::launch_blocking || (reason == Missed::switched_off && !shared_->switched_off.load());
  if (reason != Missed::none) miss_unplaced(b, reason, told_ones_serve);
  if (b->eligible == b->placed) {
    // Host callbacks told all buffers before this launch; it may complete their results.
    t_links.result_slot = b->slot;
    return handle;
  }

  const std::uint32_t index = open_slot(b, b->eligible - b->placed);
  if (index == kNoSlot) {
    miss_unplaced(b, Missed::backlog, false);
    return handle;
  }
  tables_.slots[index].before_callbacks = before_callbacks;
  tables_.slots[index].grouped = grouped;
  t_links.launching_slot = t_links.result_slot = index;
  for_each_op(*b, [&](Op& op) {
    if (op.eligible && op.addressed && !op.placed) place(&op, b, index);
  });
  if (b->placed == b->eligible) publish(index);
  launch(&lock, b, index, stream);
  return handle;
}

// Launches a pass with the mutex released: host callbacks of another thread may need it before the device gets on, and
// a launch may wait for the device.
CUresult Communicator::launch_pass(std::unique_lock<CallMutex>* lock, PassLaunch pass, bool captured, void* stream,
                                   std::uint32_t* number) {
  const auto cuda_stream = static_cast<CUstream>(stream);
  pass.workspace = channel_->workspace_of(cuda_stream);
  // What is captured arrives when a graph runs it, and the slot is the graph's alone.
  std::uint64_t& arrivals = tables_.slots[pass.slot].arrivals[pass.pass];
  pass.first_arrival = arrivals;
  pass.replayed = captured;
  if (!captured) arrivals += pass.ctas;
  launching_++;
  lock->unlock();
  const CUresult result = channel_->launch(pass, cuda_stream, number);
  lock->lock();
  launching_--;
  if (result != CUDA_SUCCESS && !captured) arrivals -= pass.ctas;
  return result;
}

void Communicator::fail_launches(CUresult result) {
  if (std::exchange(launch_failed_, true)) return;
  log_.warn(
      "rank %u: launching the measuring kernels failed (cuLaunchKernel: %s): this communicator is not measured any "
      "more",
      identity_.rank, channel_->error_name(result).text);
}

void Communicator::launch(std::unique_lock<CallMutex>* lock, Batch* b, std::uint32_t index, void* stream) {
  const MeasurePlan plan = this->plan(*b, gate::kInputPass);
  Slot& slot = tables_.slots[index];
  slot.launched.store(true, std::memory_order_release);
  const std::uint32_t serial = b->serial;
  const bool captured = b->captured;
  if (!captured) tables_.slots_opened.fetch_add(1, std::memory_order_release);
  PassLaunch pass;
  pass.slot = index;
  pass.kernel = plan.kernel();
  pass.ctas = slot.input_ctas = plan.ctas(max_ctas_);
  std::uint32_t number = 0;
  const CUresult result = launch_pass(lock, pass, captured, stream, &number);
  if (captured && result == CUDA_SUCCESS) {
    // The slot is the graph's: without word of the graph's end it is never used again.
    const Handle token(HandleType::context, id_, index);
    launching_++;
    lock->unlock();
    channel_->retain_by_graph(static_cast<CUstream>(stream), token.opaque(), shared_->graph_gone);
    lock->lock();
    launching_--;
  }
  if (!captured) switch_off_if_launches_block(index);
  if (result == CUDA_SUCCESS) return;
  slot.failed.store(true, std::memory_order_release);
  slot.launched.store(false, std::memory_order_release);
  slot.results_open.store(false, std::memory_order_release);
  if (slot.state.load(std::memory_order_relaxed) == SlotState::open) cancel(index);
  if (Batch* still = batch(serial); still != nullptr) miss_unplaced(still, Missed::launch_failed, false);
  t_links.launching_slot = t_links.result_slot = kNoSlot;
  fail_launches(result);
}

void Communicator::launch_result(std::unique_lock<CallMutex>* lock, const Batch& b, std::uint32_t index, void* stream) {
  Slot& slot = tables_.slots[index];
  if (slot.result_ctas == 0) {
    // The same for all result passes of a slot: replays count its thread blocks.
    const MeasurePlan plan = this->plan(b, gate::kResultPass);
    slot.result_kernel = plan.kernel();
    slot.result_ctas = plan.ctas(max_ctas_);
  }
  PassLaunch pass;
  pass.pass = gate::kResultPass;
  pass.slot = index;
  pass.kernel = slot.result_kernel;
  pass.ctas = slot.result_ctas;
  slot.results_launched.fetch_add(1, std::memory_order_release);
  std::uint32_t number = 0;
  const CUresult result = launch_pass(lock, pass, b.captured, stream, &number);
  // What an earlier launch measured is half-made, also when this one was refused.
  slot.last_result_launch.store(number, std::memory_order_release);
  if (result == CUDA_SUCCESS) return;
  slot.result_failed.store(true, std::memory_order_release);
  slot.results_launched.fetch_sub(1, std::memory_order_release);
  fail_launches(result);
}

void Communicator::switch_off_if_launches_block(std::uint32_t index) {
  // The gate has ended within the call that launched it, without its slot: the call waits for the kernel, so the host
  // could never have told the buffers, and every further launch would cost a time-out.
  const bool ended = std::atomic_ref<std::uint32_t>(channel_->slot(index).runs).load(std::memory_order_acquire) > 0;
  if (!ended || tables_.slots[index].state.load(std::memory_order_relaxed) != SlotState::open) {
    blocked_launches_ = 0;
    return;
  }
  // Once, this thread may merely have been held up behind the launch.
  if (++blocked_launches_ < 2 || shared_->switched_off.exchange(true)) return;
  log_.warn(
      "kernel launches of this process block until the kernel ends (a debugger or another profiler?): measuring is "
      "switched off for the whole process");
}

void Communicator::kernel_launch_stop() {
  const bool ours = t_links.launching_communicator == id_;
  if (ours && t_links.result_slot != kNoSlot) {
    std::unique_lock lock(mutex_);
    const std::uint32_t index = t_links.result_slot;
    const Batch* b = stopped_ || launch_failed_ ? nullptr : batch(t_links.launching_batch);
    if (b != nullptr && tables_.slots[index].batch == b->serial &&
        tables_.slots[index].results_open.load(std::memory_order_relaxed))
      launch_result(&lock, *b, index, t_links.launching_stream);
  }
  t_links.launch_valid = ours;
  t_links.launch_communicator = id_;
  t_links.launch_slot = t_links.launching_slot;
  t_links.launch_batch = t_links.launching_batch;
  t_links.launching_slot = t_links.result_slot = kNoSlot;
}

BegunCalls Communicator::hand_over_launch() {
  const BegunCalls begun{t_links.launching_batch, t_links.result_slot, next_op_};
  t_links.launching_slot = t_links.result_slot = kNoSlot;
  return begun;
}

Handle Communicator::group_start() {
  const Handle handle(HandleType::group, id_, 0);
  // NCCL before 2.28 tells the collectives of groups that have a handle.
  if (channel_ == nullptr) return handle;
  if (!measures_something_.load(std::memory_order_relaxed)) return {};
  t_links.group_communicator = id_;
  t_links.group_inline = t_links.launch_valid && t_links.launch_communicator == id_;
  t_links.group_slot = t_links.group_inline ? t_links.launch_slot : kNoSlot;
  t_links.group_batch = t_links.group_inline ? t_links.launch_batch : kNoBatch;
  t_links.launch_valid = false;
  return handle;
}

void Communicator::coll_start(Handle coll_api, const void* send, const void* recv) {
  if (coll_api.type() != HandleType::coll_api) return;  // of a call that isn't recorded
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  Op* op = op_of(coll_api);
  if (op == nullptr || t_links.group_communicator != id_) return;
  const auto send_address = reinterpret_cast<std::uint64_t>(send);
  const auto recv_address = reinterpret_cast<std::uint64_t>(recv);
  op->told++;
  if (op->addressed) {
    // A replay of a captured collective: the gate reads the addresses of the first one.
    if (op->captured && (op->send != send_address || op->recv != recv_address) &&
        op->moved_from.load(std::memory_order_relaxed) == UINT32_MAX)
      op->moved_from.store(op->told, std::memory_order_release);
    return;
  }
  Batch* b = batch(op->batch);
  if (b == nullptr || !op->eligible || op->state.load(std::memory_order_relaxed) != OpState::announced) return;
  op->send = send_address;
  op->recv = recv_address;
  op->addressed = true;
  const bool told_inline = t_links.group_inline;
  if (!told_inline) t_links.group_batch = b->serial;
  const std::uint32_t index = told_inline ? t_links.group_slot : b->slot;
  // Where all launches so far told their buffers inline, this one's is still to come and will place it.
  if (!told_inline && b->all_inline()) return;
  if (index == kNoSlot || tables_.slots[index].batch != b->serial ||
      tables_.slots[index].state.load(std::memory_order_relaxed) != SlotState::open ||
      tables_.slots[index].entries.load(std::memory_order_relaxed) >= tables_.slots[index].capacity ||
      (!told_inline && !tables_.slots[index].before_callbacks)) {
    miss(op, b, Missed::ambiguous);
    return;
  }
  place(op, b, index);
  if (told_inline) tables_.slots[index].inline_entries++;
}

void Communicator::copy_engine_start(Handle coll_api) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  if (Op* op = op_of(coll_api); op != nullptr) miss(op, batch(op->batch), Missed::copy_engine);
}

void Communicator::group_stop() {
  if (t_links.group_communicator != id_) return;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  Batch* b = batch(t_links.group_batch);
  if (b != nullptr && t_links.group_inline) {
    b->inline_launches++;
    // A batch of several launches gets a slot for each, as long as all of them tell their buffers inline. Where an
    // earlier launch's are still to come by a callback, the slot waits for them: theirs is the only gate in time.
    const bool complete = b->all_inline() || b->placed == b->eligible;
    if (t_links.group_slot != kNoSlot && complete) publish(t_links.group_slot);
  } else if (b != nullptr && b->slot != kNoSlot && b->placed == b->eligible) {
    publish(b->slot);
  }
  t_links.group_slot = kNoSlot;
  t_links.group_inline = false;
  t_links.group_batch = kNoBatch;
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
  if (launching_ > 0) {
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
  tables_.entry_op.reset();
  tables_.entry_index.reset();
  tables_.entry_ordinal.reset();
  marks_.release();
  return std::move(channel_);
}

void Communicator::expire(std::uint32_t slot) {
  // The only place where the collector takes this mutex, after a failure that callbacks no longer wait for.
  const std::lock_guard lock(mutex_);
  if (tables_.slots[slot].state.load(std::memory_order_relaxed) != SlotState::open) return;
  Batch* b = batch(tables_.slots[slot].batch);
  if (b != nullptr && b->captured && tables_.slots[slot].entries.load(std::memory_order_relaxed) > 0) {
    miss_unplaced(b, Missed::no_events, false);
    publish(slot);
  } else if (b != nullptr && !b->captured && b->slot == slot) {
    give_up(b);
  } else {
    cancel(slot);
  }
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
