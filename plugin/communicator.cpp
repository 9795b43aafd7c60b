#include "communicator.hpp"

#include <algorithm>
#include <cstring>
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
      has_channel_(channel != nullptr),
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
    left_out_name_ = decides || !has_channel_ ? nullptr : names_.function_name;
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
      idle_.store(has_channel_ && shared_->communicators.load(std::memory_order_relaxed) == 1,
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
  if (has_channel_) [[likely]]
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
      "CUDA graphs are not measured any more (a larger GRADPROBE_GATE_TIMEOUT waits longer)",
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
  if (!has_channel_) return handle;
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

}  // namespace gradprobe
