// ncclProfiler_v6: NCCL 2.29 and later (v6 adds copy-engine events, which are not asked for). Layout read from NCCL's
// public profiler headers.
#include <cstddef>

#include "adapter.hpp"

namespace {

using namespace gradprobe;

struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;  // 0 in API events, whatever the rank is: init's is used
  union {
    struct {
      bool graph_captured;
      int group_depth;
    } group_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graph_captured;
    } coll_api;
    struct {
      void* stream;
    } kernel_launch;
    struct {
      std::uint64_t seq_number;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algo;
      const char* proto;
      void* parent_group;
    } coll;
  };
};
static_assert(sizeof(Descriptor) == 112);
static_assert(offsetof(Descriptor, coll.send) == 40 && offsetof(Descriptor, coll.parent_group) == 104);
static_assert(offsetof(Descriptor, coll_api.stream) == 56 && offsetof(Descriptor, coll_api.graph_captured) == 64);

nccl::Result init(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int nnodes, int nranks,
                  int rank, NcclLogger logger) {
  return init_with_identity(6, context, comm_id, mask, comm_name, nnodes, nranks, rank, logger);
}

struct Profiler {
  const char* name;
  nccl::Result (*init)(void**, std::uint64_t, int*, const char*, int, int, int, NcclLogger);
  nccl::Result (*start_event)(void*, void**, const Descriptor*) noexcept;
  nccl::Result (*stop_event)(void*) noexcept;
  nccl::Result (*record_event_state)(void*, int, void*) noexcept;
  nccl::Result (*finalize)(void*) noexcept;
};
static_assert(sizeof(Profiler) == 48);

}  // namespace

extern "C" __attribute__((visibility("default")))
const Profiler ncclProfiler_v6 = {"gradprobe", init, start_event<Descriptor>, stop_event, record_event_state, finalize};
