// Profiler struct version 4 (2.27: communicator name and identity moved from the events to init).
#pragma once
#include "fields.h"

namespace standin::profiler_v4 {

struct EventDescr {
  uint8_t type;
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
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
    } p2p;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
  };
};
static_assert(sizeof(EventDescr) == 104);
PROFILER_FIELD(EventDescr, type, 0, 1);
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
PROFILER_FIELD(EventDescr, p2p.func, 24, 8);
PROFILER_FIELD(EventDescr, p2p.buff, 32, 8);
PROFILER_FIELD(EventDescr, p2p.datatype, 40, 8);
PROFILER_FIELD(EventDescr, p2p.count, 48, 8);
PROFILER_FIELD(EventDescr, p2p.peer, 56, 4);
PROFILER_FIELD(EventDescr, coll.nChannels, 80, 1);
PROFILER_FIELD(EventDescr, kernelCh.channelId, 24, 1);
PROFILER_FIELD(EventDescr, kernelCh.pTimer, 32, 8);
PROFILER_FIELD(EventDescr, p2p.nChannels, 60, 1);

union StateArgs {
  uint64_t pTimer;
};
static_assert(sizeof(StateArgs) == 8);

struct Profiler {
  const char* name;
  int (*init)(void** context, int* eventMask, const char* commName, uint64_t commHash, int nNodes, int nRanks, int rank,
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

}  // namespace standin::profiler_v4
