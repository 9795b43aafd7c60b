#include "communicator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gradprobe {
namespace {

constexpr std::uint32_t kReducing =
    Selection::bit(Function::all_reduce) | Selection::bit(Function::reduce_scatter) | Selection::bit(Function::reduce);
bool reduces(Function f) {
  return (kReducing & Selection::bit(f)) != 0;
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
      group_api_handle_(HandleType::group_api, id, 0),
      call_handle_(HandleType::coll_api, id, 0),
      launch_handle_(HandleType::kernel_launch, id, 0),
      group_handle_(HandleType::group, id, 0),
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
  choose_plain_calls();
  if (channel_ == nullptr) return;
  channel_->control().replay_every = sampling_.measure ? sampling_.every : 0;
  channel_->control().replay_result_every = sampling_.result_every;
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
  choose_plain_calls();
  if (activations_)
    log_.warn(
        "rank %u: this communicator of %u ranks seems to reduce activations, not gradients: it is not measured any "
        "more (GRADPROBE_COMMS=all measures all)",
        identity_.rank, identity_.nranks);
  return gradients;
}

void Communicator::choose_plain_calls() {
  const bool by_datatype = selection_.datatypes != Selection::kAllDatatypes;
  plain_functions_ = by_datatype || activations_ ? 0 : selection_.functions & kReducing & ~watched_functions_;
  plain_from_ = std::max<std::uint64_t>(kMaxRawElements + 1, selection_.min_count);
}

// Most calls of a training run: none of what leave_out() looks at leaves them out.
inline bool Communicator::is_plain(const CollApiEvent& e) const {
  return (plain_functions_ & Selection::bit(e.function)) != 0 && e.count >= plain_from_;
}

// What needs no op: it would have no record, and is no part of the sequence in which steps are found.
[[gnu::noinline]] Missed Communicator::leave_out(const CollApiEvent& e) {
  bool gradients = true;
  if ((watched_functions_ & Selection::bit(e.function)) != 0 && e.count >= TrafficRole::kLarge) [[unlikely]]
    gradients = observe_traffic(e);
  if (!selection_.takes_function(e.function)) {
    const bool decides = (watched_functions_ & Selection::bit(e.function)) != 0;
    if (!decides && has_channel_) left_out_name_ = names_.function_name;
    return Missed::not_selected;
  }
  if (activations_) gradients = e.count < TrafficRole::kLarge;
  const bool tiny = is_tiny(e);
  if (!selection_.takes_input(e.datatype, input_count(e), tiny)) return Missed::not_selected;
  if ((!tiny && !reduces(e.function)) || e.count == 0) return Missed::unsupported_function;
  if (e.function == Function::broadcast) {
    // From 2.29 on NCCL announces broadcasts and reports no launch. In a graph only the root would have a record.
    if (identity_.profiler_abi >= 6) return Missed::no_events;
    if (e.captured) return Missed::unsupported_function;
  }
  return gradients || tiny ? Missed::none : Missed::model_parallel;
}

// What has no record on this rank or in this step, and yet is part of the sequence in which steps are found.
inline bool Communicator::pass_by(const CollApiEvent& e, const StepDetector::Position& at) const {
  if (e.captured) return false;  // a graph holds the same kernels every time: the device skips replays
  if (e.function == Function::broadcast && static_cast<std::uint32_t>(e.root) != identity_.rank) return true;
  return at.confirmed ? !sampling_.takes(at.step) : !sampling_.measure;
}

inline void Communicator::follow_control(const StepDetector::Position& at) {
  if (shared_->control.version() != control_version_ && shared_->control.try_get(&next_sampling_, &control_version_))
    sampling_changes_ = true;
  if (!sampling_changes_) return;
  const std::uint64_t from = next_sampling_.from_step;
  if (from != 0 && !(at.confirmed && at.step >= from)) return;
  sampling_ = next_sampling_;
  sampling_changes_ = false;
}

inline void Communicator::classify(const CollApiEvent& event, Op* op) const {
  op->function = event.function;
  op->datatype = event.datatype;
  op->count = input_count(event);
  op->output_count = event.count;
  op->mode = is_tiny(event) ? gate::kRaw : gate::kBucket;
  op->eligible = op->mode == gate::kRaw || gate::measured_type(event.datatype) != gate::kTypeNone;
  op->reason = op->eligible ? Missed::none : Missed::unsupported_datatype;
}

void Communicator::note_unmeasured(const CollApiEvent& event, Op* op) {
  op->placed = op->addressed = op->captured = op->symmetric = op->result_wanted = false;
  op->send = op->recv = 0;
  classify(event, op);
  if (op->eligible) op->reason = unmeasured_;
  op->eligible = false;
  // No replay of a captured call will be seen, so it gets no record either.
  if (event.captured) tables_.count_without_record(op->reason);
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

inline bool Communicator::result_due(const Op& op, const CollApiEvent& event, const StepDetector::Position& at) const {
  if (sampling_.result_every == 0 || !op.eligible || !reduces(op.function)) return false;
  if (op.function == Function::reduce && static_cast<std::uint32_t>(event.root) != identity_.rank) return false;
  // The device skips replays by itself: a graph holds the same kernels every time. Of the others all, until the steps
  // are known; by the sequence of calls alone, so that all ranks choose the same ones.
  return op.captured || !at.confirmed || sampling_.takes_result(at.step);
}

[[gnu::always_inline]] inline StepDetector::Position Communicator::position_of(const CollApiEvent& event) {
  if (const std::uint64_t marked = marks_.step(); marked != kNone) return {true, marked, 0, 0, false};
  return steps_.feed(step_signature(event.function, event.datatype, input_count(event)));
}

// No more ops than the tables have room for.
[[gnu::noinline]] bool Communicator::has_room_for(std::uint64_t index) {
  if (!overflowed_) {
    op_limit_ = tables_.collected.load(std::memory_order_acquire) + kDirectOps;
    if (index < op_limit_) return true;
    // From here on steps could differ between ranks, so nothing more of this communicator is recorded.
    overflowed_ = true;
    op_limit_ = 0;
    log_.warn("rank %u: %u collectives without an outcome: this communicator is not recorded any more", identity_.rank,
              kDirectOps);
  }
  tables_.count_without_record(Missed::backlog);
  return false;
}

// All of an op but its place and its state.
inline void Communicator::describe(const CollApiEvent& event, const StepDetector::Position& at, Op* op) const {
  op->placed = op->addressed = op->symmetric = false;
  op->captured = event.captured;
  op->send = op->recv = 0;
  op->told = 0;
  op->refused.store(false, std::memory_order_relaxed);
  classify(event, op);
  op->result_wanted = event.result_follows && result_due(*op, event, at);
}

inline void Communicator::add(const Op& op, Batch* b) {
  b->end_op = next_op_ + 1;
  if (!op.eligible) return;
  b->eligible++;
  b->results_wanted |= op.result_wanted;
  if (op.mode == gate::kRaw) return;
  const gate::MeasuredType type = gate::measured_type(op.datatype);
  b->inputs.add(type, op.count, element_bytes(op.datatype));
  if (op.result_wanted) b->results.add(type, op.output_count, element_bytes(op.datatype));
}

// The op in `next_op_`'s place is complete.
inline void Communicator::hand_over(const CollApiEvent& event) {
  next_op_++;
  if (!event.provisional) tables_.announced.store(next_op_, std::memory_order_release);
}

[[gnu::noinline]] Handle Communicator::announce_captured(const CollApiEvent& event, const StepDetector::Position& at,
                                                         Op* direct, Batch* b) {
  Op* const captured = b != nullptr ? new_captured_op(b) : nullptr;
  Op& op = captured != nullptr ? *captured : *direct;
  op.ordinal = direct->ordinal;
  op.user_tag = direct->user_tag;
  op.batch = b != nullptr ? b->serial : kNoBatch;
  describe(event, at, &op);
  if (captured == nullptr && op.eligible) {
    op.eligible = op.result_wanted = false;
    op.reason = Missed::backlog;
  }
  op.state.store(op.eligible ? OpState::announced : OpState::missed, std::memory_order_release);
  Handle handle = call_handle_.with(next_op_);
  if (captured != nullptr) {
    direct->state.store(OpState::captured, std::memory_order_release);
    if (!op.eligible) tables_.count_without_record(op.reason);
    handle = call_handle_.with(captured_payload(op));
    add(op, b);
  }
  hand_over(event);
  return handle;
}

[[gnu::always_inline]] inline Handle Communicator::announce(const CollApiEvent& event, std::uint64_t ordinal,
                                                            const StepDetector::Position& at) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return {};
  const std::uint64_t index = next_op_;
  if (index >= op_limit_ && !has_room_for(index)) [[unlikely]]
    return {};
  Op& op = tables_.direct_op(index);
  op.ordinal = ordinal;
  op.index = index;
  op.batch = kNoBatch;
  op.user_tag = event.user_tag;
  if (pass_by(event, at)) {
    classify(event, &op);
    op.state.store(OpState::passed, std::memory_order_release);
    hand_over(event);
    const Missed reason = event.function == Function::broadcast ? Missed::unsupported_function : Missed::not_sampled;
    tables_.count_without_record(reason);
    return {};
  }
  if (channel_ == nullptr) {
    note_unmeasured(event, &op);
    hand_over(event);
    return {};
  }

  Batch* b = current_;
  if (b == nullptr || b->closed || b->captured != event.captured) b = open_batch(event.captured);
  if (event.captured) [[unlikely]]
    return announce_captured(event, at, &op, b);
  op.batch = b->serial;
  describe(event, at, &op);
  op.state.store(op.eligible ? OpState::announced : OpState::missed, std::memory_order_release);
  add(op, b);
  hand_over(event);
  return call_handle_.with(index);
}

// Apart from what every call costs.
[[gnu::noinline]] Handle Communicator::take_up(const CollApiEvent& event, std::uint64_t ordinal) {
  StepDetector::Position at;
  if (!event.captured) at = position_of(event);
  follow_control(at);
  return announce(event, ordinal, at);
}

inline Handle Communicator::note_call(const CollApiEvent& event) {
  const std::uint64_t ordinal = count_call(event.group_api, event.captured);
  if (const Missed reason = is_plain(event) ? Missed::none : leave_out(event); reason != Missed::none) {
    tables_.count_without_record(reason);
    return {};
  }
  return take_up(event, ordinal);
}

Handle Communicator::coll_api_start(const CollApiEvent& event) {
  t_links.phase = LaunchPhase::none;
  if (has_channel_) [[likely]]
    return note_call(event);
  // NCCL before 2.28 tells its calls from host callbacks, too, at the same time as from the caller's thread.
  const std::lock_guard lock(untold_mutex_);
  return note_call(event);
}

}  // namespace gradprobe
