// The event descriptor that struct versions 5 and 6 share (6 adds copy-engine events): what gradprobe reads, and what
// forwarding to a chained plugin must translate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi_check.hpp"

namespace gradprobe {

struct DescriptorV5 {
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
      const char* func;
      std::size_t count;
      const char* datatype;
      void* stream;
      bool graph_captured;
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
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* datatype;
      std::size_t count;
      int peer;
      std::uint8_t channels;
      void* parent_group;
    } p2p;
    struct {
      int pid;
    } proxy_op;
  };
};

// Every field of it, against the layout of the version that includes this.
#define GRADPROBE_ABI_DESCRIPTOR_V5(layout)                                                    \
  GRADPROBE_ABI_STRUCT(DescriptorV5, layout);                                                  \
  GRADPROBE_ABI_FIELD(DescriptorV5, type, layout::type);                                       \
  GRADPROBE_ABI_FIELD(DescriptorV5, parent, layout::parentObj);                                \
  GRADPROBE_ABI_FIELD(DescriptorV5, rank, layout::rank);                                       \
  GRADPROBE_ABI_FIELD(DescriptorV5, group_api.graph_captured, layout::groupApi_graphCaptured); \
  GRADPROBE_ABI_FIELD(DescriptorV5, group_api.group_depth, layout::groupApi_groupDepth);       \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.func, layout::collApi_func);                      \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.count, layout::collApi_count);                    \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.datatype, layout::collApi_datatype);              \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.root, layout::collApi_root);                      \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.stream, layout::collApi_stream);                  \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll_api.graph_captured, layout::collApi_graphCaptured);   \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p_api.func, layout::p2pApi_func);                        \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p_api.count, layout::p2pApi_count);                      \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p_api.datatype, layout::p2pApi_datatype);                \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p_api.stream, layout::p2pApi_stream);                    \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p_api.graph_captured, layout::p2pApi_graphCaptured);     \
  GRADPROBE_ABI_FIELD(DescriptorV5, kernel_launch.stream, layout::kernelLaunch_stream);        \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.seq_number, layout::coll_seqNumber);                  \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.func, layout::coll_func);                             \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.send, layout::coll_sendBuff);                         \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.recv, layout::coll_recvBuff);                         \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.count, layout::coll_count);                           \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.root, layout::coll_root);                             \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.datatype, layout::coll_datatype);                     \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.channels, layout::coll_nChannels);                    \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.warps, layout::coll_nWarps);                          \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.algo, layout::coll_algo);                             \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.proto, layout::coll_proto);                           \
  GRADPROBE_ABI_FIELD(DescriptorV5, coll.parent_group, layout::coll_parentGroup);              \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.func, layout::p2p_func);                               \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.buffer, layout::p2p_buff);                             \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.datatype, layout::p2p_datatype);                       \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.count, layout::p2p_count);                             \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.peer, layout::p2p_peer);                               \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.channels, layout::p2p_nChannels);                      \
  GRADPROBE_ABI_FIELD(DescriptorV5, p2p.parent_group, layout::p2p_parentGroup);                \
  GRADPROBE_ABI_FIELD(DescriptorV5, proxy_op.pid, layout::proxyOp_pid)

}  // namespace gradprobe
