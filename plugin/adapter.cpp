#include "adapter.hpp"

#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

namespace gradprobe {

Function function_of(const char* text) {
  if (text == nullptr) return Function::unknown;
  const std::string_view name(text);
  if (name == "AllReduce") return Function::all_reduce;
  if (name == "ReduceScatter") return Function::reduce_scatter;
  if (name == "AllGather") return Function::all_gather;
  if (name == "Broadcast") return Function::broadcast;
  if (name == "Reduce") return Function::reduce;
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

Datatype datatype_of(const char* text) {
  static constexpr std::pair<std::string_view, Datatype> kNames[] = {
      {"ncclFloat32", Datatype::f32}, {"ncclBfloat16", Datatype::bf16},     {"ncclFloat16", Datatype::f16},
      {"ncclFloat64", Datatype::f64}, {"ncclInt8", Datatype::i8},           {"ncclUint8", Datatype::u8},
      {"ncclInt32", Datatype::i32},   {"ncclUint32", Datatype::u32},        {"ncclInt64", Datatype::i64},
      {"ncclUint64", Datatype::u64},  {"ncclFloat8e4m3", Datatype::f8e4m3}, {"ncclFloat8e5m2", Datatype::f8e5m2},
  };
  if (text == nullptr) return Datatype::unknown;
  for (const auto& [name, type] : kNames)
    if (name == text) return type;
  return Datatype::unknown;
}

namespace {

void stop_own(Handle handle) {
  Communicator* c = Process::get().find(handle, handle.type());
  if (c == nullptr) return;
  switch (handle.type()) {
    case HandleType::group_api:
      c->group_api_stop();
      break;
    case HandleType::kernel_launch:
      c->kernel_launch_stop();
      break;
    case HandleType::group:
      c->group_stop();
      break;
    default:
      break;
  }
}

}  // namespace

nccl::Result stop_event(void* handle) noexcept {
  if (!chain::is_pair(handle)) {
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
    // Out of memory or threads while cleaning up: the ring keeps what was written, NCCL goes on.
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
  InitCall call = anonymous_call(version);
  call.identified = true;
  call.comm_id = comm_id;
  call.comm_name = comm_name != nullptr ? comm_name : "";
  call.rank = static_cast<std::uint32_t>(rank);
  call.nranks = static_cast<std::uint32_t>(nranks);
  call.nnodes = static_cast<std::uint32_t>(nnodes);
  call.logger = logger;
  return call;
}

InitCall anonymous_call(int version) {
  InitCall call;
  call.profiler_abi = static_cast<std::uint32_t>(version);
  return call;
}

nccl::Result open(const InitCall& call, void** context, int* mask, const chain::CallInit& chained_init) noexcept {
  *context = nullptr;
  int own_mask = 0;
  void* own = nullptr;
  try {
    own = Process::get().open(call, &own_mask);
  } catch (const std::exception& e) {
    Log(call.logger, LogTarget::automatic).warn("rank %u: not measured: %s", call.rank, e.what());
  }
  *context = own;
  *mask = own_mask;
  try {
    chain::open(static_cast<int>(call.profiler_abi), own, own_mask, chained_init, Log(call.logger, read_config().log),
                context, mask);
  } catch (const std::exception& e) {
    Log(call.logger, LogTarget::automatic).warn("GRADPROBE_CHAIN is left out: %s", e.what());
  }
  return nccl::kSuccess;
}

}  // namespace gradprobe
