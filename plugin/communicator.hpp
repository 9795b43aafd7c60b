// One communicator's side of NCCL's callbacks: links API calls, launches and buffers, launches gates, publishes slots.
// The linking rule and its reasons: docs/ARCHITECTURE.md, "From callbacks to measurements".
//
// Threads: every method may be called from any thread of the process. One mutex per communicator guards the linking
// state; it is not held while a kernel is launched. NCCL calls a communicator from one thread at a time except for host
// callbacks, so the mutex is free when it is taken; sections are short, allocate nothing and make no system call.
#pragma once

#include <gradprobe/step_detector.hpp>

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "call_mutex.hpp"
#include "config.hpp"
#include "control.hpp"
#include "gate_channel.hpp"
#include "handle.hpp"
#include "log.hpp"
#include "marks.hpp"
#include "ops.hpp"
#include "selection.hpp"
#include "thread_links.hpp"
#include "traffic_role.hpp"

namespace gradprobe {

struct CollApiEvent {
  Function function = Function::unknown;
  Datatype datatype = Datatype::unknown;
  std::uint64_t count = 0;  // as in the API call: elements
  int root = 0;             // of broadcast and reduce
  bool captured = false;
  Handle group_api;
  bool provisional = false;    // NCCL may still refuse it: no record is written before end_calls()
  bool result_follows = true;  // a result pass behind its launch would see its result
  std::uint64_t user_tag = 0;  // what the application gave NCCL with the call (struct version 7); 0: nothing
};

// A collective call whose buffers are known when it is made (the preload library).
struct KnownCall {
  Function function = Function::unknown;
  Datatype datatype = Datatype::unknown;
  std::uint64_t count = 0;  // as in the API call: elements
  int root = 0;             // of broadcast and reduce
  const void* send = nullptr;
  const void* recv = nullptr;
};

// Calls on one stream from begin_calls() to end_calls().
struct BegunCalls {
  std::uint32_t batch = 0;
  std::uint32_t slot = kNoSlot;  // whose results are to be measured
  std::uint64_t end_op = 0;      // index behind the last call
};

enum class CallOutcome {
  launched,   // NCCL's kernel is on the stream
  launching,  // it will be, by a thread of NCCL's
  refused,    // NCCL returned an error
};

struct CommunicatorIdentity {
  std::uint64_t comm_id = 0;
  std::uint32_t rank = 0, nranks = 0, nnodes = 0;  // 0 ranks: not told
  std::uint32_t profiler_abi = 0;
  Role role = Role::undecided;  // decided already by the name or the user
  bool known = true;            // false: an event will tell comm_id and rank
};

// What the communicators of a process share.
struct SharedState {
  std::atomic<bool> switched_off{false};        // once true, nothing is gated any more
  std::atomic<std::uint32_t> communicators{0};  // that are open
  Control control;
  // Called by CUDA when a graph is gone; gets a Handle of type context whose payload is the slot that the graph held.
  void (*graph_gone)(void* token) = nullptr;
};

class Communicator {
 public:
  // Without a channel nothing is measured, and `unmeasured` is the reason in every record.
  Communicator(CommunicatorId id, const CommunicatorIdentity& identity, const Config& config,
               std::unique_ptr<GateChannel> channel, Missed unmeasured, const Log& log, SharedState* shared);

  Handle group_api_start() {
    group_api_stop();
    // Of the process: the calls of several communicators can have one group.
    static constinit std::atomic<std::uint64_t> groups{0};
    return group_api_handle_.with(groups.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  // Of any communicator: it says what this thread's next Group doesn't follow.
  static void group_api_stop() { t_links.phase = LaunchPhase::none; }
  Handle coll_api_start(const CollApiEvent& event);
  // What the names of the last call meant: NCCL's are constants, which keep their addresses while it has communicators.
  struct CallNames {
    const char* function_name = nullptr;
    const char* datatype_name = nullptr;
    Function function = Function::unknown;
    Datatype datatype = Datatype::unknown;
  };
  CallNames& last_names() { return names_; }  // of the thread that calls the communicator
  // Counts the call if it is left out for its function's name, as an earlier one was.
  bool leaves_out_again(const char* function, Handle group_api, bool captured) {
    if (function != left_out_name_) return false;
    t_links.phase = LaunchPhase::none;
    const std::uint64_t ordinal = count_call(group_api, captured);
    tables_.count_without_record(Missed::not_selected);
    if (ordinal == kCallsToIdle) [[unlikely]]
      idle_.fetch_or(kQuiet, std::memory_order_relaxed);
    return true;
  }
  // The same while it is idle(): calls have no groups, and no launch has been told.
  bool idly_leaves_out_again(const char* function) {
    if (function != left_out_name_) return false;
    tables_.calls.store(tables_.calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    tables_.count_without_record(Missed::not_selected);
    return true;
  }
  // A call that is recorded waits for a launch; without one, launches needn't be told.
  bool awaits_launch() const { return awaits_launch_.load(std::memory_order_acquire); }
  Handle kernel_launch_start(Handle group_api, void* stream);
  void kernel_launch_stop();
  Handle group_start() {
    // NCCL before 2.28 tells the collectives of groups that have a handle.
    if (!has_channel_) return group_handle_;
    ThreadLinks& links = t_links;
    const bool after_launch = links.phase == LaunchPhase::launched;
    links.phase = LaunchPhase::none;
    if (!awaits_launch() && !callbacks_matter_.load(std::memory_order_relaxed)) return {};
    links.group_inline = after_launch && links.communicator == id_.number();
    links.group_communicator = id_.number();
    links.group_batch = kNoBatch;
    return group_handle_;
  }
  void group_stop();
  // Without a handle: nothing is to be heard of its stop. `symmetric`: NCCL says that a symmetric kernel does it.
  void coll_start(Handle coll_api, const void* send, const void* recv, bool symmetric = false);
  // The call is carried out by copy engines: no launch of a kernel and no Coll follow.
  void copy_engine_start(Handle coll_api);

  // What NCCL's init didn't tell, from the first event that does (struct versions 1 to 3).
  void identify(std::uint64_t comm_id, std::uint32_t rank, const char* name);
  bool identified() const { return identified_.load(std::memory_order_acquire); }

  // Instead of the events above, around the call that makes NCCL launch: numbers the calls and puts one input pass over
  // them on `stream`, with nothing to wait for; then, on the same thread, behind a launch that has been made, the
  // result pass. Several begin_calls() may precede their end_calls(), which come in the same order.
  BegunCalls begin_calls(std::span<const KnownCall> calls, bool captured, bool result_follows, void* stream);
  void end_calls(const BegunCalls& begun, CallOutcome outcome, void* stream);
  // What the collectives in flight leave in their outputs doesn't count any more: they are being aborted.
  void void_results();

  // No callback counts from here on: what is still open is given up. False, with nothing done, when the mutex isn't to
  // be had within `patience`: a signal handler that ends the process may have interrupted a callback.
  bool stop(std::chrono::milliseconds patience);
  // The slot's gate has timed out and its buffers were not told since: its collectives, of a captured slot those that
  // were not told, are given up.
  void expire(std::uint32_t slot);
  // Too many gates have waited in vain: no more of them, but in graphs. From the collector.
  void stop_gating();
  // A graph that captured this slot is gone. From any thread, no CUDA calls.
  void release_captured_slot(std::uint32_t slot);

  // Nothing has been measured and it seems that nothing will be: calls matter, other events don't. Only alone in its
  // process: a group's first communicator tells the group of all.
  bool idle() const { return idle_.load(std::memory_order_relaxed) == (kQuiet | kAlone); }
  void set_alone(bool alone) {
    if (alone)
      idle_.fetch_or(kAlone, std::memory_order_relaxed);
    else
      idle_.fetch_and(static_cast<std::uint8_t>(~kAlone), std::memory_order_relaxed);
  }

  CommunicatorId id() const { return id_; }
  const CommunicatorIdentity& identity() const { return identity_; }  // changes until identified()
  const char* name() const { return name_; }
  OpTables& tables() { return tables_; }
  // From any thread but NCCL's callbacks.
  void push_mark(const Mark& mark) { marks_.push(mark, tables_.announced, tables_.calls); }
  MarkQueue& marks() { return marks_; }
  GateChannel* channel() { return channel_.get(); }  // null: nothing is measured
  // After stop() and when nothing else looks at the tables: frees them and gives the channel away. Null, and nothing is
  // freed, while a launch is still under way.
  std::unique_ptr<GateChannel> release();
  const Log& log() const { return log_; }
  const Control& control() const { return shared_->control; }
  bool graphs_alive();

 private:
  // All collective calls since the communicator's last launch.
  struct Batch {
    std::uint32_t serial = 0;
    std::uint64_t first_op = 0, end_op = 0;                       // direct: indexes, those of its ops among them
    std::uint32_t first_captured = kNoOp, last_captured = kNoOp;  // captured: a list by Op::next
    std::uint32_t slots = 0;                                      // captured: that graphs hold
    std::uint32_t eligible = 0, placed = 0;
    std::uint32_t told_early = 0;       // addressed for a launch that is still to come
    std::uint32_t launches = 0;         // that may carry its calls
    std::uint32_t inline_launches = 0;  // of these, those whose Group came inline
    bool closed = false;                // a launch has followed: later calls are another batch's
    bool results_wanted = false;
    // GroupApi events of the calls before its first launch, also of those that aren't recorded; 0: none.
    std::uint64_t first_group = 0, last_group = 0;
    std::uint32_t slot = kNoSlot;
    bool captured = false;
    bool ends_later = false;      // its results stay open until end_calls()
    MeasurePlan inputs, results;  // of all its buckets; of those whose results are wanted
    // Callbacks may tell buffers only while this holds. Then the slot's gate came before every launch they can be of.
    bool all_inline() const { return inline_launches == launches; }
  };
  // As many as slots: a batch whose callbacks are late is given up only where its slot would be in the way, too.
  static constexpr std::uint32_t kDirectBatches = kDirectSlots;
  static constexpr std::uint32_t kCapturedBatches = 1024;
  static constexpr std::uint32_t kCapturedBit = 1u << 31;
  static constexpr std::uint32_t kNoBatch = 0;
  // In a CollApi handle's payload: a captured op's place, and its ordinal's lowest bits above.
  static constexpr std::uint64_t kCapturedOp = std::uint64_t{1} << 43;
  static constexpr unsigned kCapturedOpBits = 12;
  static_assert(kCapturedOps == 1u << kCapturedOpBits);

  // Null when there is none of that number any more.
  Batch* batch(std::uint32_t serial) {
    Batch& b = (serial & kCapturedBit) != 0 ? captured_batches_[serial % kCapturedBatches]
                                            : direct_batches_[serial % kDirectBatches];
    return b.serial == serial && serial != kNoBatch ? &b : nullptr;
  }
  Batch* open_batch(bool captured);
  void leave_batch();
  void finish(Batch* b);
  Batch* new_captured_batch(std::uint32_t* serial);
  void free_captured_batch(Batch* b);
  Op* new_captured_op(Batch* b);
  void reclaim_captured_slots();
  std::uint32_t take_captured_entries(std::uint32_t entries);
  template <typename F>
  void for_each_op(const Batch& b, const F& f) {
    if (b.captured) {
      for (std::uint32_t i = b.first_captured; i != kNoOp; i = tables_.captured[i].next) f(tables_.captured[i]);
    } else {
      // Between them may be ops without a record.
      for (std::uint64_t i = b.first_op; i < b.end_op; i++)
        if (Op& op = tables_.direct_op(i); op.index == i && op.batch == b.serial) f(op);
    }
  }
  // The op of a call, null for anything else.
  Op* op_of(Handle coll_api) {
    if (coll_api.tag() != call_handle_.tag()) return nullptr;
    const std::uint64_t payload = coll_api.payload();
    if ((payload & kCapturedOp) != 0) [[unlikely]]
      return captured_op_of(payload);
    Op& op = tables_.direct_op(payload);
    return op.index == payload && payload >= tables_.collected.load(std::memory_order_acquire) ? &op : nullptr;
  }
  Op* captured_op_of(std::uint64_t payload);
  std::uint64_t captured_payload(const Op& op) const;
  std::uint64_t input_count(const CollApiEvent& event) const;
  void choose_plain_calls();
  bool is_plain(const CollApiEvent& event) const;
  Handle note_call(const CollApiEvent& event);
  // The call's ordinal.
  std::uint64_t count_call(Handle group_api, bool captured) {
    const std::uint64_t ordinal = tables_.calls.load(std::memory_order_relaxed);
    tables_.calls.store(ordinal + 1, std::memory_order_release);
    if (group_api.type() != HandleType::group_api) return ordinal;
    last_group_.store(group_api.payload(), std::memory_order_relaxed);
    const bool others = groups_captured_.load(std::memory_order_relaxed) != captured;
    if (others) groups_captured_.store(captured, std::memory_order_relaxed);
    if (others || first_group_.load(std::memory_order_relaxed) == 0)
      first_group_.store(group_api.payload(), std::memory_order_relaxed);
    return ordinal;
  }
  Handle take_up(const CollApiEvent& event, std::uint64_t ordinal);
  bool observe_traffic(const CollApiEvent& event);
  Missed leave_out(const CollApiEvent& event);
  StepDetector::Position position_of(const CollApiEvent& event);
  bool pass_by(const CollApiEvent& event, const StepDetector::Position& at) const;
  Handle announce(const CollApiEvent& event, std::uint64_t ordinal, const StepDetector::Position& at);
  bool has_room_for(std::uint64_t index);
  Handle announce_captured(const CollApiEvent& event, const StepDetector::Position& at, Op* direct, Batch* b);
  void hand_over(const CollApiEvent& event);
  void describe(const CollApiEvent& event, const StepDetector::Position& at, Op* op) const;
  void classify(const CollApiEvent& event, Op* op) const;
  void add(const Op& op, Batch* b);
  void note_unmeasured(const CollApiEvent& event, Op* op);
  void follow_control(const StepDetector::Position& at);
  void miss(Op* op, Batch* b, Missed reason);
  void miss_unplaced(Batch* b, Missed reason, bool keep_addressed);
  void give_up(Batch* b);
  std::uint32_t open_slot(Batch* b, std::uint32_t entries);
  std::uint32_t take_direct_slot(std::uint32_t entries);
  std::uint32_t take_captured_slot(std::uint32_t entries);
  void place(Op* op, Batch* b, std::uint32_t slot);
  void publish(std::uint32_t slot);
  void give_back_entries(std::uint32_t slot, std::uint32_t used);
  void cancel(std::uint32_t slot);
  bool result_due(const Op& op, const CollApiEvent& event, const StepDetector::Position& at) const;
  void count_launch(Batch* b);
  bool belongs(const Batch& b, Handle group_api) const;
  void place_told(Batch* b, std::uint32_t slot);
  static bool awaits(const Slot& slot, const Batch& b);
  void close_results(const Batch& b);
  // Nothing says which launch completes them.
  void drop_results(std::uint32_t slot);
  Missed reason_not_to_gate(const Batch& b) const;
  void switch_off_if_launches_block(std::uint32_t slot);
  // A pass is launched in two parts: with the mutex, then without it, because a launch may wait for the device, and
  // that for a callback on another thread. Between them the tables stay, as `launching_` says so.
  PassLaunch prepare_launch(gate::Pass pass, std::uint32_t slot, std::uint32_t kernel, std::uint32_t ctas,
                            void* stream);
  PassLaunch prepare_result(const Batch& b, std::uint32_t slot, void* stream);
  void launch_input(const PassLaunch& pass, std::uint32_t batch, void* stream);
  enum class Launches { may_follow, no_more };  // that complete the same results
  void launch_result(const PassLaunch& pass, void* stream, Launches launches);
  void give_up_launch(const PassLaunch& pass, std::uint32_t batch, CUresult result);
  void take_back_launch(const PassLaunch& pass, CUresult result);
  void complete_results(const ThreadLinks& links);

  const CommunicatorId id_;
  const Handle group_api_handle_, call_handle_, launch_handle_, group_handle_;  // those with payloads without them
  CommunicatorIdentity identity_;
  std::atomic<bool> identified_;
  char name_[128] = {};  // as long as a ring's header has room for
  const Missed unmeasured_;
  const bool launch_blocking_;
  const std::uint64_t key_base_;  // of the sketches' keys
  const std::uint32_t max_ctas_;
  const Selection selection_;
  const bool has_channel_;  // until release(): for those who don't hold the mutex
  std::unique_ptr<GateChannel> channel_;
  const Log log_;
  SharedState* const shared_;

  // Of the thread that calls the communicator, as NCCL's users must do it: one at a time, without a mutex.
  CallNames names_;
  static constexpr char kNoName[] = "";
  const char* left_out_name_ = kNoName;  // of a function that isn't selected and decides nothing
  TrafficRole traffic_;
  std::uint32_t watched_functions_ = 0;  // whose large calls decide what the communicator is for
  std::uint32_t plain_functions_ = 0;    // of is_plain()
  std::uint64_t plain_from_ = 0;
  bool activations_ = false;
  StepDetector steps_;  // of the ops launched directly
  Sampling sampling_, next_sampling_;
  std::uint32_t control_version_ = 0;
  bool sampling_changes_ = false;
  // GroupApi events of the calls since the last launch, as far as all of them are captured or none is: what is captured
  // is not launched with what isn't.
  std::atomic<std::uint64_t> first_group_{0}, last_group_{0};
  std::atomic<bool> groups_captured_{false};

  static constexpr std::uint64_t kCallsToIdle = 64;
  // Many calls have been left out; no other communicator is open; a batch has been opened, which stays so.
  enum Idle : std::uint8_t { kQuiet = 1, kAlone = 2, kMeasures = 4 };
  std::atomic<std::uint8_t> idle_{0};
  std::atomic<bool> awaits_launch_{false};     // one is open: `current_`
  std::atomic<bool> callbacks_matter_{false};  // host callbacks may tell buffers of others

  CallMutex untold_mutex_;  // guards what is above, from names_ on, where nothing is measured

  CallMutex mutex_;
  OpTables tables_;
  MarkQueue marks_;
  std::unique_ptr<Batch[]> direct_batches_ = std::make_unique<Batch[]>(kDirectBatches);
  std::unique_ptr<Batch[]> captured_batches_ = std::make_unique<Batch[]>(kCapturedBatches);
  std::uint32_t direct_batches_opened_ = 0;
  std::uint32_t captured_generation_ = 0, captured_batch_at_ = 0;
  Batch* current_ = nullptr;    // the newest, if it has not been finished
  std::uint64_t next_op_ = 0;   // index; `announced` lies behind while calls are provisional
  std::uint64_t op_limit_ = 0;  // no op from here on has a place, as far as is known
  std::uint64_t direct_entries_used_ = 0, direct_entries_freed_ = 0;  // running totals; the arena is a ring
  std::uint64_t direct_slots_freed_ = 0;                              // as far as is known
  std::uint32_t free_captured_op_ = kNoOp;                            // a list by Op::next
  std::bitset<kCapturedEntries> captured_entries_;
  std::uint32_t reclaimed_captured_slots_ = 0;
  std::atomic<bool> gates_in_vain_{false};
  std::atomic<std::uint32_t> blocked_launches_{0};  // in a row
  bool launch_failed_ = false;
  bool stopped_ = false;
  std::atomic<std::uint32_t> launching_{0};  // launches under way; grows under the mutex only
  bool overflowed_ = false;
};

}  // namespace gradprobe
