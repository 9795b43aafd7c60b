#include "adapter.hpp"

#include <exception>
#include <string>
#include <utility>

#include "preload_active.hpp"

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

nccl::Result stop_event(void* opaque) noexcept {
  const Handle handle(opaque);
  Communicator* c = Process::get().find(handle, handle.type());
  if (c == nullptr) return nccl::kSuccess;
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
  return nccl::kSuccess;
}

nccl::Result record_event_state(void*, int, void*) noexcept {
  return nccl::kSuccess;
}

nccl::Result finalize(void* context) noexcept {
  try {
    Process::get().close(context);
  } catch (const std::exception&) {
    // Close has said what there is to say.
  }
  return nccl::kSuccess;
}

nccl::Result init_with_identity(std::uint32_t profiler_abi, void** context, std::uint64_t comm_id, int* mask,
                                const char* comm_name, int nnodes, int nranks, int rank, NcclLogger logger) noexcept {
  *context = nullptr;
  *mask = 0;
  try {
    if (preload_active()) {
      Log(logger, read_config().log).info("rank %d: measured by the preload library, not by the profiler plugin", rank);
      return nccl::kSuccess;
    }
    InitCall call;
    call.comm_id = comm_id;
    call.comm_name = comm_name != nullptr ? comm_name : "";
    call.rank = static_cast<std::uint32_t>(rank);
    call.nranks = static_cast<std::uint32_t>(nranks);
    call.nnodes = static_cast<std::uint32_t>(nnodes);
    call.profiler_abi = profiler_abi;
    call.logger = logger;
    *context = Process::get().open(call, mask);
  } catch (const std::exception& e) {
    *mask = Process::get().mask_of_unmeasured(profiler_abi);
    Log(logger, LogTarget::automatic).warn("rank %d: not measured: %s", rank, description(e));
  }
  return nccl::kSuccess;
}

nccl::Result init_unsupported(std::uint32_t profiler_abi, void** context, int* mask, NcclLogger logger,
                              std::optional<int> rank) noexcept {
  *context = nullptr;
  *mask = 0;
  static std::atomic<bool> said{false};
  if (preload_active() || said.exchange(true)) return nccl::kSuccess;
  try {
    const std::string who = rank ? "rank " + std::to_string(*rank) + ": " : "";
    Log(logger, read_config().log)
        .warn(
            "%snothing is measured: this NCCL (profiler v%u) tells a collective's buffers only after its launch; NCCL "
            "2.28 or newer is needed",
            who.c_str(), profiler_abi);
  } catch (const std::exception&) {
    // No memory for a message: there is nothing to tell either.
  }
  return nccl::kSuccess;
}

nccl::Result start_nothing(void*, void** handle, void*) noexcept {
  *handle = nullptr;
  return nccl::kSuccess;
}

}  // namespace gradprobe
