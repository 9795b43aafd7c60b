// One call interface to a plugin of any struct version.
#pragma once
#include <cstdint>
#include <memory>

#include "fields.h"

namespace standin {

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

// All that a descriptor of any version can tell; an adapter copies what its version has.
struct Event {
  uint64_t type = 0;
  void* parent = nullptr;
  void* parent_group = nullptr;
  int rank = 0;
  const char* comm_name = nullptr;
  uint64_t comm_hash = 0;
  uint64_t sequence = 0;
  const char* func = nullptr;
  int func_number = 0;
  const char* datatype = nullptr;
  int datatype_number = 0;
  int op_number = 0;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  size_t traffic_bytes = 0;
  int root_or_peer = 0;
  uint8_t channels = 0;
  uint8_t warps = 0;
  const char* algo = nullptr;
  int algo_number = 0;
  const char* proto = nullptr;
  int proto_number = 0;
  void* stream = nullptr;
  bool graph_captured = false;
  int group_depth = 0;
  uint8_t channel = 0;
  uint64_t timer = 0;
  bool complete = false;  // CeSync: behind the copies
  int ranks = 0;          // CeSync
  int copies = 0;         // CeBatch
};

struct InitArgs {
  uint64_t comm_hash;
  const char* comm_name;
  int nodes, ranks, rank;
};

class ProfilerAbi {
 public:
  virtual ~ProfilerAbi() = default;
  virtual const char* name() const = 0;
  virtual int init(void** context, int* mask, const InitArgs&) = 0;
  // A version that doesn't know the event's type makes no call. Versions 4 and later then leave *handle as it was.
  virtual void start(void* context, void** handle, const Event&) = 0;
  virtual void stop(void* handle) = 0;
  virtual void record(void* handle, int state, uint64_t timer) = 0;
  virtual void finalize(void* context) = 0;
};

// The newest struct in the opened library that is not newer than `newest`; null when there is none. Versions 1 to 3 get
// the communicator's name and hash in their events only from releases of their time (`names_in_events`).
std::unique_ptr<ProfilerAbi> find_profiler_struct(void* library, int newest, bool names_in_events, int* version);

}  // namespace standin
