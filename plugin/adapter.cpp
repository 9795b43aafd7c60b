#include "adapter.hpp"

#include <exception>
#include <iterator>
#include <string>

#include "preload_active.hpp"

namespace gradprobe {

namespace {

// Compares as few characters as it takes; no call into libc.
template <std::size_t N>
[[gnu::always_inline]] inline bool equal(const char* text, const char (&literal)[N]) {
  for (std::size_t i = 0; i < N; i++)
    if (text[i] != literal[i]) return false;
  return true;
}

}  // namespace

Function function_of(const char* name) {
  if (name == nullptr) return Function::unknown;
  if (equal(name, "AllReduce")) return Function::all_reduce;
  if (equal(name, "ReduceScatter")) return Function::reduce_scatter;
  if (equal(name, "AllGather")) return Function::all_gather;
  if (equal(name, "Broadcast")) return Function::broadcast;
  if (equal(name, "Reduce")) return Function::reduce;
  return Function::unknown;
}

Function function_of(std::uint8_t number) {
  static constexpr Function kFunctions[] = {Function::broadcast, Function::reduce, Function::all_gather,
                                            Function::reduce_scatter, Function::all_reduce};
  return number < std::size(kFunctions) ? kFunctions[number] : Function::unknown;
}

Datatype datatype_of(std::uint8_t number) {
  return number <= static_cast<std::uint8_t>(Datatype::f8e5m2) ? static_cast<Datatype>(number) : Datatype::unknown;
}

Datatype datatype_of(const char* name) {
  if (name == nullptr) return Datatype::unknown;
  if (equal(name, "ncclFloat32")) return Datatype::f32;
  if (equal(name, "ncclBfloat16")) return Datatype::bf16;
  if (equal(name, "ncclFloat16")) return Datatype::f16;
  if (equal(name, "ncclFloat64")) return Datatype::f64;
  if (equal(name, "ncclFloat8e4m3")) return Datatype::f8e4m3;
  if (equal(name, "ncclFloat8e5m2")) return Datatype::f8e5m2;
  if (equal(name, "ncclInt8")) return Datatype::i8;
  if (equal(name, "ncclUint8")) return Datatype::u8;
  if (equal(name, "ncclInt32")) return Datatype::i32;
  if (equal(name, "ncclUint32")) return Datatype::u32;
  if (equal(name, "ncclInt64")) return Datatype::i64;
  if (equal(name, "ncclUint64")) return Datatype::u64;
  return Datatype::unknown;
}

namespace {

[[gnu::always_inline]] inline void stop_own(Handle handle) {
  if (handle.type() == HandleType::group_api) {
    Communicator::group_api_stop();
  } else if (handle.type() == HandleType::kernel_launch) {
    if (Communicator* c = Process::find(handle, HandleType::kernel_launch); c != nullptr) c->kernel_launch_stop();
  } else if (handle.type() == HandleType::group) {
    if (Communicator* c = Process::find(handle, HandleType::group); c != nullptr) c->group_stop();
  }  // of calls nothing is to be heard
}

}  // namespace

nccl::Result stop_event(void* handle) noexcept {
  if (!chain::is_pair(handle)) [[likely]] {
    stop_own(Handle(handle));
  } else {
    const chain::Pair pair = chain::parts(handle);
    chain::stop(handle);
    stop_own(Handle(pair.own));
  }
  return nccl::kSuccess;
}

nccl::Result record_event_state(void* handle, int state, void* arguments) noexcept {
  if (chain::is_pair(handle)) chain::record(handle, state, arguments);
  return nccl::kSuccess;
}

nccl::Result finalize(void* context) noexcept {
  void* own = chain::is_pair(context) ? chain::own_context(context) : context;
  try {
    Process::get().close(own);
  } catch (const std::exception&) {
    // Close has said what there is to say.
  }
  try {
    if (chain::is_pair(context)) chain::finalize(context);
  } catch (const std::exception&) {
    // The same.
  }
  return nccl::kSuccess;
}

InitCall identified_call(int version, std::uint64_t comm_id, const char* comm_name, int nnodes, int nranks, int rank,
                         NcclLogger logger) {
  InitCall call;
  call.profiler_abi = static_cast<std::uint32_t>(version);
  call.comm_id = comm_id;
  call.comm_name = comm_name != nullptr ? comm_name : "";
  call.rank = static_cast<std::uint32_t>(rank);
  call.nranks = static_cast<std::uint32_t>(nranks);
  call.nnodes = static_cast<std::uint32_t>(nnodes);
  call.logger = logger;
  return call;
}

namespace {

// What NCCL will report: with a chained plugin, all that either of the two asks for.
void tell_mask(const InitCall& call, int mask) {
  std::string names;
  for (std::size_t bit = 0; bit < std::size(nccl::kEventNames); bit++)
    if ((mask >> bit & 1) != 0) names += std::string(names.empty() ? "" : " ") + nccl::kEventNames[bit];
  Log(call.logger, read_config().log)
      .info("rank %u: profiler struct v%u, events that NCCL is asked for: 0x%x (%s)", call.rank, call.profiler_abi,
            static_cast<unsigned>(mask), names.c_str());
}

}  // namespace

InitCall anonymous_call(int version) {
  InitCall call;
  call.identified = false;
  call.profiler_abi = static_cast<std::uint32_t>(version);
  return call;
}

nccl::Result open(const InitCall& call, void** context, int* mask, const chain::CallInit& chained_init) noexcept {
  *context = nullptr;
  int own_mask = 0;
  void* own = nullptr;
  try {
    if (preload_active())
      Log(call.logger, read_config().log).info("measured by the preload library, not by the profiler plugin");
    else
      own = Process::get().open(call, &own_mask);
  } catch (const std::exception& e) {
    own_mask = Process::get().joint_mask(call.profiler_abi);
    Log(call.logger, LogTarget::automatic).warn("rank %u: not measured: %s", call.rank, description(e));
  }
  *context = own;
  *mask = own_mask;
  try {
    chain::open(static_cast<int>(call.profiler_abi), own, own_mask, chained_init, call.logger, context, mask);
  } catch (const std::exception& e) {
    Log(call.logger, LogTarget::automatic).warn("GRADPROBE_CHAIN is left out of one communicator: %s", description(e));
  }
  try {
    if (*mask != 0) tell_mask(call, *mask);
  } catch (const std::exception&) {
    // No memory for the line, which is only informative.
  }
  return nccl::kSuccess;
}

}  // namespace gradprobe
