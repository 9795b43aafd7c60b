// ncclProfiler_v3: NCCL 2.26. Its first event comes after the launch: collectives are recorded, not measured. init
// tells nothing of the communicator; its events do.
#include "abi_check.hpp"
#include "adapter.hpp"

namespace {

using namespace gradprobe;

struct Descriptor {
  std::uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* comm_name;
      std::uint64_t comm_hash;
      std::uint64_t seq_number;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      std::uint8_t max_channels;
      std::uint8_t warps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      int pid;
    } proxy_op;
  };
};
namespace layout = abi::EventDescr_v3;
GRADPROBE_ABI_STRUCT(Descriptor, layout);
GRADPROBE_ABI_FIELD(Descriptor, type, layout::type);
GRADPROBE_ABI_FIELD(Descriptor, parent, layout::parentObj);
GRADPROBE_ABI_FIELD(Descriptor, rank, layout::rank);
GRADPROBE_ABI_FIELD(Descriptor, coll.comm_name, layout::coll_name);
GRADPROBE_ABI_FIELD(Descriptor, coll.comm_hash, layout::coll_commHash);
GRADPROBE_ABI_FIELD(Descriptor, coll.seq_number, layout::coll_seqNumber);
GRADPROBE_ABI_FIELD(Descriptor, coll.func, layout::coll_func);
GRADPROBE_ABI_FIELD(Descriptor, coll.send, layout::coll_sendBuff);
GRADPROBE_ABI_FIELD(Descriptor, coll.recv, layout::coll_recvBuff);
GRADPROBE_ABI_FIELD(Descriptor, coll.count, layout::coll_count);
GRADPROBE_ABI_FIELD(Descriptor, coll.root, layout::coll_root);
GRADPROBE_ABI_FIELD(Descriptor, coll.datatype, layout::coll_datatype);
GRADPROBE_ABI_FIELD(Descriptor, coll.max_channels, layout::coll_nMaxChannels);
GRADPROBE_ABI_FIELD(Descriptor, coll.warps, layout::coll_nWarps);
GRADPROBE_ABI_FIELD(Descriptor, coll.algo, layout::coll_algo);
GRADPROBE_ABI_FIELD(Descriptor, coll.proto, layout::coll_proto);
GRADPROBE_ABI_FIELD(Descriptor, proxy_op.pid, layout::proxyOp_pid);

using Init = nccl::Result (*)(void**, int*) noexcept;
using Profiler = nccl::Profiler<Init, Descriptor>;
GRADPROBE_ABI_PROFILER(Profiler, abi::Profiler_v3);

nccl::Result init(void** context, int* mask) noexcept {
  return open(anonymous_call(3), context, mask, [](void (*chained_init)(), void** chained_context, int* chained_mask) {
    return reinterpret_cast<Init>(chained_init)(chained_context, chained_mask);
  });
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const Profiler ncclProfiler_v3 = {"gradprobe", init, start_event<Descriptor>, stop_event, record_event_state, finalize};
