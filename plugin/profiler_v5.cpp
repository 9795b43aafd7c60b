// ncclProfiler_v5: NCCL 2.28.
#include "adapter.hpp"
#include "descriptor_v5.hpp"

namespace {

using namespace gradprobe;

GRADPROBE_ABI_DESCRIPTOR_V5(abi::EventDescr_v5);

using Init = nccl::Result (*)(void**, std::uint64_t, int*, const char*, int, int, int, NcclLogger) noexcept;
using Profiler = nccl::Profiler<Init, DescriptorV5>;
GRADPROBE_ABI_PROFILER(Profiler, abi::Profiler_v5);

nccl::Result init(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int nnodes, int nranks,
                  int rank, NcclLogger logger) noexcept {
  return open(identified_call(5, comm_id, comm_name, nnodes, nranks, rank, logger), context, mask,
              [&](void (*chained_init)(), void** chained_context, int* chained_mask) {
                return reinterpret_cast<Init>(chained_init)(chained_context, comm_id, chained_mask, comm_name, nnodes,
                                                            nranks, rank, logger);
              });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const Profiler ncclProfiler_v5 = {
    "gradprobe", init, start_event<DescriptorV5>, stop_event, record_event_state, finalize};
