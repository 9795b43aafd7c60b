// Profiler struct version 3 (2.26: kernel channel events).
#pragma once
#include "fields.h"

namespace standin::profiler_v3 {

struct EventDescr {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash;
      uint64_t seqNumber;
      const char* func;
      const void* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nMaxChannels;
      uint8_t nWarps;
      const char* algo;
      const char* proto;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
    } p2p;
    struct {
      uint8_t channelId;
    } kernelCh;
  };
};
static_assert(sizeof(EventDescr) == 120);
PROFILER_FIELD(EventDescr, type, 0, 1);
PROFILER_FIELD(EventDescr, parentObj, 8, 8);
PROFILER_FIELD(EventDescr, rank, 16, 4);
PROFILER_FIELD(EventDescr, coll.name, 24, 8);
PROFILER_FIELD(EventDescr, coll.commHash, 32, 8);
PROFILER_FIELD(EventDescr, coll.seqNumber, 40, 8);
PROFILER_FIELD(EventDescr, coll.func, 48, 8);
PROFILER_FIELD(EventDescr, coll.sendBuff, 56, 8);
PROFILER_FIELD(EventDescr, coll.recvBuff, 64, 8);
PROFILER_FIELD(EventDescr, coll.count, 72, 8);
PROFILER_FIELD(EventDescr, coll.root, 80, 4);
PROFILER_FIELD(EventDescr, coll.datatype, 88, 8);
PROFILER_FIELD(EventDescr, coll.nWarps, 97, 1);
PROFILER_FIELD(EventDescr, coll.algo, 104, 8);
PROFILER_FIELD(EventDescr, coll.proto, 112, 8);
PROFILER_FIELD(EventDescr, coll.nMaxChannels, 96, 1);
PROFILER_FIELD(EventDescr, p2p.func, 40, 8);
PROFILER_FIELD(EventDescr, p2p.buff, 48, 8);
PROFILER_FIELD(EventDescr, p2p.datatype, 56, 8);
PROFILER_FIELD(EventDescr, p2p.count, 64, 8);
PROFILER_FIELD(EventDescr, p2p.peer, 72, 4);
PROFILER_FIELD(EventDescr, kernelCh.channelId, 24, 1);

// Only proxy events have state arguments; the stand-in makes none.
struct StateArgs {
  uint64_t unused[2];
};
static_assert(sizeof(StateArgs) == 16);

struct Profiler {
  const char* name;
  int (*init)(void** context, int* eventMask);
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

}  // namespace standin::profiler_v3
