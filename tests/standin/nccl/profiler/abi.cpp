#include "abi.h"

#include <dlfcn.h>

#include "../log.h"
#include "v1.h"
#include "v2.h"
#include "v3.h"
#include "v4.h"
#include "v5.h"
#include "v6.h"

namespace standin {
namespace {

// Coll and P2p: the fields that every version has.
template <typename Descr>
void copy_task(Descr* d, const Event& e, bool strings) {
  if (e.type == kColl) {
    d->coll.seqNumber = e.sequence;
    d->coll.sendBuff = e.send;
    d->coll.recvBuff = e.recv;
    d->coll.count = e.count;
    d->coll.root = e.root_or_peer;
    d->coll.nWarps = e.warps;
  } else {
    d->p2p.buff = e.recv;
    d->p2p.count = e.count;
    d->p2p.peer = e.root_or_peer;
  }
  if constexpr (requires { d->coll.func = e.func; }) {
    if (strings && e.type == kColl) {
      d->coll.func = e.func;
      d->coll.datatype = e.datatype;
      d->coll.algo = e.algo;
      d->coll.proto = e.proto;
    } else if (strings) {
      d->p2p.func = e.func;
      d->p2p.datatype = e.datatype;
    }
  }
}

template <typename P>
class Adapter : public ProfilerAbi {
 public:
  explicit Adapter(P* plugin) : plugin_(plugin) {}
  const char* name() const override { return plugin_->name; }
  void stop(void* handle) override { plugin_->stopEvent(handle); }
  void finalize(void* context) override { plugin_->finalize(context); }

 protected:
  P* plugin_;
};

template <typename P, typename Descr>
class NamedEvents : public Adapter<P> {  // versions 1 to 3
 public:
  NamedEvents(P* plugin, bool names) : Adapter<P>(plugin), names_(names) {}
  int init(void** context, int* mask, const InitArgs&) override { return this->plugin_->init(context, mask); }
  void record(void*, int, uint64_t) override {}
  void start(void* context, void** handle, const Event& e) override {
    *handle = nullptr;
    constexpr bool has_kernel_ch = requires(Descr d) {
      d.kernelCh;
    };
    Descr d = {};
    d.type = static_cast<uint8_t>(e.type);
    d.parentObj = e.parent;
    d.rank = e.rank;
    if (e.type == kColl || e.type == kP2p) {
      d.parentObj = e.parent_group;
      copy_task(&d, e, true);
      if (e.type == kColl) {
        d.coll.name = names_ ? e.comm_name : nullptr;
        d.coll.commHash = names_ ? e.comm_hash : 0;
        d.coll.nMaxChannels = e.channels;
        if constexpr (requires { d.coll.trafficBytes; }) d.coll.trafficBytes = names_ ? e.traffic_bytes : 0;
      } else {
        d.p2p.name = names_ ? e.comm_name : nullptr;
        d.p2p.commHash = names_ ? e.comm_hash : 0;
      }
      if constexpr (requires { d.coll.op; }) copy_numbers(&d, e);
    } else if (has_kernel_ch && e.type == kKernelCh) {
      if constexpr (has_kernel_ch) d.kernelCh.channelId = e.channel;
    } else if (e.type != kGroup) {
      return;
    }
    this->plugin_->startEvent(context, handle, &d);
  }

 private:
  void copy_numbers(profiler_v1::EventDescr* d, const Event& e) {
    if (e.type == kColl) {
      d->coll.func = static_cast<uint8_t>(e.func_number);
      d->coll.datatype = static_cast<uint8_t>(e.datatype_number);
      d->coll.op = names_ ? static_cast<uint32_t>(e.op_number) : 0;
      d->coll.algo = static_cast<uint8_t>(e.algo_number);
      d->coll.proto = static_cast<uint8_t>(e.proto_number);
    } else {
      d->p2p.func = static_cast<uint8_t>(e.func_number);
      d->p2p.datatype = static_cast<uint8_t>(e.datatype_number);
    }
  }
  bool names_;
};

class V4 : public Adapter<profiler_v4::Profiler> {
 public:
  using Adapter::Adapter;
  int init(void** context, int* mask, const InitArgs& a) override {
    return plugin_->init(context, mask, a.comm_name, a.comm_hash, a.nodes, a.ranks, a.rank, standin_nccl_log);
  }
  void start(void* context, void** handle, const Event& e) override {
    profiler_v4::EventDescr d = {};
    d.type = static_cast<uint8_t>(e.type);
    d.parentObj = e.parent;
    d.rank = e.rank;
    switch (e.type) {
      case kGroup:
        break;
      case kColl:
      case kP2p:
        d.parentObj = e.parent_group;
        copy_task(&d, e, true);
        if (e.type == kColl) d.coll.nChannels = e.channels;
        break;
      case kKernelCh:
        d.kernelCh.channelId = e.channel;
        d.kernelCh.pTimer = e.timer;
        break;
      default:
        return;
    }
    plugin_->startEvent(context, handle, &d);
  }
  void record(void* handle, int state, uint64_t timer) override {
    if (state != kKernelChStop) return;
    profiler_v4::StateArgs args = {timer};
    plugin_->recordEventState(handle, state, &args);
  }
};

// CeColl, CeSync and CeBatch.
template <typename Descr>
void copy_engine(Descr* d, const Event& e) {
  if (e.type == kCeColl) {
    d->ceColl.seqNumber = e.sequence;
    d->ceColl.func = e.func;
    d->ceColl.sendBuff = e.send;
    d->ceColl.recvBuff = e.recv;
    d->ceColl.count = e.count;
    d->ceColl.root = e.root_or_peer;
    d->ceColl.datatype = e.datatype;
    d->ceColl.syncStrategy = "UC";
    d->ceColl.ceSeqNum = static_cast<uint32_t>(e.sequence);
    d->ceColl.stream = e.stream;
  } else if (e.type == kCeSync) {
    d->ceCollSync.isComplete = e.complete;
    d->ceCollSync.nRanks = e.ranks;
  } else if (e.type == kCeBatch) {
    d->ceCollBatch.numOps = e.copies;
    d->ceCollBatch.totalBytes = e.traffic_bytes;
  }
}

template <typename P, typename Descr, typename Args>
class ApiEvents : public Adapter<P> {  // versions 5 and 6
 public:
  using Adapter<P>::Adapter;
  int init(void** context, int* mask, const InitArgs& a) override {
    return this->plugin_->init(context, a.comm_hash, mask, a.comm_name, a.nodes, a.ranks, a.rank, standin_nccl_log);
  }
  void start(void* context, void** handle, const Event& e) override {
    Descr d = {};
    d.type = e.type;
    d.parentObj = e.parent;
    d.rank = e.rank;
    switch (e.type) {
      case kColl:
        copy_task(&d, e, true);
        d.coll.nChannels = e.channels;
        d.coll.parentGroup = e.parent_group;
        break;
      case kP2p:
        copy_task(&d, e, true);
        d.p2p.nChannels = e.channels;
        d.p2p.parentGroup = e.parent_group;
        break;
      case kGroupApi:
        d.groupApi.graphCaptured = e.graph_captured;
        d.groupApi.groupDepth = e.group_depth;
        break;
      case kCollApi:
        d.collApi.func = e.func;
        d.collApi.count = e.count;
        d.collApi.datatype = e.datatype;
        d.collApi.root = e.root_or_peer;
        d.collApi.stream = e.stream;
        d.collApi.graphCaptured = e.graph_captured;
        break;
      case kP2pApi:
        d.p2pApi.func = e.func;
        d.p2pApi.count = e.count;
        d.p2pApi.datatype = e.datatype;
        d.p2pApi.stream = e.stream;
        d.p2pApi.graphCaptured = e.graph_captured;
        break;
      case kKernelLaunch:
        d.kernelLaunch.stream = e.stream;
        break;
      case kKernelCh:
        d.kernelCh.channelId = e.channel;
        d.kernelCh.pTimer = e.timer;
        break;
      default:
        if constexpr (requires { d.ceColl; }) copy_engine(&d, e);
        break;
    }
    this->plugin_->startEvent(context, handle, &d);
  }
  void record(void* handle, int state, uint64_t timer) override {
    Args args = {timer};
    this->plugin_->recordEventState(handle, state, state == kKernelChStop ? &args : nullptr);
  }
};

using V1 = NamedEvents<profiler_v1::Profiler, profiler_v1::EventDescr>;
using V2 = NamedEvents<profiler_v2::Profiler, profiler_v2::EventDescr>;
using V3 = NamedEvents<profiler_v3::Profiler, profiler_v3::EventDescr>;
using V5 = ApiEvents<profiler_v5::Profiler, profiler_v5::EventDescr, profiler_v5::StateArgs>;
using V6 = ApiEvents<profiler_v6::Profiler, profiler_v6::EventDescr, profiler_v6::StateArgs>;

}  // namespace

std::unique_ptr<ProfilerAbi> find_profiler_struct(void* library, int newest, bool names, int* version) {
  static const char* const kSymbols[] = {"ncclProfiler_v1", "ncclProfiler_v2", "ncclProfiler_v3",
                                         "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"};
  for (int v = newest; v >= 1; v--) {
    void* s = dlsym(library, kSymbols[v - 1]);
    if (!s) continue;
    *version = v;
    switch (v) {
      case 1:
        return std::make_unique<V1>(static_cast<profiler_v1::Profiler*>(s), names);
      case 2:
        return std::make_unique<V2>(static_cast<profiler_v2::Profiler*>(s), names);
      case 3:
        return std::make_unique<V3>(static_cast<profiler_v3::Profiler*>(s), names);
      case 4:
        return std::make_unique<V4>(static_cast<profiler_v4::Profiler*>(s));
      case 5:
        return std::make_unique<V5>(static_cast<profiler_v5::Profiler*>(s));
      default:
        return std::make_unique<V6>(static_cast<profiler_v6::Profiler*>(s));
    }
  }
  return nullptr;
}

}  // namespace standin
