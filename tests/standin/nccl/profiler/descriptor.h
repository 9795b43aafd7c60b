// What the profiler structs 5 (NCCL 2.28), 6 (2.29, 2.30) and 7 (2.31 and later) have in common: each version only adds
// fields behind those of the one before, so a descriptor of version 7 serves plugins of all three.
#pragma once
#include <cstddef>
#include <cstdint>

namespace standin {

using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

enum EventType : uint64_t {
  kGroup = 1,
  kColl = 2,
  kP2p = 4,
  kProxyOp = 8,
  kProxyStep = 16,
  kProxyCtrl = 32,
  kKernelCh = 64,
  kNetPlugin = 128,
  kGroupApi = 256,
  kCollApi = 512,
  kP2pApi = 1024,
  kKernelLaunch = 2048,
  kCeColl = 4096,
  kCeSync = 8192,
  kCeBatch = 16384,
};
enum EventState : int { kKernelChStop = 22, kGroupStartApiStop = 23, kGroupEndApiStart = 24 };

struct EventDescr {
  uint64_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
      void* parentGroup;
      const char* kernelVariant;  // from here on: version 7
      bool isSymColl;
      uint64_t userTag;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void* parentGroup;
      uint64_t userTag;  // version 7
    } p2p;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
    struct {
      bool graphCaptured;
      int groupDepth;
    } groupApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graphCaptured;
      uint64_t userTag;  // version 7
    } collApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool graphCaptured;
      uint64_t userTag;  // version 7
    } p2pApi;
    struct {
      void* stream;
    } kernelLaunch;
    struct {  // version 6, as all below
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      const char* syncStrategy;
      bool intraBatchSync;
      uint32_t batchSize;
      uint32_t numBatches;
      uint32_t ceSeqNum;
      void* stream;
      uint64_t userTag;  // version 7
    } ceColl;
    struct {
      bool isComplete;
      int nRanks;
    } ceCollSync;
    struct {
      int numOps;
      size_t totalBytes;
      bool useIntraSync;
    } ceCollBatch;
  };
};

// The last field of each event. Comparing with the real library (tests/real_nccl/order) proves those between.
#define PROFILER_FIELD(field, offset, size) \
  static_assert(offsetof(EventDescr, field) == (offset) && sizeof(EventDescr::field) == (size))
static_assert(sizeof(EventDescr) == 136);
PROFILER_FIELD(type, 0, 8);
PROFILER_FIELD(parentObj, 8, 8);
PROFILER_FIELD(rank, 16, 4);
PROFILER_FIELD(groupApi.groupDepth, 28, 4);
PROFILER_FIELD(collApi.userTag, 72, 8);
PROFILER_FIELD(p2pApi.userTag, 64, 8);
PROFILER_FIELD(kernelLaunch.stream, 24, 8);
PROFILER_FIELD(coll.userTag, 128, 8);
PROFILER_FIELD(p2p.userTag, 72, 8);
PROFILER_FIELD(kernelCh.pTimer, 32, 8);
PROFILER_FIELD(ceColl.userTag, 112, 8);
PROFILER_FIELD(ceCollSync.nRanks, 28, 4);
PROFILER_FIELD(ceCollBatch.useIntraSync, 40, 1);
#undef PROFILER_FIELD

union StateArgs {
  uint64_t pTimer;
};
static_assert(sizeof(StateArgs) == 8);

struct ProfilerStruct {
  const char* name;
  int (*init)(void** context, uint64_t commId, int* eventMask, const char* commName, int nNodes, int nRanks, int rank,
              Logger logger);
  int (*startEvent)(void* context, void** handle, EventDescr* event);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, StateArgs* args);
  int (*finalize)(void* context);
};
static_assert(sizeof(ProfilerStruct) == 48 && offsetof(ProfilerStruct, startEvent) == 16 &&
              offsetof(ProfilerStruct, finalize) == 40);

}  // namespace standin
