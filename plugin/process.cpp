#include "process.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <utility>

#include "version.hpp"

namespace gradprobe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kShortestSleep = std::chrono::microseconds(50);
constexpr auto kLongestSleep =
    std::chrono::microseconds(1000);  // far below the time in which kResults results can come

constexpr auto kControlPeriod = std::chrono::seconds(1);  // how often the control file is looked at

// The application's signals are for its own threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

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

Process& Process::get() {
  static Process* process = new Process;
  return *process;
}

Process::Process() {
  shared_.graph_gone = &Process::graph_gone;
  // A forked child has no collector thread and no ring mapping (MADV_DONTFORK): there gradprobe does nothing.
  pthread_atfork(nullptr, nullptr, [] {
    get().forked_.store(true);
    for (LiveCommunicator& live : g_live_communicators) live.communicator.store(nullptr);
  });
  std::atexit([] { get().at_exit(); });
}

void* Process::open(const InitCall& call, int* mask) {
  *mask = 0;
  const Config config = read_config();
  const Log log(call.logger, config.log);
  if (!config.enabled) {
    log.info("rank %u: switched off by GRADPROBE=0", call.rank);
    return nullptr;
  }
  if (forked_.load()) {
    log.warn("rank %u: not measured: this process was forked from one that uses gradprobe", call.rank);
    return nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    // Once in a process, not for each of its communicators.
    if (!std::exchange(settings_reported_, true))
      for (const std::string& warning : config.warnings) log.warn("%s", warning.c_str());
  }

  // Before NCCL 2.28 nobody knows yet whose communicator it is; nothing is measured there anyway.
  const Role role = call.identified ? role_of(call, config, log) : Role::undecided;
  if (role == Role::activations) {
    const std::lock_guard lock(mutex_);
    *mask = joint_mask(call);
    return nullptr;
  }
  shared_.control.configure(config.sampling, config.control_file);

  std::string why;
  std::unique_ptr<GateChannel> channel;
  Missed unmeasured = Missed::none;
  if (tells_too_late(call.profiler_abi)) {
    unmeasured = Missed::unsupported_nccl;
  } else {
    if (const CudaDriver* cuda = CudaDriver::load(&why); cuda != nullptr)
      channel = GateChannel::create(*cuda, config, &why);
    if (channel == nullptr) unmeasured = Missed::no_cuda;
  }
  const std::string not_measured = why;
  const RingIdentity identity = ring_identity(call, channel.get());
  std::unique_ptr<RingWriter> ring;
  if (call.identified) ring = RingWriter::create(config, identity, &why);

  std::unique_lock lock(mutex_);
  *mask = joint_mask(call);
  const bool can_be_recorded = ring != nullptr || !call.identified;
  Entry* entry = can_be_recorded ? free_entry() : nullptr;
  if (can_be_recorded && entry == nullptr) why = "too many communicators in this process";
  if (entry != nullptr && !collector_.joinable()) {
    try {
      start_collector();
    } catch (const std::system_error& e) {
      why = std::string("can't start the collector thread: ") + e.what();
      entry = nullptr;
    }
  }
  if (entry == nullptr) {
    lock.unlock();
    if (ring != nullptr) ring->discard();
    GateChannel::close(std::move(channel), true);
    log.warn("rank %u: not measured: %s", call.rank, why.c_str());
    return nullptr;
  }
  // Generation 0 is never used: no handle of a communicator is all zeros but for its type.
  const std::uint32_t generation = entry->generation.load() % 127 + 1;
  entry->generation.store(generation);
  const CommunicatorId id{static_cast<std::uint32_t>(entry - entries_.data()), generation};
  const std::string path = ring != nullptr ? ring->path() : config.directory;
  const std::uint64_t capacity = ring != nullptr ? ring->capacity() : 0;
  entry->gate_timeout_ms = config.gate_timeout_ms;
  entry->broken = false;
  entry->communicator = std::make_unique<Communicator>(id,
                                                       CommunicatorIdentity{.comm_id = call.comm_id,
                                                                            .rank = call.rank,
                                                                            .nranks = call.nranks,
                                                                            .nnodes = call.nnodes,
                                                                            .profiler_abi = call.profiler_abi,
                                                                            .role = role,
                                                                            .known = call.identified},
                                                       config, std::move(channel), unmeasured, log, &shared_);
  if (ring != nullptr)
    entry->drain = std::make_unique<Drain>(entry->communicator.get(), std::move(ring), config);
  else
    entry->pending = std::make_unique<PendingRing>(PendingRing{config, identity});
  shared_.communicators.store(++open_, std::memory_order_relaxed);
  if (unmeasured == Missed::none) measured_++;
  *mask = joint_mask(call);
  const bool first_of_old_nccl = unmeasured == Missed::unsupported_nccl && !std::exchange(old_nccl_reported_, true);
  set_live(entry, entry->communicator.get());
  wake_.notify_all();
  lock.unlock();
  if (first_of_old_nccl)
    log.warn(
        "not measured: NCCL < 2.28, use the preload library (libgradprobe-preload.so); collectives are recorded "
        "without values, in %s",
        path.c_str());
  if (unmeasured == Missed::no_cuda)
    log.warn("rank %u: not measured: %s; its collectives are recorded without values, in %s", call.rank,
             not_measured.c_str(), path.c_str());
  if (unmeasured == Missed::none) {
    const auto say = call.rank == 0 ? &Log::notice : &Log::info;
    (log.*say)(
        "version %s: rank %u of %u measures the inputs of all-reduce and reduce-scatter into %s (%llu "
        "records)%s",
        kVersion, call.rank, call.nranks, path.c_str(), static_cast<unsigned long long>(capacity),
        config.launch_blocking && call.profiler_abi != 0
            ? "; CUDA_LAUNCH_BLOCKING is set: uncaptured launches can't be measured"
            : "");
  }
  return Handle(HandleType::context, id, 0).opaque();
}

// NCCL keeps one event mask for the process, the last communicator's: one that isn't measured must not blind others.
int Process::joint_mask(const InitCall& call) const {
  if (measured_ > 0) return activation_mask(call.profiler_abi);
  if (open_ == 0) return 0;
  return static_cast<int>(tells_too_late(call.profiler_abi) ? nccl::kColl : nccl::kCollApi);
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

void Process::set_live(Entry* entry, Communicator* communicator) {
  entry->live.store(communicator, std::memory_order_release);
  LiveCommunicator& live = g_live_communicators[static_cast<std::size_t>(entry - entries_.data())];
  live.context_tag.store(0, std::memory_order_release);
  live.communicator.store(communicator, std::memory_order_release);
  if (communicator == nullptr) return;
  live.context_tag.store(Handle(HandleType::context, communicator->id(), 0).tag(), std::memory_order_release);
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
  const BlockedSignals blocked;
  collector_ = std::thread([this] { collect(); });
  pthread_setname_np(collector_.native_handle(), "gradprobe");
}

void Process::make_pending_ring(Entry* entry) {
  const std::unique_ptr<PendingRing> pending = std::move(entry->pending);
  const CommunicatorIdentity& told = entry->communicator->identity();
  pending->identity.comm_id = told.comm_id;
  pending->identity.rank = told.rank;
  pending->identity.comm_name = entry->communicator->name();
  std::string why;
  std::unique_ptr<RingWriter> ring = RingWriter::create(pending->config, pending->identity, &why);
  if (ring == nullptr) {
    entry->broken = true;
    entry->communicator->log().warn("rank %u: not recorded: %s", told.rank, why.c_str());
    return;
  }
  entry->drain = std::make_unique<Drain>(entry->communicator.get(), std::move(ring), pending->config);
}

void Process::poll(Entry* entry, bool beat, bool* busy) {
  try {
    if (entry->pending != nullptr && entry->communicator->identified()) make_pending_ring(entry);
    if (entry->drain == nullptr) return;
    *busy |= entry->drain->poll();
    if (beat) entry->drain->ring().heartbeat();
  } catch (const std::exception& e) {
    // Out of memory: this communicator's records end here, training goes on.
    entry->broken = true;
    shared_.switched_off.store(true);
    entry->communicator->log().warn("rank %u: measuring ends for this process: %s",
                                    entry->communicator->identity().rank, e.what());
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
      if (entry.live.load() != nullptr && !entry.broken) poll(&entry, beat, &busy);
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
  }
}

void Process::close(void* context) {
  Communicator* communicator = find(Handle(context), HandleType::context);
  if (communicator == nullptr) return;
  std::unique_ptr<GateChannel> channel;
  std::string summary;
  bool quiescent = false;
  {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[communicator->id().index];
    if (entry.live.load() != communicator) return;
    communicator->give_up_all();
    bool busy = false;
    if (!entry.broken) poll(&entry, false, &busy);
    if (entry.drain != nullptr) {
      if (!entry.broken) {
        wait_for_device(&entry, &lock);
        entry.drain->finish(RingState::finalized);
      }
      quiescent = entry.drain->settled() && !communicator->graphs_alive();
      summary = entry.drain->summary() + ", in " + entry.drain->ring().path();
    }
    set_live(&entry, nullptr);
    entry.drain.reset();
    entry.pending.reset();
    if (communicator->channel() != nullptr) measured_--;
    channel = communicator->take_channel();
    shared_.communicators.store(--open_, std::memory_order_relaxed);
  }
  GateChannel::close(std::move(channel), quiescent);
  if (summary.empty()) return;
  const auto say = communicator->identity().rank == 0 ? &Log::notice : &Log::info;
  (communicator->log().*say)("rank %u: %s", communicator->identity().rank, summary.c_str());
}

void Process::at_exit() {
  // Scripts often end without destroying their communicators. Callbacks may still come; nothing is freed.
  if (forked_.load()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
    for (Entry& entry : entries_) {
      if (entry.live.load() == nullptr || entry.broken) continue;
      try {
        bool busy = false;
        poll(&entry, false, &busy);
        if (entry.drain == nullptr || entry.broken) continue;
        entry.communicator->give_up_all();
        entry.drain->finish(RingState::exited);
      } catch (const std::exception&) {
        entry.broken = true;  // out of memory: the ring keeps what was written
      }
    }
  }
  if (collector_.joinable()) collector_.join();
}

void Process::graph_gone(void* token) {
  Process& process = get();
  const Handle handle(token);
  // Taken by init and finalize for long, by CUDA's thread here: no callback of NCCL is on this path.
  const std::lock_guard lock(process.mutex_);
  if (Communicator* c = find(handle, HandleType::context); c != nullptr)
    c->release_captured_slot(static_cast<std::uint32_t>(handle.payload()));
}

}  // namespace gradprobe
