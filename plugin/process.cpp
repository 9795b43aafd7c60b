#include "process.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "version.hpp"

namespace gradprobe {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kShortestSleep = std::chrono::microseconds(50);
constexpr auto kLongestSleep =
    std::chrono::microseconds(1000);  // far below the time in which kResults results can come

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

}  // namespace

Process& Process::get() {
  static Process* process = new Process;
  return *process;
}

Process::Process() {
  // A forked child has no collector thread and no ring mapping (MADV_DONTFORK): there gradprobe does nothing.
  pthread_atfork(nullptr, nullptr, [] { get().forked_.store(true); });
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
  for (const std::string& warning : config.warnings) log.warn("%s", warning.c_str());

  std::string why;
  std::unique_ptr<GateChannel> channel;
  if (const CudaDriver* cuda = CudaDriver::load(&why); cuda != nullptr)
    channel = GateChannel::create(*cuda, config, &why);
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

  const std::lock_guard lock(mutex_);
  // NCCL keeps one event mask for the process, the last communicator's: one that isn't measured must not blind others.
  *mask = open_ > 0 ? kActivationMask : 0;
  const auto free_entry =
      std::find_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.drain == nullptr; });
  if (ring != nullptr && free_entry == entries_.end()) why = "too many communicators in this process";
  if (ring == nullptr || free_entry == entries_.end()) {
    GateChannel::close(std::move(channel), true);
    log.warn("rank %u: not measured: %s", call.rank, why.c_str());
    return nullptr;
  }
  Entry& entry = *free_entry;
  const std::uint32_t generation = (entry.generation.load() + 1) & 0x7F;
  entry.generation.store(generation);
  const CommunicatorId id{static_cast<std::uint32_t>(free_entry - entries_.begin()), generation};
  entry.gate_timeout_ms = config.gate_timeout_ms;
  entry.communicator =
      std::make_unique<Communicator>(id, CommunicatorIdentity{call.comm_id, call.rank, call.nranks}, config,
                                     std::move(channel), log, &switched_off_, &Process::graph_gone);
  entry.drain = std::make_unique<Drain>(entry.communicator.get(), std::move(ring), config, &switched_off_);
  const RingWriter& file = entry.drain->ring();
  const auto say = call.rank == 0 ? &Log::notice : &Log::info;
  (log.*say)(
      "version %s: rank %u of %u measures the inputs of all-reduce and reduce-scatter (f32, bf16, f16) into %s (%llu "
      "records)%s",
      kVersion, call.rank, call.nranks, file.path().c_str(), static_cast<unsigned long long>(file.capacity()),
      config.launch_blocking ? "; CUDA_LAUNCH_BLOCKING is set: uncaptured launches can't be measured" : "");
  open_++;
  if (!collector_.joinable()) start_collector();
  entry.live.store(entry.communicator.get(), std::memory_order_release);
  *mask = kActivationMask;
  return Handle(HandleType::context, id, 0).opaque();
}

void Process::start_collector() {
  const BlockedSignals blocked;
  stop_ = false;
  collector_ = std::thread([this] { collect(); });
  pthread_setname_np(collector_.native_handle(), "gradprobe");
}

void Process::collect() {
  auto sleep = kShortestSleep;
  auto next_heartbeat = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    bool busy = false;
    const bool beat = Clock::now() >= next_heartbeat;
    if (beat) next_heartbeat = Clock::now() + std::chrono::seconds(1);
    for (Entry& entry : entries_) {
      if (entry.drain == nullptr) continue;
      busy |= entry.drain->poll();
      if (beat) entry.drain->ring().heartbeat();
    }
    sleep = busy ? kShortestSleep : std::min(sleep * 2, kLongestSleep);
    wake_.wait_for(lock, sleep, [this] { return stop_; });
  }
}

void Process::wait_for_device(Entry* entry, std::unique_lock<std::mutex>* lock) {
  // A gate ends after its time-out at the latest; a device that shows no progress for longer is not waited for.
  const auto patience = std::chrono::milliseconds(entry->gate_timeout_ms + 100);
  auto deadline = Clock::now() + patience;
  while (Clock::now() < deadline) {
    if (entry->drain->poll()) deadline = Clock::now() + patience;
    if (entry->drain->quiescent()) return;
    wake_.wait_for(*lock, kShortestSleep * 4);
  }
}

void Process::close(void* context) {
  Communicator* communicator = find(Handle(context));
  if (communicator == nullptr) return;
  std::thread finished;
  std::unique_ptr<GateChannel> channel;
  bool quiescent = false;
  {
    std::unique_lock lock(mutex_);
    Entry& entry = entries_[communicator->id().index];
    if (entry.drain == nullptr) return;
    communicator->give_up_all();
    wait_for_device(&entry, &lock);
    entry.drain->finish();
    quiescent = entry.drain->quiescent() && !communicator->graphs_alive();
    const auto say = communicator->identity().rank == 0 ? &Log::notice : &Log::info;
    (communicator->log().*say)("rank %u: %s, in %s", communicator->identity().rank, entry.drain->summary().c_str(),
                               entry.drain->ring().path().c_str());
    entry.live.store(nullptr, std::memory_order_release);
    entry.drain.reset();
    channel = communicator->take_channel();
    if (--open_ == 0) {
      stop_ = true;
      wake_.notify_all();
      finished = std::move(collector_);
    }
  }
  if (finished.joinable()) finished.join();
  GateChannel::close(std::move(channel), quiescent);
}

void Process::at_exit() {
  // Scripts often end without destroying their communicators. Callbacks may still come; nothing is freed.
  if (forked_.load()) return;
  std::unique_lock lock(mutex_);
  stop_ = true;
  wake_.notify_all();
  for (Entry& entry : entries_) {
    if (entry.drain == nullptr) continue;
    entry.communicator->give_up_all();
    entry.drain->finish();
  }
}

void Process::graph_gone(void* token) {
  Process& process = get();
  const Handle handle(token);
  // Taken by init and finalize for long, by CUDA's thread here: no callback of NCCL is on this path.
  const std::lock_guard lock(process.mutex_);
  if (Communicator* c = process.find(handle); c != nullptr)
    c->release_captured_slot(static_cast<std::uint32_t>(handle.payload()));
}

}  // namespace gradprobe
