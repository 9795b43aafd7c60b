#include "preload/communicators.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/abi.hpp"
#include "log.hpp"
#include "process.hpp"

namespace gradprobe::preload {
namespace {

constinit CommTable g_table;
constinit std::atomic<bool> g_in_use{false};

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  return gate::mix64(hash ^ value);
}

std::uint64_t mix_bytes(std::uint64_t hash, const void* bytes, std::size_t size) {
  const auto* p = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < size; i += sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, std::min(sizeof word, size - i));
    hash = mix(hash, word);
  }
  return hash;
}

// Ways of making a communicator: the same words in another way make another id.
enum class Way : std::uint64_t { ids = 1, process, split, shrink };

std::uint64_t start(Way way) {
  return mix(0x6772616470726f62u, static_cast<std::uint64_t>(way));
}

void set_name(Identity* identity, const nccl::CommConfig* config) {
  if (config == nullptr || config->magic != nccl::kConfigMagic ||
      config->size < offsetof(nccl::CommConfig, comm_name) + sizeof config->comm_name || config->comm_name == nullptr)
    return;
  std::strncpy(identity->name, config->comm_name, sizeof identity->name - 1);
}

Log log_to_user() {
  return Log(nullptr, read_config().log);
}

// The context that NCCL uses on the communicator's device: the current one if it is that device's, else the primary
// one. Null: the current one, or (with *why) none.
CUcontext context_of(const CudaDriver& cuda, const nccl::Comm* comm, std::string* why) {
  int ordinal = -1;
  if (cuda.device_get == nullptr || cuda.primary_context_state == nullptr || cuda.primary_context_retain == nullptr ||
      cuda.primary_context_release == nullptr || real_queries().device.find() == nullptr ||
      real_queries().device(comm, &ordinal) != nccl::kSuccess)
    return nullptr;
  CUdevice device = 0, current_device = 0;
  CUcontext context = nullptr;
  if (cuda.device_get(&device, ordinal) != CUDA_SUCCESS) return nullptr;
  if (cuda.ctx_get_current(&context) == CUDA_SUCCESS && context != nullptr &&
      cuda.ctx_get_device(&current_device) == CUDA_SUCCESS && current_device == device)
    return nullptr;
  unsigned flags = 0;
  int active = 0;
  if (cuda.primary_context_state(device, &flags, &active) != CUDA_SUCCESS || active == 0 ||
      cuda.primary_context_retain(&context, device) != CUDA_SUCCESS) {
    *why = "device " + std::to_string(ordinal) + " has no active CUDA context";
    return nullptr;
  }
  // NCCL's own use keeps it alive.
  cuda.primary_context_release(device);
  return context;
}

void open(Tracked* tracked, const nccl::Comm* comm) {
  Identity& identity = tracked->identity;
  if (identity.nranks == 0 && (real_queries().user_rank(comm, &identity.rank) != nccl::kSuccess ||
                               real_queries().count(comm, &identity.nranks) != nccl::kSuccess))
    return;
  InitCall call;
  call.comm_id = identity.comm_id;
  call.comm_name = identity.name;
  call.rank = static_cast<std::uint32_t>(identity.rank);
  call.nranks = static_cast<std::uint32_t>(identity.nranks);
  std::string why;
  std::optional<ScopedContext> current;
  if (const CudaDriver* cuda = CudaDriver::load(&why); cuda != nullptr) {
    if (CUcontext context = context_of(*cuda, comm, &why); context != nullptr) current.emplace(*cuda, context);
    if (!why.empty()) {
      log_to_user().warn("rank %d: not measured: %s", identity.rank, why.c_str());
      return;
    }
  }
  int mask = 0;  // of a plugin's events: there are none here
  tracked->context.store(Process::get().open(call, &mask), std::memory_order_release);
}

bool ready(const nccl::Comm* comm) {
  int state = nccl::kSuccess;
  const auto ask = real_queries().async_error.find();
  // NCCL takes a mutable pointer; it only reads here.
  return ask == nullptr || (ask(const_cast<nccl::Comm*>(comm), &state) == nccl::kSuccess && state == nccl::kSuccess);
}

// A communicator whose first collective comes. Without a lock that other communicators' threads take, too: opening may
// wait for the device, and so for a collective that another thread is still to launch.
void open_late(Tracked* tracked, const nccl::Comm* comm) {
  if (ready(comm) && tracked->waiting.exchange(false)) open(tracked, comm);
}

void say_unknown() {
  static constinit std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  log_to_user().warn(
      "a collective on a communicator whose making was not seen (ncclCommGrow, or made before this library came in): "
      "not measured");
}

Communicator* communicator_of(void* context) {
  return Process::get().find(Handle(context), HandleType::context);
}

}  // namespace

RealQueries& real_queries() {
  static constinit RealQueries queries;
  return queries;
}

Identity identity_of_ids(const nccl::UniqueId* ids, int count, const nccl::CommConfig* config) {
  Identity identity;
  std::uint64_t hash = start(Way::ids);
  for (int i = 0; ids != nullptr && i < count; i++) hash = mix_bytes(hash, &ids[i], sizeof ids[i]);
  identity.comm_id = hash;
  set_name(&identity, config);
  return identity;
}

Identity identity_in_this_process() {
  static constinit std::atomic<std::uint64_t> made{0};
  Identity identity;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::uint64_t hash = start(Way::process);
  if (const auto* random = reinterpret_cast<const void*>(getauxval(AT_RANDOM)); random != nullptr)
    hash = mix_bytes(hash, random, 16);
  hash = mix(hash, static_cast<std::uint64_t>(getpid()));
  hash = mix(hash, static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec));
  identity.comm_id = mix(hash, made.fetch_add(1));
  return identity;
}

Identity identity_of_split(const nccl::Comm* parent, int color, const nccl::CommConfig* config) {
  Identity identity;
  const Acquired tracked(g_table, parent);
  if (!tracked) return identity;
  std::uint64_t hash = mix(start(Way::split), tracked->identity.comm_id);
  hash = mix(hash, tracked->splits.fetch_add(1));
  identity.comm_id = mix(hash, static_cast<std::uint64_t>(color));
  set_name(&identity, config);
  return identity;
}

Identity identity_of_shrink(const nccl::Comm* parent, const int* excluded, int count, const nccl::CommConfig* config) {
  Identity identity;
  const Acquired tracked(g_table, parent);
  if (!tracked) return identity;
  std::uint64_t hash = mix(start(Way::shrink), tracked->identity.comm_id);
  hash = mix(hash, tracked->shrinks.fetch_add(1));
  // A set: ranks may list it in any order.
  std::uint64_t set = 0;
  for (int i = 0; excluded != nullptr && i < count; i++)
    set += mix(start(Way::shrink), static_cast<std::uint64_t>(excluded[i]));
  identity.comm_id = mix(hash, set);
  set_name(&identity, config);
  return identity;
}

void note_use() {
  g_in_use.store(true, std::memory_order_release);
}
bool in_use() {
  return g_in_use.load(std::memory_order_acquire);
}

void comm_made(const nccl::Comm* comm, const Identity& identity, bool ready_now) noexcept {
  try {
    // In a forked child another thread's lock may be held for ever.
    if (comm == nullptr || identity.comm_id == 0 || Process::get().forked()) return;
    void* forgotten = nullptr;
    Tracked* tracked = g_table.add(comm, identity, &forgotten);
    comm_ended(forgotten);
    if (tracked == nullptr) {
      log_to_user().warn("too many communicators in this process: one is not measured");
      return;
    }
    tracked->returns_early.store(!ready_now);
    if (ready_now)
      open(tracked, comm);
    else
      tracked->waiting.store(true, std::memory_order_release);
  } catch (const std::exception& e) {
    Log(nullptr, LogTarget::automatic).warn("a communicator is not measured: %s", e.what());
  }
}

bool returns_early(const nccl::Comm* comm) noexcept {
  const Acquired tracked(g_table, comm);
  return tracked && tracked->returns_early.load(std::memory_order_relaxed);
}

void* comm_ending(const nccl::Comm* comm) noexcept {
  if (comm == nullptr || !in_use() || Process::get().forked()) return nullptr;
  return g_table.remove(comm);
}

void comm_ended(void* context) noexcept {
  if (context == nullptr) return;
  try {
    Process::get().close(context);
  } catch (const std::exception&) {
    // Out of memory or threads while cleaning up: the ring keeps what was written.
  }
}

void comm_aborting(const nccl::Comm* comm) noexcept {
  if (!in_use()) return;
  const Acquired tracked(g_table, comm);
  if (!tracked) return;
  if (Communicator* c = communicator_of(tracked->context.load()); c != nullptr) c->void_results();
}

Pass begin(const nccl::Comm* comm, void* stream, std::span<const KnownCall> calls) noexcept {
  Pass pass;
  try {
    if (!in_use() || Process::get().forked()) return pass;
    const Acquired tracked(g_table, comm);
    if (!tracked) {
      if (comm != nullptr) say_unknown();
      return pass;
    }
    if (tracked->waiting.load(std::memory_order_acquire)) open_late(tracked.get(), comm);
    void* context = tracked->context.load(std::memory_order_acquire);
    Communicator* c = communicator_of(context);
    if (c == nullptr) return pass;
    const bool early = tracked->returns_early.load(std::memory_order_relaxed);
    // While an earlier call is in progress NCCL refuses the next one, which then is no collective.
    if (early && !ready(comm)) return pass;
    bool captured = false;
    const GateChannel* channel = c->channel();
    if (channel != nullptr && !channel->capture_status(static_cast<CUstream>(stream), &captured)) return pass;
    pass = {comm, stream, context, c->begin_calls(calls, captured, !early, stream)};
  } catch (const std::exception&) {
    pass.context = nullptr;  // no memory for the message of a launch that failed
  }
  return pass;
}

void end(const Pass& pass, int result) noexcept {
  if (pass.context == nullptr) return;
  try {
    const Acquired tracked(g_table, pass.comm);
    if (!tracked || tracked->context.load(std::memory_order_acquire) != pass.context) return;
    Communicator* c = communicator_of(pass.context);
    if (c == nullptr) return;
    CallOutcome outcome = CallOutcome::launched;
    if (result == nccl::kInProgress) {
      outcome = CallOutcome::launching;
      tracked->returns_early.store(true, std::memory_order_relaxed);
    } else if (result != nccl::kSuccess) {
      outcome = CallOutcome::refused;
    }
    c->end_calls(pass.begun, outcome, pass.stream);
  } catch (const std::exception&) {
    // No memory for the message of a launch that failed: the collective's result has no record.
  }
}

}  // namespace gradprobe::preload
