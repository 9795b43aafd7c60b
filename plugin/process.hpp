// What the process has one of: the table of communicators, the collector thread, the switch that turns gating off.
// Adapters (profiler_v*.cpp) turn NCCL's calls into calls of this.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "communicator.hpp"
#include "config.hpp"
#include "drain.hpp"
#include "log.hpp"
#include "marks.hpp"
#include "nccl_types.hpp"

namespace gradprobe {

// For a message.
const char* description(const std::exception& error);

// What NCCL tells in init.
struct InitCall {
  bool identified = true;  // false: the first event tells comm_id, name and rank
  std::uint64_t comm_id = 0;
  const char* comm_name = "";
  std::uint32_t rank = 0, nranks = 0, nnodes = 0;
  std::uint32_t profiler_abi = 0;  // 0: the preload library
  NcclLogger logger = nullptr;
};

// What callbacks find communicators by: a table of its own, so that a look-up is a load and a comparison.
struct LiveCommunicator {
  static constexpr std::uint64_t kNobody = 0x2f6d'93b1'5c07'e8a4;  // of type 1: no context
  std::atomic<std::uint64_t> context{kNobody};                     // its context's bits
  std::atomic<Communicator*> communicator{nullptr};                // set before the context, and not taken back
};
inline constinit std::array<LiveCommunicator, kMaxCommunicators> g_live_communicators{};

class Process {
 public:
  // Never destroyed: NCCL's and CUDA's threads may call while the process exits. Allocates nothing: any callback may be
  // the first to come here.
  static Process& get() noexcept;

  // Starts recording a communicator. Returns its context, null when it is not recorded (the reason is logged). Where
  // nothing can be measured its collectives are recorded without values. `*mask` gets the events that NCCL shall
  // report. Allocates, locks, calls CUDA: only for init.
  void* open(const InitCall& call, int* mask);
  // The events that NCCL shall report: it keeps one mask for the process, the last communicator's, and one without
  // measurements must not blind others.
  int joint_mask(std::uint32_t profiler_abi);
  // True in a child of a process that used the plugin: there it does nothing.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  // Writes what is left, logs the summary and keeps the channel for the next communicator. Waits a bounded
  // time for the device.
  void close(void* context);

  // gradprobe.h: a mark for every communicator, and for those to come. From any thread; in a forked child nothing.
  static void mark(MarkKind kind, std::uint64_t number, double value, const char* name) noexcept;

  // The communicator of a context or an event handle of the given type; null when there is none any more, for anything
  // else (a null handle has type none), and in a forked child.
  static Communicator* find(Handle handle, HandleType type);

 private:
  // What a ring needs that is made after init.
  struct PendingRing {
    Config config;
    RingIdentity identity;
  };
  struct Entry {
    std::atomic<Communicator*> live{nullptr};  // while it is open; callbacks use g_live_communicators
    // Kept after close until the entry is used again: another thread's last event may just be ending in it.
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Drain> drain;  // null while the communicator isn't identified
    std::unique_ptr<PendingRing> pending;
    std::atomic<std::uint32_t> generation{0};  // of `live`; a handle of another one is stale
    std::uint32_t gate_timeout_ms = 0;
    bool closing = false;
    bool ended = false;  // nothing more is written: the process exits, memory ran out, or the ring couldn't be made
  };

  // What a communicator comes with.
  struct Entrant {
    const InitCall& call;
    const RingIdentity& identity;
    Role role;
    Missed unmeasured;
  };

  Process() noexcept;
  bool in_forked_child() const;
  bool said_before(const std::string& why);
  void* start(const InitCall& call, const Config& config, const Log& log, int* mask);
  void* enter(const Entrant& entrant, const Config& config, const Log& log, std::unique_ptr<GateChannel> channel,
              std::unique_ptr<RingWriter> ring, std::string* why);
  void end_for_lack(Entry* entry, const std::exception& error);
  static Role role_of(const InitCall& call, const Config& config, const Log& log);
  void collect();
  void look_at_control();
  void start_collector();
  void poll(Entry* entry, bool beat, bool* busy);
  static void make_pending_ring(Entry* entry);
  void push(const Mark& mark);
  void go_live(Entry* entry);
  void tell_who_is_alone();
  void end_live(Entry* entry);
  Entry* free_entry();
  void at_exit();
  void wait_for_device(Entry* entry, std::unique_lock<std::mutex>* lock);
  static void graph_gone(void* token);

  // Guards entries_ (but for `live`) and every Drain; callbacks never take it.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Entry, kMaxCommunicators> entries_;
  std::uint32_t open_ = 0;
  std::uint32_t measured_ = 0;  // of the open ones
  std::size_t next_entry_ = 0;
  // Guards the marks in force, and a communicator's life against those who give it marks or tell it of a graph's end.
  // Taken after mutex_.
  std::mutex marks_mutex_;
  Mark step_mark_, phase_mark_;  // kind none: none yet
  bool settings_reported_ = false;
  std::string last_reason_;  // why the last communicator that isn't measured isn't
  bool stop_ = false;        // the process ends; the collector outlives all communicators
  bool collecting_ = false;  // the collector runs
  SharedState shared_;
  std::atomic<bool> forked_{false};
  bool fork_is_told_ = false;  // `forked_` will be set in a forked child
  const pid_t pid_;
};

inline Communicator* Process::find(Handle handle, HandleType type) {
  constexpr std::uint64_t kOfCommunicator = (1u << 17) - 1;  // of a tag, without the type
  const LiveCommunicator& live = g_live_communicators[handle.tag() & (kMaxCommunicators - 1)];
  const std::uint64_t context = live.context.load(std::memory_order_acquire);
  const bool same = type == HandleType::context
                        ? handle.bits() == context
                        : handle.type() == type && type != HandleType::none &&
                              ((handle.tag() ^ Handle::tag_of(context)) & kOfCommunicator) == 0 &&
                              context != LiveCommunicator::kNobody;
  if (!same) return nullptr;
  Communicator* communicator = live.communicator.load(std::memory_order_relaxed);
  if (communicator == nullptr) __builtin_unreachable();  // it was set before the context
  return communicator;
}

// The events by which gradprobe measures; of v6 CeColl, all that follows the call of a collective that copy engines
// carry out.
constexpr int activation_mask(std::uint32_t profiler_abi) {
  const std::uint64_t all = nccl::kGroup | nccl::kColl | nccl::kGroupApi | nccl::kCollApi | nccl::kKernelLaunch;
  return static_cast<int>(profiler_abi >= 6 ? all | nccl::kCeColl : all);
}
// Before struct version 5 NCCL tells nothing before the launch. 0: the calls come from the preload library.
constexpr bool tells_too_late(std::uint32_t profiler_abi) {
  return profiler_abi != 0 && profiler_abi < 5;
}

}  // namespace gradprobe
