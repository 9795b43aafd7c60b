// ncclProfiler_v7: NCCL 2.31 and later. Calls carry the user's tag, and a collective says whether a symmetric kernel
// does it. Its kernel phases are for chained plugins only.
#include "adapter.hpp"

#include <cstddef>
#include <cstdint>

#include "abi_check.hpp"

namespace {

using namespace gradprobe;

struct Descriptor {
  std::uint64_t type;
  void* parent;
  int rank;  // in API events 0 up to 2.31, whatever the rank is: init's is used
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
      std::uint64_t user_tag;
    } coll_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool graph_captured;
      std::uint64_t user_tag;
    } p2p_api;
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
      const char* kernel_variant;
      bool symmetric;
      std::uint64_t user_tag;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      std::uint8_t channels;
      void* parent_group;
      std::uint64_t user_tag;
    } p2p;
    struct {
      int pid;
    } proxy_op;
  };
};
GRADPROBE_ABI_STRUCT(Descriptor, abi::EventDescr_v7);
GRADPROBE_ABI_FIELD(Descriptor, type, abi::EventDescr_v7::type);
GRADPROBE_ABI_FIELD(Descriptor, parent, abi::EventDescr_v7::parentObj);
GRADPROBE_ABI_FIELD(Descriptor, rank, abi::EventDescr_v7::rank);
GRADPROBE_ABI_FIELD(Descriptor, group_api.graph_captured, abi::EventDescr_v7::groupApi_graphCaptured);
GRADPROBE_ABI_FIELD(Descriptor, group_api.group_depth, abi::EventDescr_v7::groupApi_groupDepth);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.func, abi::EventDescr_v7::collApi_func);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.count, abi::EventDescr_v7::collApi_count);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.datatype, abi::EventDescr_v7::collApi_datatype);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.root, abi::EventDescr_v7::collApi_root);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.stream, abi::EventDescr_v7::collApi_stream);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.graph_captured, abi::EventDescr_v7::collApi_graphCaptured);
GRADPROBE_ABI_FIELD(Descriptor, coll_api.user_tag, abi::EventDescr_v7::collApi_userTag);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.func, abi::EventDescr_v7::p2pApi_func);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.count, abi::EventDescr_v7::p2pApi_count);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.datatype, abi::EventDescr_v7::p2pApi_datatype);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.stream, abi::EventDescr_v7::p2pApi_stream);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.graph_captured, abi::EventDescr_v7::p2pApi_graphCaptured);
GRADPROBE_ABI_FIELD(Descriptor, p2p_api.user_tag, abi::EventDescr_v7::p2pApi_userTag);
GRADPROBE_ABI_FIELD(Descriptor, kernel_launch.stream, abi::EventDescr_v7::kernelLaunch_stream);
GRADPROBE_ABI_FIELD(Descriptor, coll.seq_number, abi::EventDescr_v7::coll_seqNumber);
GRADPROBE_ABI_FIELD(Descriptor, coll.func, abi::EventDescr_v7::coll_func);
GRADPROBE_ABI_FIELD(Descriptor, coll.send, abi::EventDescr_v7::coll_sendBuff);
GRADPROBE_ABI_FIELD(Descriptor, coll.recv, abi::EventDescr_v7::coll_recvBuff);
GRADPROBE_ABI_FIELD(Descriptor, coll.count, abi::EventDescr_v7::coll_count);
GRADPROBE_ABI_FIELD(Descriptor, coll.root, abi::EventDescr_v7::coll_root);
GRADPROBE_ABI_FIELD(Descriptor, coll.datatype, abi::EventDescr_v7::coll_datatype);
GRADPROBE_ABI_FIELD(Descriptor, coll.channels, abi::EventDescr_v7::coll_nChannels);
GRADPROBE_ABI_FIELD(Descriptor, coll.warps, abi::EventDescr_v7::coll_nWarps);
GRADPROBE_ABI_FIELD(Descriptor, coll.algo, abi::EventDescr_v7::coll_algo);
GRADPROBE_ABI_FIELD(Descriptor, coll.proto, abi::EventDescr_v7::coll_proto);
GRADPROBE_ABI_FIELD(Descriptor, coll.parent_group, abi::EventDescr_v7::coll_parentGroup);
GRADPROBE_ABI_FIELD(Descriptor, coll.kernel_variant, abi::EventDescr_v7::coll_kernelVariant);
GRADPROBE_ABI_FIELD(Descriptor, coll.symmetric, abi::EventDescr_v7::coll_isSymColl);
GRADPROBE_ABI_FIELD(Descriptor, coll.user_tag, abi::EventDescr_v7::coll_userTag);
GRADPROBE_ABI_FIELD(Descriptor, p2p.func, abi::EventDescr_v7::p2p_func);
GRADPROBE_ABI_FIELD(Descriptor, p2p.buffer, abi::EventDescr_v7::p2p_buff);
GRADPROBE_ABI_FIELD(Descriptor, p2p.datatype, abi::EventDescr_v7::p2p_datatype);
GRADPROBE_ABI_FIELD(Descriptor, p2p.count, abi::EventDescr_v7::p2p_count);
GRADPROBE_ABI_FIELD(Descriptor, p2p.peer, abi::EventDescr_v7::p2p_peer);
GRADPROBE_ABI_FIELD(Descriptor, p2p.channels, abi::EventDescr_v7::p2p_nChannels);
GRADPROBE_ABI_FIELD(Descriptor, p2p.parent_group, abi::EventDescr_v7::p2p_parentGroup);
GRADPROBE_ABI_FIELD(Descriptor, p2p.user_tag, abi::EventDescr_v7::p2p_userTag);
GRADPROBE_ABI_FIELD(Descriptor, proxy_op.pid, abi::EventDescr_v7::proxyOp_pid);

using Init = nccl::Result (*)(void**, std::uint64_t, int*, const char*, int, int, int, NcclLogger) noexcept;
using Profiler = nccl::Profiler<Init, Descriptor>;
GRADPROBE_ABI_PROFILER(Profiler, abi::Profiler_v7);

nccl::Result init(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int nnodes, int nranks,
                  int rank, NcclLogger logger) noexcept {
  return open(identified_call(7, comm_id, comm_name, nnodes, nranks, rank, logger), context, mask,
              [&](void (*chained_init)(), void** chained_context, int* chained_mask) {
                return reinterpret_cast<Init>(chained_init)(chained_context, comm_id, chained_mask, comm_name, nnodes,
                                                            nranks, rank, logger);
              });
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const Profiler ncclProfiler_v7 = {"gradprobe", init, start_event<Descriptor>, stop_event, record_event_state, finalize};
