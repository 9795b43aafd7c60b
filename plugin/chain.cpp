#include "chain.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "abi_check.hpp"
#include "config.hpp"

namespace gradprobe::chain {
namespace {

using AnyProfiler = nccl::Profiler<void (*)(), void>;

// A struct of version 5 serves a NCCL that uses version 6 or 7, one of version 6 serves version 7: all that the older
// one has lies at the same place (tests/plugin/abi_test.py). Version 6 adds copy-engine events, version 7 kernel phases
// and fields behind the older ones.
static_assert(abi::EventDescr_v5::kSize == abi::EventDescr_v6::kSize);
static_assert(abi::EventDescr_v6::kSize <= abi::EventDescr_v7::kSize);
static_assert(abi::EventStateArgs_v5::kSize == abi::EventStateArgs_v7::kSize);
static_assert(abi::EventStateArgs_v6::kSize == abi::EventStateArgs_v7::kSize);

constexpr int kNewest = 7;
constexpr int kOldestOfLayout = 5;  // the oldest struct that serves the newest
constexpr int kCopyEngine = nccl::kCeColl | nccl::kCeSync | nccl::kCeBatch;
constexpr int kPhases = nccl::kKernelPhase;
constexpr int kPhasesParents = nccl::kKernelCh;

// The mask bits of which any makes NCCL report events of a type: children need their parents, whether asked for or not.
int asking_for(int version, std::uint64_t type) {
  using namespace nccl;
  constexpr int kSteps = kProxyStep | kNetPlugin;
  constexpr int kProxy = kProxyOp | kSteps;
  constexpr int kTask = kProxy | kKernelCh;
  if (version <= 2) {
    if (type == kGroup) return kColl | kP2p | kProxyOp | kProxyStep;
    if (type == kColl || type == kP2p) return kColl | kProxyOp | kProxyStep;
  }
  switch (type) {
    case kGroup:
      return kGroup | kColl | kP2p | kTask;
    case kColl:
      return kColl | kTask;
    case kP2p:
      return version <= 4 ? kP2p | kProxyOp | kProxyStep | kKernelCh : kP2p | kTask;
    case kProxyOp:
      return kProxy;
    case kProxyStep:
      return kSteps;
    case kGroupApi:
      return kGroupApi | kCollApi | kP2pApi | kKernelLaunch | kGroup | kColl | kP2p | kTask | kCopyEngine;
    case kCollApi:
      return kCollApi | kColl | kTask | kCopyEngine;
    case kP2pApi:
      return kP2pApi | kP2p | kTask;
    case kCeColl:
      return kCopyEngine;
    default:
      return static_cast<int>(type);
  }
}

// Events that NCCL makes only where the plugin has given their parent a handle.
bool needs_parent(int version, std::uint64_t type) {
  if (version <= 4) return type == nccl::kColl || type == nccl::kP2p || type == nccl::kProxyStep;
  return type == nccl::kCeSync || type == nccl::kCeBatch;
}

// ---- pairs ----------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kPairs = 1u << 17;  // of each ring
constexpr std::uint32_t kGenerations = (1u << 26) - 1;
constexpr std::uint64_t kContextPayload = Handle::kPayloadMask;

enum PairUse : std::uint32_t { kFree, kStarted, kStopped, kKept };

struct Slot {
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> use;
  std::atomic<void*> own, chained;
  std::atomic<std::uint32_t> owner;  // Context::serial
};

struct Ring {
  Slot* slots = nullptr;  // zeros, for ever
  std::atomic<std::uint32_t> next{0};
};

struct Context {
  std::atomic<std::uint32_t> serial{0};  // 0: none
  CommunicatorId id;
  void* own = nullptr;
  void* chained = nullptr;
  int* nccl_mask = nullptr;
  Log log;
};

struct Chain {
  const AnyProfiler* profiler = nullptr;
  std::string path;
  int version = 0;         // NCCL's
  int unknown_events = 0;  // that came with versions newer than the chained plugin's
  int pid = 0;
  // Of the process, as NCCL's own is. The chained plugin may change its mask at any time.
  int mask = 0;
  std::atomic<int> own_mask{0};
  std::atomic<int> told_mask{0};
  Ring rings[2];  // of API calls, which replays keep, and of all else
  std::mutex mutex;
  std::array<Context, kMaxCommunicators> contexts;
  std::uint32_t next_context = 0, next_serial = 0;
  std::atomic<std::uint64_t> failed_starts{0}, without_pair{0};
};
std::atomic<Chain*> g_chain{nullptr};

bool map_ring(Ring* ring) {
  // Zeros that cost memory only when used.
  void* map =
      mmap(nullptr, sizeof(Slot) * kPairs, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return false;
  ring->slots = static_cast<Slot*>(map);
  return true;
}

Context* find(Chain* chain, CommunicatorId id) {
  Context& c = chain->contexts[id.index];
  return c.serial.load(std::memory_order_acquire) != 0 && c.id == id ? &c : nullptr;
}

bool alive(Chain* chain, std::uint32_t serial) {
  return chain->contexts[serial % kMaxCommunicators].serial.load(std::memory_order_acquire) == serial;
}

Handle pair_handle(std::uint32_t ring, std::uint32_t index, std::uint32_t generation, CommunicatorId id) {
  return Handle(HandleType::chained, id,
                std::uint64_t{ring} << 43 | std::uint64_t{index} << 26 | (generation % kGenerations));
}

Slot* slot_of(Chain* chain, Handle handle) {
  const std::uint64_t payload = handle.payload();
  if (payload == kContextPayload) return nullptr;
  Slot& slot = chain->rings[payload >> 43].slots[payload >> 26 & (kPairs - 1)];
  const bool current = slot.generation.load(std::memory_order_acquire) % kGenerations == (payload & ((1u << 26) - 1)) &&
                       slot.use.load(std::memory_order_acquire) != kFree;
  return current && alive(chain, slot.owner.load(std::memory_order_relaxed)) ? &slot : nullptr;
}

// A pair for a new event; null when none is free.
Slot* take_slot(Chain* chain, Ring* ring, std::uint32_t owner, std::uint32_t* index) {
  constexpr int kTries = 256;
  for (int i = 0; i < kTries; i++) {
    *index = ring->next.fetch_add(1, std::memory_order_relaxed) % kPairs;
    Slot& slot = ring->slots[*index];
    std::uint32_t use = slot.use.load(std::memory_order_acquire);
    if ((use == kStarted || use == kKept) && alive(chain, slot.owner.load(std::memory_order_relaxed))) continue;
    // Only one thread can get this number in this round of the ring, but for one that was asleep for a whole round.
    if (!slot.use.compare_exchange_strong(use, kStarted, std::memory_order_acq_rel)) continue;
    slot.generation.fetch_add(1, std::memory_order_acq_rel);
    slot.owner.store(owner, std::memory_order_relaxed);
    return &slot;
  }
  return nullptr;
}

// ---- loading --------------------------------------------------------------------------------------------------------

void* open_library(const std::string& name, std::string* why) {
  // As NCCL looks its plugin up: a path or file name first, then the short name.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* error = dlerror();
  *why = error != nullptr ? error : "unknown error";
  if (name.find('/') == std::string::npos)
    library = dlopen(("libnccl-profiler-" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  return library;
}

const AnyProfiler* struct_of(void* library, int version) {
  return static_cast<const AnyProfiler*>(dlsym(library, ("ncclProfiler_v" + std::to_string(version)).c_str()));
}

std::string versions_of(void* library) {
  std::string versions;
  for (int v = 1; v <= kNewest; v++)
    if (struct_of(library, v) != nullptr) versions += (versions.empty() ? "v" : ", v") + std::to_string(v);
  return versions.empty() ? "none" : versions;
}

// Null when the chain can't be used.
Chain* load(int version, const std::string& path, const Log& log) {
  const auto refuse = [&](const std::string& why) {
    log.warn("GRADPROBE_CHAIN=%s is left out: %s", path.c_str(), why.c_str());
    return nullptr;
  };
  std::string why;
  void* library = open_library(path, &why);
  if (library == nullptr) return refuse("it can't be loaded (" + why + "); give the path of a profiler plugin");
  int theirs = version;
  const AnyProfiler* profiler = struct_of(library, theirs);
  while (profiler == nullptr && theirs > kOldestOfLayout) profiler = struct_of(library, --theirs);
  if (profiler == nullptr) {
    const std::string has = versions_of(library);
    dlclose(library);
    return refuse("this NCCL uses profiler struct v" + std::to_string(version) + ", the library has " + has +
                  "; build the plugin for this NCCL");
  }
  if (profiler->name != nullptr && std::strcmp(profiler->name, "gradprobe") == 0)
    return refuse("it is gradprobe itself; name the other plugin");
  auto chain = std::make_unique<Chain>();
  if (!map_ring(&chain->rings[0]) || !map_ring(&chain->rings[1])) return refuse("no memory for its events");
  chain->profiler = profiler;
  chain->path = path;
  chain->version = version;
  chain->unknown_events = (theirs < 6 ? kCopyEngine : 0) | (theirs < 7 ? kPhases : 0);
  chain->pid = getpid();
  log.info("GRADPROBE_CHAIN=%s: %s (profiler struct v%d) gets its events too", path.c_str(),
           profiler->name != nullptr ? profiler->name : "a plugin without a name", theirs);
  return chain.release();  // stays loaded: NCCL's threads may call at any time until the process ends
}

Chain* loaded(int version, const std::string& path, const Log& log) {
  static std::once_flag once;
  std::call_once(once, [&] { g_chain.store(load(version, path, log), std::memory_order_release); });
  Chain* chain = g_chain.load(std::memory_order_acquire);
  return chain != nullptr && chain->version == version ? chain : nullptr;
}

// What the chained plugin asks for, as NCCL takes it: kernel phases switch their parents on.
int masked(const Chain& chain) {
  const int mask = std::atomic_ref<const int>(chain.mask).load(std::memory_order_relaxed) & ~chain.unknown_events;
  return (mask & kPhases) != 0 ? mask | kPhasesParents : mask;
}

// What NCCL shall report to both. One cheap type is always in it: its events show a mask that was changed meanwhile.
int joint_mask(const Chain& chain) {
  return chain.own_mask.load(std::memory_order_relaxed) | masked(chain) |
         static_cast<int>(chain.version >= 5 ? nccl::kGroupApi : nccl::kGroup | nccl::kColl);
}

void tell_mask(Chain* chain, int* nccl_mask) {
  const int mask = joint_mask(*chain);
  if (mask == chain->told_mask.load(std::memory_order_relaxed)) return;
  chain->told_mask.store(mask, std::memory_order_relaxed);
  std::atomic_ref<int>(*nccl_mask).store(mask, std::memory_order_relaxed);
}

Context* free_context(Chain* chain) {
  for (std::uint32_t i = 0; i < kMaxCommunicators; i++) {
    Context& c = chain->contexts[chain->next_context];
    const std::uint32_t index = chain->next_context;
    chain->next_context = (chain->next_context + 1) % kMaxCommunicators;
    if (c.serial.load(std::memory_order_relaxed) != 0) continue;
    c.id = {index, c.id.generation % 127 + 1};
    return &c;
  }
  return nullptr;
}

}  // namespace

void open(int version, void* own, int own_mask, const CallInit& init, NcclLogger logger, void** context, int* mask) {
  *context = own;
  *mask = own_mask;
  // Most have none: then nothing can fail here.
  const char* set = std::getenv("GRADPROBE_CHAIN");
  if (g_chain.load(std::memory_order_acquire) == nullptr && (set == nullptr || *set == '\0')) return;
  const Config config = read_config();
  const Log log(logger, config.log);
  Chain* chain = loaded(version, config.chain, log);
  if (chain == nullptr) return;
  const std::lock_guard lock(chain->mutex);
  chain->own_mask.store(own_mask, std::memory_order_relaxed);
  void* theirs = nullptr;
  const int before = std::atomic_ref<const int>(chain->mask).load(std::memory_order_relaxed);
  const nccl::Result result = init(chain->profiler->init, &theirs, &chain->mask);
  // What a plugin asked for before it failed would be made for nobody.
  if (result != nccl::kSuccess) std::atomic_ref<int>(chain->mask).store(before, std::memory_order_relaxed);
  Context* c = result == nccl::kSuccess ? free_context(chain) : nullptr;
  *mask = joint_mask(*chain);
  chain->told_mask.store(*mask, std::memory_order_relaxed);
  if (c == nullptr) {
    log.warn("GRADPROBE_CHAIN=%s is left out of one communicator: %s", chain->path.c_str(),
             result == nccl::kSuccess ? "too many communicators in this process"
                                      : ("its init failed with error " + std::to_string(result)).c_str());
    return;
  }
  c->own = own;
  c->chained = theirs;
  c->nccl_mask = mask;
  c->log = log;
  // Divided by the table's size it gives the place in the table; never 0.
  const std::uint32_t serial = (chain->next_serial++ % 0x3FFFFF + 1) * kMaxCommunicators + c->id.index;
  c->serial.store(serial, std::memory_order_release);
  *context = Handle(HandleType::chained, c->id, kContextPayload).opaque();
}

Pair parts(void* handle) {
  if (!is_pair(handle)) return {handle, nullptr};
  Chain* chain = g_chain.load(std::memory_order_acquire);
  if (chain == nullptr) return {};
  Slot* slot = slot_of(chain, Handle(handle));
  if (slot == nullptr) return {};
  return {slot->own.load(std::memory_order_relaxed), slot->chained.load(std::memory_order_relaxed)};
}

void* own_context(void* context) {
  Chain* chain = g_chain.load(std::memory_order_acquire);
  const Handle handle(context);
  if (chain == nullptr || handle.payload() != kContextPayload) return nullptr;
  const Context* c = find(chain, handle.communicator());
  return c != nullptr ? c->own : nullptr;
}

void* start(void* context, const Event& event, void* own) {
  Chain* chain = g_chain.load(std::memory_order_acquire);
  if (chain == nullptr) return own;
  Context* c = Handle(context).payload() == kContextPayload ? find(chain, Handle(context).communicator()) : nullptr;
  if (c == nullptr) return own;
  tell_mask(chain, c->nccl_mask);
  if ((masked(*chain) & asking_for(chain->version, event.type)) == 0) return own;
  if (event.orphan && needs_parent(chain->version, event.type)) return own;
  const bool api = event.type == nccl::kCollApi || event.type == nccl::kP2pApi || event.type == nccl::kGroupApi;
  std::uint32_t index = 0;
  Slot* slot = take_slot(chain, &chain->rings[api ? 0 : 1], c->serial.load(std::memory_order_relaxed), &index);
  if (slot == nullptr) {
    chain->without_pair.fetch_add(1, std::memory_order_relaxed);
    return own;
  }
  void* chained = nullptr;
  const nccl::Result result = chain->profiler->start_event(c->chained, &chained, event.descriptor);
  if (result != nccl::kSuccess) {
    chain->failed_starts.fetch_add(1, std::memory_order_relaxed);
    chained = nullptr;
  }
  if (chained == nullptr) {
    slot->use.store(kFree, std::memory_order_release);
    return own;
  }
  slot->own.store(own, std::memory_order_relaxed);
  slot->chained.store(chained, std::memory_order_relaxed);
  if (event.captured) slot->use.store(kKept, std::memory_order_release);
  return pair_handle(api ? 0 : 1, index, slot->generation.load(std::memory_order_relaxed), c->id).opaque();
}

void stop(void* handle) {
  Chain* chain = g_chain.load(std::memory_order_acquire);
  Slot* slot = chain != nullptr ? slot_of(chain, Handle(handle)) : nullptr;
  if (slot == nullptr) return;
  chain->profiler->stop_event(slot->chained.load(std::memory_order_relaxed));
  std::uint32_t started = kStarted;
  slot->use.compare_exchange_strong(started, kStopped, std::memory_order_acq_rel);
}

void record(void* handle, int state, void* arguments) {
  Chain* chain = g_chain.load(std::memory_order_acquire);
  const Slot* slot = chain != nullptr ? slot_of(chain, Handle(handle)) : nullptr;
  if (slot == nullptr) return;
  chain->profiler->record_event_state(slot->chained.load(std::memory_order_relaxed), state, arguments);
}

void finalize(void* context) {
  Chain* chain = g_chain.load(std::memory_order_acquire);
  if (chain == nullptr || Handle(context).payload() != kContextPayload) return;
  void* chained = nullptr;
  Log log;
  {
    const std::lock_guard lock(chain->mutex);
    Context* c = find(chain, Handle(context).communicator());
    if (c == nullptr) return;
    c->serial.store(0, std::memory_order_release);
    chained = c->chained;
    log = c->log;
  }
  // From 2.28 on NCCL finalizes what has a context.
  if (chained != nullptr || chain->version < 5) chain->profiler->finalize(chained);
  // Told here, because a callback is no place for messages.
  const std::uint64_t failed = chain->failed_starts.exchange(0), kept_back = chain->without_pair.exchange(0);
  if (failed + kept_back != 0)
    log.warn("GRADPROBE_CHAIN=%s: its startEvent failed %llu times, %llu events were kept back (too many are open)",
             chain->path.c_str(), static_cast<unsigned long long>(failed), static_cast<unsigned long long>(kept_back));
}

int process_id() {
  const Chain* chain = g_chain.load(std::memory_order_acquire);
  return chain != nullptr ? chain->pid : 0;
}

}  // namespace gradprobe::chain
