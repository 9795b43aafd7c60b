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
  fork_is_told_ = pthread_atfork(nullptr, nullptr, [] { get().forked_.store(true); }) == 0;
  std::atexit([] { get().at_exit(); });
}

bool Process::in_forked_child() const {
  // The process id besides: some ways to fork run no handlers.
  return forked_.load() || getpid() != pid_;
}

int Process::mask_of_unmeasured(std::uint32_t profiler_abi) {
  const std::lock_guard lock(mutex_);
  return open_ > 0 ? activation_mask(profiler_abi) : 0;
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
    *mask = mask_of_unmeasured(call.profiler_abi);
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
  const Role role = role_of(call, config, log);
  if (role == Role::activations) {
    *mask = mask_of_unmeasured(call.profiler_abi);
    return nullptr;
  }
  shared_.control.configure(config.sampling, config.control_file);

  std::string why;
  std::unique_ptr<GateChannel> channel;
  if (!fork_is_told_) {
    why = "the system doesn't tell of forked processes (pthread_atfork failed)";
  } else if (const CudaDriver* cuda = CudaDriver::load(&why); cuda != nullptr) {
    channel = GateChannel::create(*cuda, config, &why);
  }
  std::unique_ptr<RingWriter> ring;
  if (channel != nullptr) {
    RingIdentity identity;
    identity.comm_id = call.comm_id;
    identity.comm_name = call.comm_name;
    identity.rank = call.rank;
    identity.nranks = call.nranks;
    identity.nnodes = call.nnodes;
    identity.profiler_abi = call.profiler_abi;
    std::copy_n(channel->device_uuid(), sizeof identity.device_uuid, identity.device_uuid);
    identity.device_name = channel->device_name();
    ring = RingWriter::create(config, identity, &why);
  }
  const std::string path = ring != nullptr ? ring->path() : std::string();
  const std::uint64_t capacity = ring != nullptr ? ring->capacity() : 0;
  void* context = nullptr;
  if (ring != nullptr) context = enter(call, role, config, log, std::move(channel), std::move(ring), &why);
  if (context == nullptr) {
    *mask = mask_of_unmeasured(call.profiler_abi);
    // What fails for one communicator often does for all of the process.
    const auto tell = said_before(why) ? &Log::info : &Log::warn;
    (log.*tell)("rank %u: not measured: %s", call.rank, why.c_str());
    return nullptr;
  }
  *mask = activation_mask(call.profiler_abi);
  const auto say = call.rank == 0 ? &Log::notice : &Log::info;
  (log.*say)(
      "version %s: rank %u of %u measures the inputs of all-reduce and reduce-scatter into %s (%llu "
      "records)%s",
      kVersion, call.rank, call.nranks, path.c_str(), static_cast<unsigned long long>(capacity),
      config.launch_blocking && call.profiler_abi != 0
          ? "; CUDA_LAUNCH_BLOCKING is set: uncaptured launches can't be measured"
          : "");
  return context;
}

void* Process::enter(const InitCall& call, Role role, const Config& config, const Log& log,
                     std::unique_ptr<GateChannel> channel, std::unique_ptr<RingWriter> ring, std::string* why) {
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
  auto communicator = std::make_unique<Communicator>(id,
                                                     CommunicatorIdentity{.comm_id = call.comm_id,
                                                                          .rank = call.rank,
                                                                          .nranks = call.nranks,
                                                                          .nnodes = call.nnodes,
                                                                          .profiler_abi = call.profiler_abi,
                                                                          .role = role},
                                                     config, std::move(channel), log, &shared_);
  auto drain = std::make_unique<Drain>(communicator.get(), std::move(ring), config);
  if (!collecting_) {
    try {
      start_collector();
    } catch (const std::exception& e) {
      *why = std::string("can't start the collector thread: ") + description(e);
      return nullptr;
    }
  }
  // From here on nothing fails.
  drain->ring().keep();
  entry->generation.store(generation);
  entry->gate_timeout_ms = config.gate_timeout_ms;
  entry->ended = false;
  entry->communicator = std::move(communicator);
  entry->drain = std::move(drain);
  shared_.communicators.store(++open_, std::memory_order_relaxed);
  go_live(entry);
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
             call.comm_name.empty() ? "no name" : call.comm_name.c_str(), by);
  return role;
}

Process::Entry* Process::free_entry() {
  // Round robin, so that a generation comes back as late as possible.
  for (std::size_t i = 0; i < entries_.size(); i++) {
    Entry& entry = entries_[next_entry_];
    next_entry_ = (next_entry_ + 1) % entries_.size();
    if (entry.drain == nullptr) return &entry;
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
  entry->drain->abandon();
  entry->communicator->log().warn("rank %u: measuring ends for this process: %s", entry->communicator->identity().rank,
                                  description(error));
}

void Process::poll(Entry* entry, bool beat, bool* busy) {
  try {
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
      if (entry.drain != nullptr && !entry.ended) poll(&entry, beat, &busy);
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
    if (entry.drain == nullptr) continue;
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
    try {
      if (!entry.ended) {
        communicator->stop(std::chrono::milliseconds::max());
        wait_for_device(&entry, &lock);
        // The process may have ended meanwhile.
        if (!entry.ended) entry.drain->finish(RingState::finalized);
      }
      if (!stop_) entry.drain->ring().set_state(RingState::finalized);
      summary = entry.drain->summary() + ", in " + entry.drain->ring().path();
    } catch (const std::exception& e) {
      if (!entry.ended) end_for_lack(&entry, e);
      entry.drain->ring().set_state(RingState::finalized);
    }
    quiescent = entry.drain->settled() && !communicator->graphs_alive();
    end_live(&entry);
    entry.drain.reset();
    entry.closing = false;
    channel = communicator->release();
    shared_.communicators.store(--open_, std::memory_order_relaxed);
  }
  if (channel != nullptr && !quiescent) channel->leave_memory();
  channel.reset();
  const auto say = communicator->identity().rank == 0 ? &Log::notice : &Log::info;
  if (!summary.empty()) (communicator->log().*say)("rank %u: %s", communicator->identity().rank, summary.c_str());
}

void Process::go_live(Entry* entry) {
  const std::lock_guard lock(marks_mutex_);
  Communicator* communicator = entry->communicator.get();
  for (const Mark* mark : {&step_mark_, &phase_mark_})
    if (mark->kind != MarkKind::none) communicator->push_mark(*mark);
  entry->live.store(communicator, std::memory_order_release);
}

void Process::end_live(Entry* entry) {
  const std::lock_guard lock(marks_mutex_);
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
  // Taken by init and finalize for long, by CUDA's thread here: no callback of NCCL is on this path.
  const std::lock_guard lock(process.mutex_);
  if (Communicator* c = process.find(handle, HandleType::context); c != nullptr)
    c->release_captured_slot(static_cast<std::uint32_t>(handle.payload()));
}

}  // namespace gradprobe
