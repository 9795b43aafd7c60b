// The order of calls in which buffers are known before NCCL's kernel is launched (the preload library): a pass finds
// its slot published, so it never waits for the host, whatever blocks launches.
#include "communicator.hpp"

namespace gradprobe {

BegunCalls Communicator::begin_calls(std::span<const KnownCall> calls, bool captured, bool result_follows,
                                     void* stream) {
  callbacks_matter_.store(true, std::memory_order_relaxed);  // the group's start comes before its first call here
  const Handle group = group_api_start();
  group_start();
  for (const KnownCall& call : calls) {
    CollApiEvent event{call.function, call.datatype, call.count, call.root, captured, group};
    event.provisional = true;
    event.result_follows = result_follows;
    coll_start(coll_api_start(event), call.send, call.recv);
  }
  group_stop();
  kernel_launch_start(group, stream);

  const std::lock_guard lock(mutex_);
  BegunCalls begun{t_links.batch, t_links.result_slot, next_op_};
  t_links = {};
  if (stopped_) return {};
  // Where the tables are full, the newest batch is not that of these calls.
  if (Batch* b = batch(begun.batch); b != nullptr && b->last_group == group.payload())
    b->ends_later = true;
  else
    begun.batch = kNoBatch;
  return begun;
}

void Communicator::end_calls(const BegunCalls& begun, CallOutcome outcome, void* stream) {
  std::unique_lock lock(mutex_);
  if (stopped_) return;
  const Batch* b = batch(begun.batch);
  if (b != nullptr && outcome == CallOutcome::refused) {
    for_each_op(*b, [](Op& op) {
      op.refused.store(true, std::memory_order_release);
      if (op.captured) op.moved_from.store(0, std::memory_order_release);  // no replay of it is a collective
    });
  }
  if (tables_.announced.load(std::memory_order_relaxed) < begun.end_op)
    tables_.announced.store(begun.end_op, std::memory_order_release);
  if (b == nullptr || begun.slot == kNoSlot || tables_.slots[begun.slot].batch != b->serial) return;
  Slot& slot = tables_.slots[begun.slot];
  const bool completes =
      outcome == CallOutcome::launched && !launch_failed_ && slot.results_open.load(std::memory_order_relaxed);
  if (!completes) {
    slot.results_open.store(false, std::memory_order_release);
    return;
  }
  const PassLaunch pass = prepare_result(*b, begun.slot, stream);
  lock.unlock();
  launch_result(pass, stream, Launches::no_more);
}

void Communicator::void_results() {
  tables_.results_void.store(true, std::memory_order_release);
}

}  // namespace gradprobe
