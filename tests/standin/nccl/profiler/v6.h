// Profiler struct version 6 (2.29 and later: as version 5 for the events that the stand-in makes).
#pragma once
#include "fields.h"

namespace standin::profiler_v6 {

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
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void* parentGroup;
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
    } collApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool graphCaptured;
    } p2pApi;
    struct {
      void* stream;
    } kernelLaunch;
    struct {
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
static_assert(sizeof(EventDescr) == 112);
PROFILER_FIELD(EventDescr, type, 0, 8);
PROFILER_FIELD(EventDescr, parentObj, 8, 8);
PROFILER_FIELD(EventDescr, rank, 16, 4);
PROFILER_FIELD(EventDescr, coll.seqNumber, 24, 8);
PROFILER_FIELD(EventDescr, coll.func, 32, 8);
PROFILER_FIELD(EventDescr, coll.sendBuff, 40, 8);
PROFILER_FIELD(EventDescr, coll.recvBuff, 48, 8);
PROFILER_FIELD(EventDescr, coll.count, 56, 8);
PROFILER_FIELD(EventDescr, coll.root, 64, 4);
PROFILER_FIELD(EventDescr, coll.datatype, 72, 8);
PROFILER_FIELD(EventDescr, coll.nWarps, 81, 1);
PROFILER_FIELD(EventDescr, coll.algo, 88, 8);
PROFILER_FIELD(EventDescr, coll.proto, 96, 8);
PROFILER_FIELD(EventDescr, coll.parentGroup, 104, 8);
PROFILER_FIELD(EventDescr, p2p.func, 24, 8);
PROFILER_FIELD(EventDescr, p2p.buff, 32, 8);
PROFILER_FIELD(EventDescr, p2p.datatype, 40, 8);
PROFILER_FIELD(EventDescr, p2p.count, 48, 8);
PROFILER_FIELD(EventDescr, p2p.peer, 56, 4);
PROFILER_FIELD(EventDescr, p2p.parentGroup, 64, 8);
PROFILER_FIELD(EventDescr, coll.nChannels, 80, 1);
PROFILER_FIELD(EventDescr, kernelCh.channelId, 24, 1);
PROFILER_FIELD(EventDescr, kernelCh.pTimer, 32, 8);
PROFILER_FIELD(EventDescr, p2p.nChannels, 60, 1);
PROFILER_FIELD(EventDescr, groupApi.graphCaptured, 24, 1);
PROFILER_FIELD(EventDescr, groupApi.groupDepth, 28, 4);
PROFILER_FIELD(EventDescr, collApi.func, 24, 8);
PROFILER_FIELD(EventDescr, collApi.count, 32, 8);
PROFILER_FIELD(EventDescr, collApi.datatype, 40, 8);
PROFILER_FIELD(EventDescr, collApi.root, 48, 4);
PROFILER_FIELD(EventDescr, collApi.stream, 56, 8);
PROFILER_FIELD(EventDescr, collApi.graphCaptured, 64, 1);
PROFILER_FIELD(EventDescr, p2pApi.func, 24, 8);
PROFILER_FIELD(EventDescr, p2pApi.count, 32, 8);
PROFILER_FIELD(EventDescr, p2pApi.datatype, 40, 8);
PROFILER_FIELD(EventDescr, p2pApi.stream, 48, 8);
PROFILER_FIELD(EventDescr, p2pApi.graphCaptured, 56, 1);
PROFILER_FIELD(EventDescr, kernelLaunch.stream, 24, 8);
PROFILER_FIELD(EventDescr, ceColl.seqNumber, 24, 8);
PROFILER_FIELD(EventDescr, ceColl.func, 32, 8);
PROFILER_FIELD(EventDescr, ceColl.sendBuff, 40, 8);
PROFILER_FIELD(EventDescr, ceColl.recvBuff, 48, 8);
PROFILER_FIELD(EventDescr, ceColl.count, 56, 8);
PROFILER_FIELD(EventDescr, ceColl.root, 64, 4);
PROFILER_FIELD(EventDescr, ceColl.datatype, 72, 8);
PROFILER_FIELD(EventDescr, ceColl.syncStrategy, 80, 8);
PROFILER_FIELD(EventDescr, ceColl.intraBatchSync, 88, 1);
PROFILER_FIELD(EventDescr, ceColl.batchSize, 92, 4);
PROFILER_FIELD(EventDescr, ceColl.numBatches, 96, 4);
PROFILER_FIELD(EventDescr, ceColl.ceSeqNum, 100, 4);
PROFILER_FIELD(EventDescr, ceColl.stream, 104, 8);
PROFILER_FIELD(EventDescr, ceCollSync.isComplete, 24, 1);
PROFILER_FIELD(EventDescr, ceCollSync.nRanks, 28, 4);
PROFILER_FIELD(EventDescr, ceCollBatch.numOps, 24, 4);
PROFILER_FIELD(EventDescr, ceCollBatch.totalBytes, 32, 8);
PROFILER_FIELD(EventDescr, ceCollBatch.useIntraSync, 40, 1);

union StateArgs {
  uint64_t pTimer;
};
static_assert(sizeof(StateArgs) == 8);

struct Profiler {
  const char* name;
  int (*init)(void** context, uint64_t commId, int* eventMask, const char* commName, int nNodes, int nRanks, int rank,
              Logger logger);
  int (*startEvent)(void* context, void** handle, EventDescr* event);
  int (*stopEvent)(void* handle);
  int (*recordEventState)(void* handle, int state, StateArgs* args);
  int (*finalize)(void* context);
};
static_assert(sizeof(Profiler) == 48);
PROFILER_FIELD(Profiler, name, 0, 8);
PROFILER_FIELD(Profiler, init, 8, 8);
PROFILER_FIELD(Profiler, startEvent, 16, 8);
PROFILER_FIELD(Profiler, stopEvent, 24, 8);
PROFILER_FIELD(Profiler, recordEventState, 32, 8);
PROFILER_FIELD(Profiler, finalize, 40, 8);

}  // namespace standin::profiler_v6
