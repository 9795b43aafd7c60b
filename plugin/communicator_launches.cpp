// The communicator's launches: which gate goes in front of which of NCCL's, which entries it reads and when they are
// published, and which launch completes results.
#include <utility>

#include "communicator.hpp"

namespace gradprobe {

void Communicator::stop_gating() {
  if (gates_in_vain_.exchange(true)) return;
  log_.warn(
      "rank %u: NCCL names the buffers too late, or not at all, too often: collectives of this communicator outside "
      "CUDA graphs are not measured any more (a larger GRADPROBE_GATE_TIMEOUT waits longer)",
      identity_.rank);
}

inline Missed Communicator::reason_not_to_gate(const Batch& b) const {
  if (launch_failed_) return Missed::launch_failed;
  if (shared_->switched_off.load(std::memory_order_relaxed)) return Missed::switched_off;
  if (gates_in_vain_.load(std::memory_order_relaxed) && !b.captured) return Missed::switched_off;
  // The host would wait for the gate inside the launch call, and so never come to tell the buffers.
  if (launch_blocking_ && !b.captured) return Missed::launch_blocking;
  return Missed::none;
}

// Whether the launch of this GroupApi event may be one of the batch's.
inline bool Communicator::belongs(const Batch& b, Handle group_api) const {
  std::uint64_t first = b.first_group, last = b.last_group;
  if (b.launches == 0) {
    if (b.captured != groups_captured_.load(std::memory_order_relaxed)) return false;
    first = first_group_.load(std::memory_order_relaxed);
    last = last_group_.load(std::memory_order_relaxed);
  }
  return group_api.payload() >= first && group_api.payload() <= last;
}

inline void Communicator::count_launch(Batch* b) {
  if (b->launches++ != 0) return;
  b->first_group = first_group_.load(std::memory_order_relaxed);
  b->last_group = last_group_.load(std::memory_order_relaxed);
  first_group_.store(0, std::memory_order_relaxed);
}

// The next of the direct slots, its first entry set; kNoSlot if it or its entries are still in use.
inline std::uint32_t Communicator::take_direct_slot(std::uint32_t entries) {
  const std::uint64_t opened = tables_.slots_opened.load(std::memory_order_relaxed);
  auto first = static_cast<std::uint32_t>(direct_entries_used_ % kDirectEntries);
  std::uint64_t end = direct_entries_used_ + entries;
  if (first + entries > kDirectEntries) {
    // A slot's entries lie in one piece: what is left at the end of the arena goes unused when it is too short.
    end += kDirectEntries - first;
    first = 0;
  }
  const auto fits = [&] {
    return opened - direct_slots_freed_ < kDirectSlots && end - direct_entries_freed_ <= kDirectEntries;
  };
  if (!fits()) [[unlikely]] {
    direct_slots_freed_ = tables_.slots_freed.load(std::memory_order_acquire);
    if (opened - direct_slots_freed_ >= kDirectSlots) return kNoSlot;
    // Of the last slot that is free: none has taken its place yet.
    if (direct_slots_freed_ > 0)
      direct_entries_freed_ = tables_.slots[(direct_slots_freed_ - 1) % kDirectSlots].arena_end;
    if (!fits()) return kNoSlot;
  }
  const auto index = static_cast<std::uint32_t>(opened % kDirectSlots);
  direct_entries_used_ = tables_.slots[index].arena_end = end;
  tables_.slots[index].first_entry = first;
  return index;
}

// A slot for a launch that follows: the collector waits for it from here on.
[[gnu::always_inline]] inline std::uint32_t Communicator::open_slot(Batch* b, std::uint32_t entries) {
  if (b->slot != kNoSlot) [[unlikely]]
    close_results(*b);
  const std::uint32_t index = b->captured ? take_captured_slot(entries) : take_direct_slot(entries);
  if (index == kNoSlot) [[unlikely]]
    return kNoSlot;
  Slot& slot = tables_.slots[index];
  slot.capacity.store(entries, std::memory_order_relaxed);
  slot.entries.store(0, std::memory_order_relaxed);
  slot.batch = b->serial;
  slot.launched.store(true, std::memory_order_relaxed);
  slot.failed.store(false, std::memory_order_relaxed);
  slot.results_launched.store(0, std::memory_order_relaxed);
  slot.results_open.store(b->results_wanted, std::memory_order_relaxed);
  slot.result_failed.store(false, std::memory_order_relaxed);
  slot.result_ambiguous.store(false, std::memory_order_relaxed);
  slot.inline_entries = 0;
  slot.result_ctas = 0;
  gate::GateSlot& shared = channel_->slot(index);
  shared.entries = 0;
  shared.first_entry = slot.first_entry;
  shared.runs = 0;
  shared.result_runs = 0;
  std::atomic_ref<std::uint32_t>(shared.dropped).store(0, std::memory_order_relaxed);  // the collector reads it of all
  std::atomic_ref<std::uint32_t>(shared.state).store(gate::kSlotOpen, std::memory_order_release);
  slot.state.store(SlotState::open, std::memory_order_release);
  b->slot = index;
  if (b->captured) [[unlikely]]
    b->slots++;
  else
    tables_.slots_opened.store(tables_.slots_opened.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return index;
}

[[gnu::always_inline]] inline void Communicator::place(Op* op, Batch* b, std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  const std::uint32_t n = slot.entries.load(std::memory_order_relaxed);
  const std::uint32_t at = slot.first_entry + n;
  channel_->entry(at) = {.input = op->send,
                         .count = op->count,
                         .output = op->result_wanted ? op->recv : 0,
                         .output_count = op->output_count,
                         .key = gate::mix64(key_base_ ^ op->ordinal),
                         .datatype = static_cast<std::uint8_t>(op->datatype),
                         .reserved = 0,
                         .mode = op->mode,
                         .reserved2 = 0};
  tables_.entry_owners[at] = {op, op->index, op->ordinal};
  slot.entries.store(n + 1, std::memory_order_release);
  op->placed = true;
  b->placed++;
}

// What host callbacks told before the launch.
[[gnu::noinline]] void Communicator::place_told(Batch* b, std::uint32_t index) {
  for_each_op(*b, [&](Op& op) {
    if (op.eligible && op.addressed && !op.placed) place(&op, b, index);
  });
  b->told_early = 0;
}

// The slot's gate still waits for a buffer of the batch.
inline bool Communicator::awaits(const Slot& slot, const Batch& b) {
  return slot.batch == b.serial && slot.state.load(std::memory_order_relaxed) == SlotState::open &&
         slot.entries.load(std::memory_order_relaxed) < slot.capacity.load(std::memory_order_relaxed);
}

// Nothing of the batch is open any more: all its buffers are published, and no launch can complete a result of it. So
// the next call needn't ask.
inline void Communicator::finish(Batch* b) {
  if (b->captured ||
      (b->results_wanted && b->slot != kNoSlot && tables_.slots[b->slot].results_open.load(std::memory_order_relaxed)))
    return;
  b->serial = kNoBatch;
  if (current_ != b) return;
  current_ = nullptr;
  awaits_launch_.store(false, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline void Communicator::publish(std::uint32_t index) {
  Slot& slot = tables_.slots[index];
  if (slot.state.load(std::memory_order_relaxed) != SlotState::open) return;
  slot.state.store(SlotState::published, std::memory_order_release);
  const std::uint32_t entries = slot.entries.load(std::memory_order_relaxed);
  if (entries != slot.capacity.load(std::memory_order_relaxed)) [[unlikely]]
    give_back_entries(index, entries);
  if (slot.inline_entries == entries) [[likely]] {
    // The launch just made has completed all results.
    slot.results_open.store(false, std::memory_order_release);
  } else if (slot.inline_entries != 0 || !slot.grouped) {
    drop_results(index);
  }
  gate::GateSlot& shared = channel_->slot(index);
  shared.entries = entries;
  std::atomic_ref<std::uint32_t>(shared.state).store(gate::kSlotPublished, std::memory_order_release);
}

// One more launch of a slot's pass. With the mutex; launch_input() or launch_result() follow without it.
inline PassLaunch Communicator::prepare_launch(gate::Pass pass, std::uint32_t index, std::uint32_t kernel,
                                               std::uint32_t ctas, void* stream) {
  // What is captured arrives when a graph runs it, and the slot is the graph's alone.
  const bool captured = index >= kDirectSlots;
  std::uint64_t& arrivals = tables_.slots[index].arrivals[pass];
  const PassLaunch launch{.pass = pass,
                          .slot = index,
                          .kernel = kernel,
                          .ctas = ctas,
                          .workspace = channel_->workspace_of(static_cast<CUstream>(stream)),
                          .first_arrival = arrivals,
                          .replayed = captured};
  if (!captured) arrivals += ctas;
  launching_.fetch_add(1, std::memory_order_relaxed);
  return launch;
}

// After a launch that failed, with the mutex.
void Communicator::take_back_launch(const PassLaunch& pass, CUresult result) {
  if (!pass.replayed) tables_.slots[pass.slot].arrivals[pass.pass] -= pass.ctas;
  if (std::exchange(launch_failed_, true)) return;
  log_.warn(
      "rank %u: launching the measuring kernels failed (cuLaunchKernel: %s): this communicator is not measured any "
      "more",
      identity_.rank, channel_->error_name(result).text);
}

inline void Communicator::switch_off_if_launches_block(std::uint32_t index) {
  // The gate has ended within the call that launched it, without its slot: the call waits for the kernel, so the host
  // could never have told the buffers, and every further launch would cost a time-out.
  const bool ended = std::atomic_ref<std::uint32_t>(channel_->slot(index).runs).load(std::memory_order_acquire) > 0;
  if (!ended || tables_.slots[index].state.load(std::memory_order_relaxed) != SlotState::open) [[likely]] {
    blocked_launches_.store(0, std::memory_order_relaxed);
    return;
  }
  // Once, this thread may merely have been held up behind the launch.
  if (blocked_launches_.fetch_add(1, std::memory_order_relaxed) == 0 || shared_->switched_off.exchange(true)) return;
  log_.warn(
      "kernel launches of this process block until the kernel ends (a debugger or another profiler?): measuring is "
      "switched off for the whole process");
}

[[gnu::noinline]] void Communicator::give_up_launch(const PassLaunch& pass, std::uint32_t serial, CUresult result) {
  const std::lock_guard lock(mutex_);
  Slot& slot = tables_.slots[pass.slot];
  slot.failed.store(true, std::memory_order_release);
  slot.launched.store(false, std::memory_order_release);
  slot.results_open.store(false, std::memory_order_release);
  if (slot.state.load(std::memory_order_relaxed) == SlotState::open) cancel(pass.slot);
  if (Batch* b = batch(serial); b != nullptr) miss_unplaced(b, Missed::launch_failed, false);
  t_links.slot = t_links.result_slot = kNoSlot;
  take_back_launch(pass, result);
}

inline void Communicator::launch_input(const PassLaunch& pass, std::uint32_t serial, void* stream) {
  std::uint32_t number = 0;
  const CUresult result = channel_->launch(pass, static_cast<CUstream>(stream), &number);
  if (result != CUDA_SUCCESS) [[unlikely]] {
    give_up_launch(pass, serial, result);
  } else if (pass.replayed) {
    // The slot is the graph's: without word of the graph's end it is never used again.
    const Handle token(HandleType::context, id_, pass.slot);
    channel_->retain_by_graph(static_cast<CUstream>(stream), token.opaque(), shared_->graph_gone);
  } else {
    switch_off_if_launches_block(pass.slot);
  }
  launching_.fetch_sub(1, std::memory_order_release);
}

PassLaunch Communicator::prepare_result(const Batch& b, std::uint32_t index, void* stream) {
  Slot& slot = tables_.slots[index];
  if (slot.result_ctas == 0) {
    // The same for all result passes of a slot: replays count its thread blocks.
    slot.result_kernel = b.results.kernel();
    slot.result_ctas = b.results.ctas(max_ctas_);
  }
  slot.results_launched.fetch_add(1, std::memory_order_release);
  return prepare_launch(gate::kResultPass, index, slot.result_kernel, slot.result_ctas, stream);
}

void Communicator::launch_result(const PassLaunch& pass, void* stream, Launches launches) {
  std::uint32_t number = 0;
  const CUresult result = channel_->launch(pass, static_cast<CUstream>(stream), &number);
  Slot& slot = tables_.slots[pass.slot];
  // What an earlier launch measured is half-made, also when this one was refused.
  slot.last_result_launch.store(number, std::memory_order_release);
  if (result != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    slot.result_failed.store(true, std::memory_order_release);
    slot.results_launched.fetch_sub(1, std::memory_order_release);
    take_back_launch(pass, result);
  }
  // Not before the launch has its number: a pass can end before the call that launches it does.
  if (launches == Launches::no_more) slot.results_open.store(false, std::memory_order_release);
  launching_.fetch_sub(1, std::memory_order_release);
}

Handle Communicator::kernel_launch_start(Handle group_api, void* stream) {
  ThreadLinks& links = t_links;
  links.phase = LaunchPhase::none;
  links.slot = links.result_slot = kNoSlot;
  links.batch = kNoBatch;
  std::unique_lock lock(mutex_);
  if (stopped_) return {};
  links.phase = LaunchPhase::launching;
  links.communicator = id_.number();
  links.stream = stream;
  Batch* const b = current_;
  if (b == nullptr) return launch_handle_;
  b->closed = true;
  // Sends, receives and calls that aren't recorded are launched, too: they tell no buffers of this batch and complete
  // no result of it, and no gate may wait in front of them.
  const bool grouped = group_api.type() == HandleType::group_api;
  if (grouped && !belongs(*b, group_api)) return launch_handle_;
  links.batch = b->serial;
  const bool before_callbacks = b->all_inline();
  count_launch(b);
  if (b->slot != kNoSlot) {
    // Without a GroupApi a launch may be one of sends and receives, when the buffers of earlier collectives may be
    // gone.
    if (!grouped) drop_results(b->slot);
    if (tables_.slots[b->slot].state.load(std::memory_order_relaxed) == SlotState::open) {
      // The earlier launch's gate still waits for this batch's buffers; an earlier gate is as good as a second one.
      links.slot = b->slot;
      if (b->results_wanted) links.result_slot = b->slot;
      return launch_handle_;
    }
  }
  // Buffers that came before the launch (host callbacks) need no waiting gate, even when launches block.
  if (const Missed reason = reason_not_to_gate(*b); reason != Missed::none) [[unlikely]] {
    const bool told_ones_serve =
        reason == Missed::launch_blocking || (reason == Missed::switched_off && !shared_->switched_off.load());
    miss_unplaced(b, reason, told_ones_serve);
  }
  if (b->eligible == b->placed) {
    // Host callbacks told all buffers before this launch; it may complete their results.
    if (b->results_wanted) links.result_slot = b->slot;
    return launch_handle_;
  }

  const std::uint32_t index = open_slot(b, b->eligible - b->placed);
  if (index == kNoSlot) [[unlikely]] {
    miss_unplaced(b, Missed::backlog, false);
    return launch_handle_;
  }
  Slot& slot = tables_.slots[index];
  slot.before_callbacks = before_callbacks;
  slot.grouped = grouped;
  links.slot = index;
  if (b->results_wanted) links.result_slot = index;
  if (b->told_early != 0) {
    place_told(b, index);
    if (b->placed == b->eligible) publish(index);
  }
  slot.input_ctas = b->inputs.ctas(max_ctas_);
  const PassLaunch pass = prepare_launch(gate::kInputPass, index, b->inputs.kernel(), slot.input_ctas, stream);
  const std::uint32_t serial = b->serial;
  lock.unlock();
  launch_input(pass, serial, stream);
  return launch_handle_;
}

void Communicator::kernel_launch_stop() {
  ThreadLinks& links = t_links;
  const bool ours = links.phase == LaunchPhase::launching && links.communicator == id_.number();
  links.phase = ours ? LaunchPhase::launched : LaunchPhase::none;
  if (ours && links.result_slot != kNoSlot) complete_results(links);
}

[[gnu::noinline]] void Communicator::complete_results(const ThreadLinks& links) {
  std::unique_lock lock(mutex_);
  const Batch* b = stopped_ || launch_failed_ ? nullptr : batch(links.batch);
  if (b == nullptr) return;
  const Slot& slot = tables_.slots[links.result_slot];
  if (slot.batch != b->serial || !slot.results_open.load(std::memory_order_relaxed)) return;
  const PassLaunch pass = prepare_result(*b, links.result_slot, links.stream);
  lock.unlock();
  launch_result(pass, links.stream, Launches::may_follow);
}

void Communicator::coll_start(Handle coll_api, const void* send, const void* recv, bool symmetric) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  ThreadLinks& links = t_links;
  Op* const op = op_of(coll_api);
  if (op == nullptr || links.group_communicator != id_.number()) return;
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
  Batch* const b = batch(op->batch);
  if (b == nullptr || !op->eligible || op->state.load(std::memory_order_relaxed) != OpState::announced) return;
  op->send = send_address;
  op->recv = recv_address;
  op->addressed = true;
  op->symmetric = symmetric;
  const bool told_inline = links.group_inline;
  std::uint32_t index = links.slot;
  if (!told_inline) {
    links.group_batch = b->serial;
    index = b->slot;
    // Where all launches so far told their buffers inline, this one's is still to come and will place it.
    if (b->all_inline()) {
      b->told_early++;
      return;
    }
  }
  if (index == kNoSlot || !awaits(tables_.slots[index], *b) ||
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
  ThreadLinks& links = t_links;
  if (links.group_communicator != id_.number()) return;
  const bool told_inline = std::exchange(links.group_inline, false);
  const std::uint32_t serial = std::exchange(links.group_batch, kNoBatch);
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  Batch* const b = batch(told_inline ? links.batch : serial);
  if (b == nullptr) return;
  const bool all_told = b->placed == b->eligible;
  if (told_inline) {
    b->inline_launches++;
    // A batch of several launches gets a slot for each, as long as all of them tell their buffers inline. Where an
    // earlier launch's are still to come by a callback, the slot waits for them: theirs is the only gate in time.
    if (links.slot != kNoSlot && (b->all_inline() || all_told)) publish(links.slot);
    if (all_told && b->all_inline()) finish(b);
  } else if (b->slot != kNoSlot && all_told) {
    publish(b->slot);
  }
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

}  // namespace gradprobe
