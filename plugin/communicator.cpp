#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
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
  // Between a launch's start and stop.
  CommunicatorId launching_communicator;
  std::uint32_t launching_slot = kNoSlot;  // whose gate waits for this launch's buffers
  std::uint32_t result_slot = kNoSlot;     // whose results this launch completes
  std::uint32_t launching_batch = 0;
  void* launching_stream = nullptr;
  // Between a group's start and stop.
  bool group_inline = false;
  CommunicatorId group_communicator;
  std::uint32_t group_slot = kNoSlot;
  std::uint32_t group_batch = 0;
};
#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
thread_local constinit ThreadLinks t_links;

std::uint64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace

Communicator::Communicator(CommunicatorId id, const CommunicatorIdentity& identity, const Config& config,
                           std::unique_ptr<GateChannel> channel, Missed unmeasured, const Log& log,
                           std::atomic<bool>* switched_off, void (*graph_gone)(void* token))
    : id_(id),
      identity_(identity),
      identified_(identity.known),
      unmeasured_(unmeasured),
      launch_blocking_(config.launch_blocking),
      seed_(config.seed),
      max_ctas_(config.max_ctas),
      result_every_(config.result_every),
      slow_launch_ns_(std::uint64_t{config.gate_timeout_ms} * 1000000u * 8 / 10),
      channel_(std::move(channel)),
      log_(log),
      switched_off_(switched_off),
      graph_gone_(graph_gone),
      steps_(config.ops_per_step) {}

Handle Communicator::group_api_start() {
  t_links.launch_valid = false;
  // Of the process: the calls of several communicators can have one group.
  static constinit std::atomic<std::uint64_t> groups{0};
  return Handle(HandleType::group_api, id_, groups.fetch_add(1, std::memory_order_relaxed) + 1);
}

bool Communicator::belongs(const Batch& b, Handle group_api) {
  return group_api.type() == HandleType::group_api && group_api.payload() >= b.first_group &&
         group_api.payload() <= b.last_group;
}

void Communicator::group_api_stop() {
  t_links.launch_valid = false;
}

void Communicator::classify(const CollApiEvent& event, Op* op) const {
  const bool reduces = event.function == Function::all_reduce || event.function == Function::reduce_scatter;
  const bool tiny = event.count >= 1 && event.count <= kMaxRawElements && element_bytes(event.datatype) != 0 &&
                    (event.function == Function::all_reduce || event.function == Function::all_gather);
  op->function = event.function;
  op->datatype = event.datatype;
  // Without the number of ranks the input of a reduce-scatter is as unknown: then it is the count that NCCL tells.
  op->count = event.function == Function::reduce_scatter ? event.count * std::max(identity_.nranks, 1u) : event.count;
  op->output_count = event.count;
  op->mode = tiny ? gate::kRaw : gate::kBucket;
  op->reason = Missed::none;
  op->eligible = event.count != 0 && (tiny || (reduces && gate::measured_type(event.datatype) != gate::kTypeNone));
  if (op->eligible) return;
  op->reason = reduces && event.count != 0 ? Missed::unsupported_datatype : Missed::unsupported_function;
}

Communicator::Batch* Communicator::batch(std::uint32_t serial) {
  if (serial == kNoBatch) return nullptr;
  Batch& b = (serial & kCapturedBit) != 0 ? captured_batches_[(serial & ~kCapturedBit) - 1]
                                          : direct_batches_[serial % kDirectBatches];
  return b.serial == serial ? &b : nullptr;
}

Communicator::Batch* Communicator::open_batch(bool captured) {
  if (Batch* last = batch(current_); last != nullptr) {
    // Calls of the last batch that no launch took: an inline launch has told all its buffers by now.
    if (last->seen_inline || last->slot == kNoSlot) give_up(last);
    close_results(*last);
  }
  Batch* b = nullptr;
  std::uint32_t serial = kNoBatch;
  if (captured) {
    if (captured_batches_opened_ == kCapturedBatches) return nullptr;
    b = &captured_batches_[captured_batches_opened_++];
    serial = captured_batches_opened_ | kCapturedBit;
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
  b->first_captured = captured_ops_;
  current_ = serial;
  return b;
}

Op& Communicator::op_of(const Batch& b, std::uint32_t i) {
  return b.captured ? tables_.captured[b.first_captured + i] : tables_.direct_op(b.first_op + i);
}

Op* Communicator::op_of(Handle coll_api) {
  if (coll_api.type() != HandleType::coll_api || coll_api.communicator() != id_) return nullptr;
  if ((coll_api.payload() & kCapturedOp) != 0) {
    const std::uint64_t i = coll_api.payload() & ~kCapturedOp;
    return i < captured_ops_ ? &tables_.captured[i] : nullptr;
  }
  Op& op = tables_.direct_op(coll_api.payload());
  const bool alive = op.ordinal == coll_api.payload() && coll_api.payload() >= tables_.collected.load();
  return alive ? &op : nullptr;
}

bool Communicator::overflows(std::uint64_t ordinal) {
  if (!overflowed_ && ordinal - tables_.collected.load(std::memory_order_acquire) < kDirectOps) return false;
  // From here on ordinals could differ between ranks, so nothing more of this communicator is recorded.
  if (!std::exchange(overflowed_, true))
    log_.warn("rank %u: %u collectives without an outcome: this communicator is not recorded any more", identity_.rank,
              kDirectOps);
  tables_.uncounted[static_cast<std::size_t>(Missed::backlog)].fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Communicator::note_unmeasured(const CollApiEvent& event) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t ordinal = next_op_;
  if (overflows(ordinal)) return;
  Op& op = tables_.direct_op(ordinal);
  op.ordinal = ordinal;
  op.placed = op.addressed = op.result_wanted = false;
  op.captured = event.captured;
  op.send = op.recv = 0;
  op.batch = kNoBatch;
  classify(event, &op);
  if (op.eligible) op.reason = unmeasured_;
  op.eligible = false;
  // No replay of a captured call will be seen, so none gets a record.
  const bool ignored = op.reason == Missed::unsupported_function || op.captured;
  if (ignored) tables_.uncounted[static_cast<std::size_t>(op.reason)].fetch_add(1, std::memory_order_relaxed);
  op.state.store(ignored ? OpState::ignored : OpState::missed, std::memory_order_release);
  next_op_++;
  tables_.announced.store(next_op_, std::memory_order_release);
}

void Communicator::identify(std::uint64_t comm_id, std::uint32_t rank, const char* name) {
  if (identified()) return;
  const std::lock_guard lock(mutex_);
  identity_.comm_id = comm_id;
  identity_.rank = rank;
  if (name != nullptr) std::strncpy(name_, name, sizeof name_ - 1);
  identified_.store(true, std::memory_order_release);
}

Handle Communicator::coll_api_start(const CollApiEvent& event) {
  t_links.launch_valid = false;
  if (channel_ == nullptr) {
    note_unmeasured(event);
    return {};
  }
  const std::lock_guard lock(mutex_);
  const std::uint64_t ordinal = next_op_;
  if (overflows(ordinal)) return {};
  Batch* b = batch(current_);
  if (b == nullptr || b->launches > 0 || b->captured != event.captured) b = open_batch(event.captured);
  const bool storable = b != nullptr && (!event.captured || captured_ops_ < kCapturedOps);

  Op& direct = tables_.direct_op(ordinal);
  Op& op = event.captured && storable ? tables_.captured[captured_ops_] : direct;
  op.ordinal = direct.ordinal = ordinal;
  op.placed = op.addressed = false;
  op.captured = event.captured;
  op.send = op.recv = 0;
  op.told = 0;
  op.batch = b != nullptr ? b->serial : kNoBatch;
  classify(event, &op);
  OpState state = OpState::announced;
  if (!op.eligible) {
    state = op.reason == Missed::unsupported_function ? OpState::ignored : OpState::missed;
  } else if (!storable) {
    op.reason = Missed::backlog;
    op.eligible = false;
    state = OpState::missed;
  }
  op.result_wanted = state != OpState::ignored && result_due(op);
  op.state.store(state, std::memory_order_release);
  Handle handle(HandleType::coll_api, id_, ordinal);
  if (event.captured && storable) {
    direct.state.store(state == OpState::announced ? OpState::captured : OpState::ignored, std::memory_order_release);
    if (state != OpState::announced)
      tables_.uncounted[static_cast<std::size_t>(op.reason)].fetch_add(1, std::memory_order_relaxed);
    handle = Handle(HandleType::coll_api, id_, kCapturedOp | captured_ops_);
    captured_ops_++;
  } else if (state == OpState::ignored) {
    tables_.uncounted[static_cast<std::size_t>(op.reason)].fetch_add(1, std::memory_order_relaxed);
  }
  if (b != nullptr && storable) {
    b->ops++;
    if (op.eligible) b->eligible++;
    b->results_wanted |= op.result_wanted;
    if (event.group_api.type() == HandleType::group_api) {
      b->last_group = event.group_api.payload();
      if (b->first_group == 0) b->first_group = b->last_group;
    }
  }
  next_op_++;
  tables_.announced.store(next_op_, std::memory_order_release);
  return handle;
}

bool Communicator::result_due(const Op& op) {
  if (result_every_ == 0) return false;
  // The device skips replays by itself: a graph holds the same kernels every time.
  bool in_turn = true;
  if (result_every_ > 1 && !op.captured) {
    // From the sequence of calls alone, so that all ranks choose the same ones; all, until the steps are known.
    const StepDetector::Position at = steps_.feed(step_signature(op.function, op.datatype, op.count));
    in_turn = !at.confirmed || at.step % result_every_ == 0;
  }
  const bool reduces = op.function == Function::all_reduce || op.function == Function::reduce_scatter;
  return in_turn && reduces && op.eligible;
}

void Communicator::close_results(const Batch& b) {
  if (b.slot != kNoSlot && tables_.slots[b.slot].batch == b.serial)
    tables_.slots[b.slot].results_open.store(false, std::memory_order_release);
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
  for (std::uint32_t i = 0; i < b->ops; i++) {
    Op& op = op_of(*b, i);
    if (!(keep_addressed && op.addressed)) miss(&op, b, reason);
  }
}

void Communicator::give_up(Batch* b) {
  if (b->serial == kNoBatch || b->captured) return;  // a captured batch may be completed by any later replay
  close_results(*b);
  const bool waited = b->slot != kNoSlot && tables_.slots[b->slot].batch == b->serial &&
                      tables_.slots[b->slot].state.load(std::memory_order_acquire) == SlotState::open;
  // Entries placed in a slot that is never published are missed too; the collector sees them when the slot ends.
  if (waited) cancel(b->slot);
  // The table of direct ops may have moved on past ops that are finished; their places belong to others now.
  const std::uint64_t alive = tables_.collected.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < b->ops; i++)
    if (b->first_op + i >= alive) miss(&op_of(*b, i), b, waited ? Missed::timeout : Missed::no_events);
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
    if (captured_slots_used_ == kCapturedSlots || captured_entries_used_ + entries > kCapturedEntries) return kNoSlot;
    index = kDirectSlots + captured_slots_used_++;
    first = kDirectEntries + captured_entries_used_;
    captured_entries_used_ += entries;
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
  slot.capacity = entries;
  slot.first_entry = first;
  slot.entries.store(0, std::memory_order_relaxed);
  slot.batch = b->serial;
  slot.launched.store(false, std::memory_order_relaxed);
  slot.failed.store(false, std::memory_order_relaxed);
  slot.results_launched.store(0, std::memory_order_relaxed);
  slot.results_open.store(b->results_wanted, std::memory_order_relaxed);
  slot.result_failed.store(false, std::memory_order_relaxed);
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
  entry.key = gate::mix64(gate::mix64(seed_ ^ identity_.comm_id) ^ op->ordinal);
  entry.datatype = static_cast<std::uint8_t>(op->datatype);
  entry.mode = op->mode;
  tables_.entry_op[at] = op;
  tables_.entry_ordinal[at] = op->ordinal;
  slot.entries.store(n + 1, std::memory_order_release);
  op->placed = true;
  b->placed++;
}

void Communicator::publish(std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  if (slot.state.load(std::memory_order_relaxed) != SlotState::open) return;
  slot.state.store(SlotState::published, std::memory_order_release);
  gate::GateSlot& shared = channel_->slot(index);
  shared.entries = slot.entries.load(std::memory_order_relaxed);
  std::atomic_ref<std::uint32_t>(shared.state).store(gate::kSlotPublished, std::memory_order_release);
}

void Communicator::cancel(std::uint32_t index) {
  tables_.slots[index].results_open.store(false, std::memory_order_release);
  tables_.slots[index].state.store(SlotState::cancelled, std::memory_order_release);
  std::atomic_ref<std::uint32_t>(channel_->slot(index).state).store(gate::kSlotCancelled, std::memory_order_release);
}

MeasurePlan Communicator::plan(const Batch& b, gate::Pass pass) {
  MeasurePlan plan;
  for (std::uint32_t i = 0; i < b.ops; i++) {
    const Op& op = op_of(b, i);
    if (!op.eligible || op.mode == gate::kRaw || (pass == gate::kResultPass && !op.result_wanted)) continue;
    const std::uint64_t count = pass == gate::kInputPass ? op.count : op.output_count;
    plan.add(gate::measured_type(op.datatype), count, element_bytes(op.datatype));
  }
  return plan;
}

Missed Communicator::reason_not_to_gate(const Batch& b) const {
  if (launch_failed_) return Missed::launch_failed;
  if (switched_off_->load(std::memory_order_relaxed)) return Missed::switched_off;
  // The host would wait for the gate inside the launch call, and so never come to tell the buffers.
  if (launch_blocking_ && !b.captured) return Missed::launch_blocking;
  return Missed::none;
}

Handle Communicator::kernel_launch_start(Handle group_api, void* stream) {
  if (channel_ == nullptr) return {};
  t_links.launch_valid = false;
  t_links.launching_slot = t_links.result_slot = kNoSlot;
  std::unique_lock lock(mutex_);
  t_links.launching_communicator = id_;
  t_links.launching_batch = current_;
  t_links.launching_stream = stream;
  const Handle handle(HandleType::kernel_launch, id_, 0);
  Batch* b = batch(current_);
  if (b == nullptr) return handle;
  b->launches++;
  // Sends and receives are launched without a call that is announced: they complete no result of this batch.
  const bool completes = belongs(*b, group_api);
  if (b->slot != kNoSlot && tables_.slots[b->slot].state.load(std::memory_order_relaxed) == SlotState::open) {
    // The earlier launch's gate still waits for this batch's buffers; an earlier gate is as good as a second one.
    t_links.launching_slot = b->slot;
    if (completes) t_links.result_slot = b->slot;
    return handle;
  }
  // Buffers that came before the launch (host callbacks) need no waiting gate, even when launches block.
  const Missed reason = reason_not_to_gate(*b);
  if (reason != Missed::none) miss_unplaced(b, reason, reason == Missed::launch_blocking);
  if (b->eligible == b->placed) {
    // Host callbacks told all buffers before the batch's first launch; any of its launches may complete their results.
    if (completes && !b->seen_inline) t_links.result_slot = b->slot;
    return handle;
  }

  const std::uint32_t index = open_slot(b, b->eligible - b->placed);
  if (index == kNoSlot) {
    miss_unplaced(b, Missed::backlog, false);
    return handle;
  }
  t_links.launching_slot = index;
  if (completes) t_links.result_slot = index;
  for (std::uint32_t i = 0; i < b->ops; i++) {
    Op& op = op_of(*b, i);
    if (op.eligible && op.addressed && !op.placed) place(&op, b, index);
  }
  if (b->placed == b->eligible) publish(index);
  launch(&lock, b, index, stream);
  return handle;
}

// Launches a pass with the mutex released: host callbacks of another thread may need it before the device gets on, and
// a launch may wait for the device.
CUresult Communicator::launch_pass(std::unique_lock<std::mutex>* lock, PassLaunch pass, bool captured, void* stream,
                                   std::uint32_t* number) {
  const auto cuda_stream = static_cast<CUstream>(stream);
  pass.workspace = channel_->workspace_of(cuda_stream);
  // What is captured arrives when a graph runs it, and the slot is the graph's alone.
  std::uint64_t& arrivals = tables_.slots[pass.slot].arrivals[pass.pass];
  pass.first_arrival = captured ? 0 : arrivals;
  if (!captured) arrivals += pass.ctas;
  lock->unlock();
  const CUresult result = channel_->launch(pass, cuda_stream, number);
  lock->lock();
  if (result != CUDA_SUCCESS && !captured) arrivals -= pass.ctas;
  return result;
}

void Communicator::fail_launches(CUresult result) {
  if (std::exchange(launch_failed_, true)) return;
  log_.warn("rank %u: launching the measuring kernels failed (%s): this communicator is not measured any more",
            identity_.rank, channel_->error_name(result).c_str());
}

void Communicator::launch(std::unique_lock<std::mutex>* lock, Batch* b, std::uint32_t index, void* stream) {
  const MeasurePlan plan = this->plan(*b, gate::kInputPass);
  Slot& slot = tables_.slots[index];
  slot.launched.store(true, std::memory_order_release);
  const std::uint32_t serial = b->serial;
  const bool captured = b->captured;
  if (!captured) tables_.slots_opened.fetch_add(1, std::memory_order_release);
  PassLaunch pass;
  pass.slot = index;
  pass.kernel = plan.kernel();
  pass.ctas = plan.ctas(max_ctas_);
  const std::uint64_t begin = monotonic_ns();
  std::uint32_t number = 0;
  const CUresult result = launch_pass(lock, pass, captured, stream, &number);
  const bool slow = monotonic_ns() - begin >= slow_launch_ns_;
  if (captured && result == CUDA_SUCCESS) {
    // The slot is the graph's: it is never reused, whether the driver can tell us of the graph's end or not.
    const Handle token(HandleType::context, id_, index);
    lock->unlock();
    channel_->retain_by_graph(static_cast<CUstream>(stream), token.opaque(), graph_gone_);
    lock->lock();
  }
  if (slow && !captured) switch_off_if_launches_block(index);
  if (result == CUDA_SUCCESS) return;
  slot.failed.store(true, std::memory_order_release);
  slot.launched.store(false, std::memory_order_release);
  slot.results_open.store(false, std::memory_order_release);
  if (slot.state.load(std::memory_order_relaxed) == SlotState::open) cancel(index);
  if (Batch* still = batch(serial); still != nullptr) miss_unplaced(still, Missed::launch_failed, false);
  t_links.launching_slot = t_links.result_slot = kNoSlot;
  fail_launches(result);
}

void Communicator::launch_result(std::unique_lock<std::mutex>* lock, const Batch& b, std::uint32_t index,
                                 void* stream) {
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
  pass.every = b.captured ? result_every_ : 1;
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
  if (!ended || tables_.slots[index].state.load(std::memory_order_relaxed) != SlotState::open) return;
  if (switched_off_->exchange(true)) return;
  log_.warn(
      "kernel launches of this process block until the kernel ends (a debugger or another profiler?): measuring is "
      "switched off for the whole process");
}

void Communicator::kernel_launch_stop() {
  const bool ours = t_links.launching_communicator == id_;
  if (ours && t_links.result_slot != kNoSlot && result_every_ != 0) {
    std::unique_lock lock(mutex_);
    const std::uint32_t index = t_links.result_slot;
    const Slot& slot = tables_.slots[index];
    if (const Batch* b = batch(t_links.launching_batch); b != nullptr && slot.batch == b->serial &&
                                                         slot.results_open.load(std::memory_order_relaxed) &&
                                                         !launch_failed_) {
      launch_result(&lock, *b, index, t_links.launching_stream);
    }
  }
  t_links.launch_valid = ours;
  t_links.launch_communicator = id_;
  t_links.launch_slot = t_links.launching_slot;
  t_links.launching_slot = t_links.result_slot = kNoSlot;
}

Handle Communicator::group_start() {
  t_links.group_communicator = id_;
  t_links.group_inline = t_links.launch_valid && t_links.launch_communicator == id_;
  t_links.group_slot = t_links.group_inline ? t_links.launch_slot : kNoSlot;
  t_links.group_batch = kNoBatch;
  t_links.launch_valid = false;
  return Handle(HandleType::group, id_, 0);
}

Handle Communicator::coll_start(Handle coll_api, const void* send, const void* recv) {
  const std::lock_guard lock(mutex_);
  const Handle handle(HandleType::coll, id_, 0);
  Op* op = op_of(coll_api);
  if (op == nullptr || t_links.group_communicator != id_) return handle;
  const auto send_address = reinterpret_cast<std::uint64_t>(send);
  const auto recv_address = reinterpret_cast<std::uint64_t>(recv);
  op->told++;
  if (op->addressed) {
    // A replay of a captured collective: the gate reads the addresses of the first one.
    if (op->captured && (op->send != send_address || op->recv != recv_address) &&
        op->moved_from.load(std::memory_order_relaxed) == UINT32_MAX)
      op->moved_from.store(op->told, std::memory_order_release);
    return handle;
  }
  Batch* b = batch(op->batch);
  if (b == nullptr || !op->eligible || op->state.load(std::memory_order_relaxed) != OpState::announced) return handle;
  op->send = send_address;
  op->recv = recv_address;
  op->addressed = true;
  t_links.group_batch = b->serial;
  if (t_links.group_inline) b->seen_inline = true;
  const std::uint32_t index = t_links.group_inline ? t_links.group_slot : b->slot;
  if (index == kNoSlot) return handle;
  Slot& slot = tables_.slots[index];
  if (slot.batch != b->serial || slot.state.load(std::memory_order_relaxed) != SlotState::open ||
      slot.entries.load(std::memory_order_relaxed) >= slot.capacity) {
    miss(op, b, Missed::ambiguous);
    return handle;
  }
  place(op, b, index);
  return handle;
}

void Communicator::group_stop() {
  if (t_links.group_communicator != id_) return;
  const std::lock_guard lock(mutex_);
  if (t_links.group_inline) {
    // All of this launch's buffers are told; a batch of several launches gets a slot for each.
    if (t_links.group_slot != kNoSlot) {
      publish(t_links.group_slot);
      tables_.slots[t_links.group_slot].results_open.store(false, std::memory_order_release);
    }
  } else if (Batch* b = batch(t_links.group_batch); b != nullptr && b->slot != kNoSlot && b->placed == b->eligible) {
    publish(b->slot);
  }
  t_links.group_slot = kNoSlot;
  t_links.group_inline = false;
  t_links.group_batch = kNoBatch;
}

void Communicator::give_up_all() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < kDirectBatches; i++) give_up(&direct_batches_[i]);
}

void Communicator::expire(std::uint32_t slot) {
  // The only place where the collector takes this mutex, after a failure that callbacks no longer wait for.
  const std::lock_guard lock(mutex_);
  if (tables_.slots[slot].state.load(std::memory_order_relaxed) != SlotState::open) return;
  if (Batch* b = batch(tables_.slots[slot].batch); b != nullptr && b->slot == slot) {
    give_up(b);
  } else {
    cancel(slot);
  }
}

bool Communicator::graphs_alive() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t i = 0; i < captured_slots_used_; i++)
    if (!tables_.slots[kDirectSlots + i].graph_released.load(std::memory_order_acquire)) return true;
  return false;
}

void Communicator::release_captured_slot(std::uint32_t slot) {
  if (slot < kSlots) tables_.slots[slot].graph_released.store(true, std::memory_order_release);
}

}  // namespace gradprobe
