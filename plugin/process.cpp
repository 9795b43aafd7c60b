#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "blocked_signals.hpp"
#include "version.hpp"

namespace gradprobe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kShortestSleep = std::chrono::microseconds(50);
constexpr auto kLongestSleep =
    std::chrono::microseconds(1000);  // far below the time in which kResults results can come
constexpr auto kExitPause = std::chrono::milliseconds(1);

constexpr auto kControlPeriod = std::chrono::seconds(1);  // how often the control file is looked at

RingIdentity ring_identity(const InitCall& call, const GateChannel* channel) {
  RingIdentity identity;
  identity.comm_id = call.comm_id;
  identity.comm_name = call.comm_name;
  identity.rank = call.rank;
  identity.nranks = call.nranks;
  identity.nnodes = call.nnodes;
  identity.profiler_abi = call.profiler_abi;
  if (channel != nullptr) {
    std::copy_n(channel->device_uuid(), sizeof identity.device_uuid, identity.device_uuid);
    identity.device_name = channel->device_name();
  }
  return identity;
}

}  // namespace

const char* description(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
}

Process& Process::get() noexcept {
  alignas(Process) static unsigned char storage[sizeof(Process)];
  static Process* process = new (storage) Process;
  return *process;
}

Process::Process() noexcept : pid_(getpid()) {
  shared_.graph_gone = &Process::graph_gone;
  // A forked child has no collector thread and no ring mapping (MADV_DONTFORK): there gradprobe does nothing.
  fork_is_told_ = pthread_atfork(nullptr, nullptr, [] {
                    get().forked_.store(true);
                    for (LiveCommunicator& live : g_live_communicators) live.context.store(LiveCommunicator::kNobody);
                  }) == 0;
  std::atexit([] { get().at_exit(); });
}

bool Process::in_forked_child() const {
  // The process id besides: some ways to fork run no handlers.
  return forked_.load() || getpid() != pid_;
}

int Process::joint_mask(std::uint32_t profiler_abi) {
  const std::lock_guard lock(mutex_);
  if (measured_ > 0) return activation_mask(profiler_abi);
  if (open_ == 0) return 0;
  return static_cast<int>(tells_too_late(profiler_abi) ? nccl::kColl : nccl::kCollApi);
}

void* Process::open(const InitCall& call, int* mask) {
  *mask = 0;
  const Config config = read_config();
  const Log log(call.logger, config.log);
  if (!config.enabled) {
    log.info("rank %u: switched off by GRADPROBE=0", call.rank);
    return nullptr;
  }
  if (in_forked_child()) {
    log.warn("rank %u: not measured: this process was forked from one that uses gradprobe", call.rank);
    return nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    // Once in a process, not for each of its communicators.
    if (!std::exchange(settings_reported_, true))
      for (const std::string& warning : config.warnings) log.warn("%s", warning.c_str());
  }
  try {
    return start(call, config, log, mask);
  } catch (const std::exception& e) {
    *mask = joint_mask(call.profiler_abi);
    log.warn("rank %u: not measured: %s", call.rank, description(e));
    return nullptr;
  }
}

bool Process::said_before(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why == last_reason_) return true;
  last_reason_ = why;
  return false;
}

void* Process::start(const InitCall& call, const Config& config, const Log& log, int* mask) {
  // Before NCCL 2.28 nobody knows yet whose communicator it is; nothing is measured there anyway.
  const Role role = call.identified ? role_of(call, config, log) : Role::undecided;
  if (role == Role::activations) {
    *mask = joint_mask(call.profiler_abi);
    return nullptr;
  }
  shared_.control.configure(config.sampling, config.control_file);

  std::string why, not_measured;
  Missed unmeasured = Missed::none;
  std::unique_ptr<GateChannel> channel;
  std::unique_ptr<RingWriter> ring;
  void* context = nullptr;
  std::string path = config.directory;
  std::uint64_t capacity = 0;
  if (!fork_is_told_) {
    why = "the system doesn't tell of forked processes (pthread_atfork failed)";
  } else {
    if (tells_too_late(call.profiler_abi)) {
      unmeasured = Missed::unsupported_nccl;
    } else {
      if (const CudaDriver* cuda = CudaDriver::load(&not_measured); cuda != nullptr)
        channel = GateChannel::create(*cuda, config, &not_measured);
      if (channel == nullptr) unmeasured = Missed::no_cuda;
    }
    const RingIdentity identity = ring_identity(call, channel.get());
    if (call.identified) ring = RingWriter::create(config, identity, &why);
    if (ring != nullptr) {
      path = ring->path();
      capacity = ring->capacity();
    }
    if (ring != nullptr || !call.identified)
      context = enter({call, identity, role, unmeasured}, config, log, std::move(channel), std::move(ring), &why);
  }
  *mask = joint_mask(call.profiler_abi);
  if (context == nullptr) {
    // What fails for one communicator often does for all of the process.
    const auto tell = said_before(why) ? &Log::info : &Log::warn;
    (log.*tell)("rank %u: not measured: %s", call.rank, why.c_str());
  } else if (unmeasured == Missed::unsupported_nccl) {
    why = "NCCL < 2.28, use the preload library (libgradprobe-preload.so)";
    const auto tell = said_before(why) ? &Log::info : &Log::warn;
    (log.*tell)("not measured: %s; collectives are recorded without values, in %s", why.c_str(), path.c_str());
  } else if (unmeasured == Missed::no_cuda) {
    const auto tell = said_before(not_measured) ? &Log::info : &Log::warn;
    (log.*tell)("rank %u: not measured: %s; its collectives are recorded without values, in %s", call.rank,
                not_measured.c_str(), path.c_str());
  } else {
    const auto say = call.rank == 0 ? &Log::notice : &Log::info;
    (log.*say)(
        "version %s: rank %u of %u measures the inputs of reducing collectives into %s (%llu "
        "records)%s",
        kVersion, call.rank, call.nranks, path.c_str(), static_cast<unsigned long long>(capacity),
        config.launch_blocking && call.profiler_abi != 0
            ? "; CUDA_LAUNCH_BLOCKING is set: uncaptured launches can't be measured"
            : "");
  }
  return context;
}

void* Process::enter(const Entrant& entrant, const Config& config, const Log& log, std::unique_ptr<GateChannel> channel,
                     std::unique_ptr<RingWriter> ring, std::string* why) {
  const std::lock_guard lock(mutex_);
  if (stop_) {
    *why = "the process is ending";
    return nullptr;
  }
  Entry* entry = free_entry();
  if (entry == nullptr) {
    *why = "too many communicators in this process";
    return nullptr;
  }
  // Generation 0 is never used: no handle of a communicator is all zeros but for its type.
  const std::uint32_t generation = entry->generation.load() % 127 + 1;
  const CommunicatorId id{static_cast<std::uint32_t>(entry - entries_.data()), generation};
  const bool measured = channel != nullptr;
  const InitCall& call = entrant.call;
  auto communicator = std::make_unique<Communicator>(id,
                                                     CommunicatorIdentity{.comm_id = call.comm_id,
                                                                          .rank = call.rank,
                                                                          .nranks = call.nranks,
                                                                          .nnodes = call.nnodes,
                                                                          .profiler_abi = call.profiler_abi,
                                                                          .role = entrant.role,
                                                                          .known = call.identified},
                                                     config, std::move(channel), entrant.unmeasured, log, &shared_);
  std::unique_ptr<Drain> drain;
  std::unique_ptr<PendingRing> pending;
  if (ring != nullptr)
    drain = std::make_unique<Drain>(communicator.get(), std::move(ring), config);
  else
    pending = std::make_unique<PendingRing>(PendingRing{config, entrant.identity});
  if (!collecting_) {
    try {
      start_collector();
    } catch (const std::exception& e) {
      *why = std::string("can't start the collector thread: ") + description(e);
      return nullptr;
    }
  }
  // From here on nothing fails.
  if (drain != nullptr) drain->ring().keep();
  entry->generation.store(generation);
  entry->gate_timeout_ms = config.gate_timeout_ms;
  entry->ended = false;
  entry->communicator = std::move(communicator);
  entry->drain = std::move(drain);
  entry->pending = std::move(pending);
  shared_.communicators.store(++open_, std::memory_order_relaxed);
  if (measured) measured_++;
  go_live(entry);
  tell_who_is_alone();
  wake_.notify_all();
  return Handle(HandleType::context, id, 0).opaque();
}

// Whether the communicator is to be measured, by what is known before its first call.
Role Process::role_of(const InitCall& call, const Config& config, const Log& log) {
  const char* by = "GRADPROBE_COMMS";
  Role role = Role::gradients;
  switch (config.comms.answer(call.comm_id, call.comm_name, call.nranks)) {
    case CommFilter::Answer::measure:
      return Role::gradients;
    case CommFilter::Answer::automatic:
      by = "its name (GRADPROBE_COMMS=all measures all)";
      role = role_of_name(call.comm_name);
      break;
    case CommFilter::Answer::leave_out:
      role = Role::activations;
      break;
  }
  if (role == Role::activations)
    log.info("rank %u: communicator %016llx of %u ranks (%s) is left out by %s", call.rank,
             static_cast<unsigned long long>(call.comm_id), call.nranks,
             call.comm_name[0] == '\0' ? "no name" : call.comm_name, by);
  return role;
}

Process::Entry* Process::free_entry() {
  // Round robin, so that a generation comes back as late as possible.
  for (std::size_t i = 0; i < entries_.size(); i++) {
    Entry& entry = entries_[next_entry_];
    next_entry_ = (next_entry_ + 1) % entries_.size();
    if (entry.live.load() == nullptr) return &entry;
  }
  return nullptr;
}

void Process::start_collector() {
  const BlockedSignals blocked;  // the application's are for its own threads
  std::thread collector([this] { collect(); });
  pthread_setname_np(collector.native_handle(), "gradprobe");
  collector.detach();  // never waited for: it may hang in a file system, with the control file
  collecting_ = true;
}

void Process::end_for_lack(Entry* entry, const std::exception& error) {
  // Of memory: this communicator's records end here, training goes on.
  entry->ended = true;
  shared_.switched_off.store(true);
  constexpr std::chrono::milliseconds kPatience(100);
  entry->communicator->stop(kPatience);
  if (entry->drain != nullptr) entry->drain->abandon();
  entry->communicator->log().warn("rank %u: measuring ends for this process: %s", entry->communicator->identity().rank,
                                  description(error));
}

void Process::make_pending_ring(Entry* entry) {
  if (entry->pending == nullptr || !entry->communicator->identified()) return;
  const std::unique_ptr<PendingRing> pending = std::move(entry->pending);
  const CommunicatorIdentity& told = entry->communicator->identity();
  pending->identity.comm_id = told.comm_id;
  pending->identity.rank = told.rank;
  pending->identity.comm_name = entry->communicator->name();
  std::string why;
  std::unique_ptr<RingWriter> ring = RingWriter::create(pending->config, pending->identity, &why);
  if (ring == nullptr) {
    entry->ended = true;
    entry->communicator->log().warn("rank %u: not recorded: %s", told.rank, why.c_str());
    return;
  }
  entry->drain = std::make_unique<Drain>(entry->communicator.get(), std::move(ring), pending->config);
  entry->drain->ring().keep();
}

void Process::poll(Entry* entry, bool beat, bool* busy) {
  try {
    make_pending_ring(entry);
    if (entry->drain == nullptr) return;
    *busy |= entry->drain->poll();
    if (beat) entry->drain->ring().heartbeat();
  } catch (const std::exception& e) {
    end_for_lack(entry, e);
  }
}

void Process::collect() {
  auto sleep = kShortestSleep;
  auto next_heartbeat = Clock::now(), next_look = next_heartbeat;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    bool busy = false;
    if (open_ > 0 && Clock::now() >= next_look) {
      // Without the mutex, which init and finalize need: a file system may take its time.
      lock.unlock();
      look_at_control();
      next_look = Clock::now() + kControlPeriod;
      lock.lock();
    }
    const bool beat = Clock::now() >= next_heartbeat;
    if (beat) next_heartbeat = Clock::now() + std::chrono::seconds(1);
    for (Entry& entry : entries_)
      if (entry.live.load() != nullptr && !entry.ended) poll(&entry, beat, &busy);
    sleep = busy ? kShortestSleep : std::min(sleep * 2, kLongestSleep);
    if (open_ == 0) {
      wake_.wait(lock, [this] { return stop_ || open_ > 0; });
    } else {
      wake_.wait_for(lock, sleep, [this] { return stop_; });
    }
  }
}

void Process::look_at_control() {
  std::string message;
  bool warn = false;
  try {
    if (!shared_.control.look(&message, &warn)) return;
  } catch (const std::exception&) {
    return;  // out of memory: the settings stay as they are
  }
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.live.load() == nullptr) continue;
    const Communicator& c = *entry.communicator;
    const auto say = warn ? &Log::warn : c.identity().rank == 0 ? &Log::notice : &Log::info;
    (c.log().*say)("rank %u: %s", c.identity().rank, message.c_str());
    return;
  }
}

void Process::wait_for_device(Entry* entry, std::unique_lock<std::mutex>* lock) {
  // A gate ends after its time-out at the latest; a device that shows no progress for longer is not waited for.
  const auto patience = std::chrono::milliseconds(entry->gate_timeout_ms + 100);
  auto deadline = Clock::now() + patience;
  while (Clock::now() < deadline) {
    if (entry->drain->poll()) deadline = Clock::now() + patience;
    if (entry->drain->settled()) return;
    wake_.wait_for(*lock, kShortestSleep * 4);
    if (entry->ended) return;  // meanwhile the process began to exit
  }
}

void Process::close(void* context) {
  if (in_forked_child()) return;
  Communicator* communicator = find(Handle(context), HandleType::context);
  if (communicator == nullptr) return;
  std::unique_ptr<GateChannel> channel;
  std::string summary;
  bool quiescent = false;
  {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[communicator->id().index];
    // Another thread may be closing it: waiting for the device releases the mutex.
    if (entry.live.load() != communicator || std::exchange(entry.closing, true)) return;
    bool busy = false;
    if (!entry.ended) poll(&entry, false, &busy);
    try {
      if (!entry.ended) {
        communicator->stop(std::chrono::milliseconds::max());
        if (entry.drain != nullptr) wait_for_device(&entry, &lock);
        // The process may have ended meanwhile.
        if (!entry.ended && entry.drain != nullptr) entry.drain->finish(RingState::finalized);
      }
      if (entry.drain != nullptr) {
        if (!stop_) entry.drain->ring().set_state(RingState::finalized);
        summary = entry.drain->summary() + ", in " + entry.drain->ring().path() + entry.drain->causes();
      }
    } catch (const std::exception& e) {
      if (!entry.ended) end_for_lack(&entry, e);
      if (entry.drain != nullptr) entry.drain->ring().set_state(RingState::finalized);
    }
    quiescent = (entry.drain == nullptr || entry.drain->settled()) && !communicator->graphs_alive();
    end_live(&entry);
    entry.drain.reset();
    entry.pending.reset();
    entry.closing = false;
    if (communicator->channel() != nullptr) measured_--;
    channel = communicator->release();
    shared_.communicators.store(--open_, std::memory_order_relaxed);
    tell_who_is_alone();
  }
  if (channel != nullptr && quiescent)
    GateChannel::retire(std::move(channel));
  else if (channel != nullptr)
    channel->leave_memory();
  const auto say = communicator->identity().rank == 0 ? &Log::notice : &Log::info;
  if (!summary.empty()) (communicator->log().*say)("rank %u: %s", communicator->identity().rank, summary.c_str());
}

void Process::go_live(Entry* entry) {
  const std::lock_guard lock(marks_mutex_);
  Communicator* communicator = entry->communicator.get();
  for (const Mark* mark : {&step_mark_, &phase_mark_})
    if (mark->kind != MarkKind::none) communicator->push_mark(*mark);
  entry->live.store(communicator, std::memory_order_release);
  LiveCommunicator& live = g_live_communicators[communicator->id().index];
  live.communicator.store(communicator, std::memory_order_release);
  live.context.store(Handle(HandleType::context, communicator->id(), 0).bits(), std::memory_order_release);
}

void Process::tell_who_is_alone() {
  for (Entry& entry : entries_)
    if (Communicator* c = entry.live.load(); c != nullptr) c->set_alone(open_ == 1);
}

void Process::end_live(Entry* entry) {
  const std::lock_guard lock(marks_mutex_);
  LiveCommunicator& live = g_live_communicators[entry->communicator->id().index];
  live.context.store(LiveCommunicator::kNobody, std::memory_order_release);
  entry->live.store(nullptr, std::memory_order_release);
}

void Process::push(const Mark& mark) {
  // No communicator of the table is destroyed while this is held.
  const std::lock_guard lock(marks_mutex_);
  if (mark.kind == MarkKind::step) step_mark_ = mark;
  if (mark.kind == MarkKind::phase) phase_mark_ = mark;
  for (Entry& entry : entries_)
    if (Communicator* communicator = entry.live.load(std::memory_order_acquire); communicator != nullptr)
      communicator->push_mark(mark);
}

void Process::mark(MarkKind kind, std::uint64_t number, double value, const char* name) noexcept {
  try {
    Process& process = get();
    if (process.in_forked_child()) return;  // the parent's threads may have held the mutex
    Mark mark;
    mark.kind = kind;
    mark.number = number;
    mark.value = value;
    if (name != nullptr) set_name(&mark, name);
    process.push(mark);
  } catch (const std::exception&) {
    // No memory for the process's own state: there is no communicator either.
  }
}

void Process::at_exit() {
  // Scripts often end without destroying their communicators. Callbacks may still come; nothing is freed.
  if (in_forked_child()) return;
  // A signal handler may have called exit() on a thread that holds a mutex: then what is not written stays unwritten.
  auto patience = std::chrono::milliseconds(1000);
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (; !lock.owns_lock() && patience.count() > 0; lock.try_lock(), patience -= kExitPause)
    std::this_thread::sleep_for(kExitPause);
  if (!lock.owns_lock()) return;
  stop_ = true;
  wake_.notify_all();
  for (Entry& entry : entries_) {
    bool busy = false;
    if (entry.live.load() != nullptr && !entry.ended && entry.drain == nullptr) poll(&entry, false, &busy);
    if (entry.drain == nullptr) continue;
    if (std::exchange(entry.ended, true)) {
      entry.drain->ring().set_state(RingState::exited);
      continue;
    }
    try {
      if (entry.communicator->stop(patience))
        entry.drain->finish(RingState::exited);
      else
        patience = std::chrono::milliseconds(0);
    } catch (const std::exception&) {
      entry.drain->abandon();
      entry.drain->ring().set_state(RingState::exited);
    }
  }
}

void Process::graph_gone(void* token) {
  Process& process = get();
  const Handle handle(token);
  if (process.in_forked_child()) return;
  // Not the process's mutex: the collector holds it while it writes, and CUDA's thread must not wait for a file system.
  const std::lock_guard lock(process.marks_mutex_);
  const Handle context(HandleType::context, handle.communicator(), 0);  // `handle` has the slot besides
  if (Communicator* c = find(context, HandleType::context); c != nullptr)
    c->release_captured_slot(static_cast<std::uint32_t>(handle.payload()));
}

}  // namespace gradprobe
