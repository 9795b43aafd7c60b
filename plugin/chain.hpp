// A second profiler plugin behind gradprobe (GRADPROBE_CHAIN): it gets the events that it would get if NCCL had loaded
// it alone, with handles and parents of its own, in the descriptor layout of the struct version that NCCL uses.
//
// NCCL holds one handle for each event, so where the chained plugin has one, NCCL gets the number of a pair:
// gradprobe's handle and the chained plugin's. Pairs lie in a ring: one is used again only after its event has stopped
// and a whole round of others has begun since, because NCCL names events as parents after their stop; captured API
// calls keep theirs, since every replay may name them. A number whose pair is another event's by now is ignored, as are
// those of a finalized communicator.
//
// Threads: everything may be called from any thread. The chained plugin's time, locks, exceptions and
// crashes are its own, as they are without gradprobe.
#pragma once

#include <cstdint>

#include "handle.hpp"
#include "log.hpp"
#include "nccl_types.hpp"

namespace gradprobe::chain {

// Calls the init function of the chained plugin's struct with the arguments of the version in use. Refers to the
// callable it is made from.
class CallInit {
 public:
  template <typename Callable>
  CallInit(const Callable& callable)
      : callable_(&callable), call_([](const void* c, void (*init)(), void** context, int* mask) {
          return (*static_cast<const Callable*>(c))(init, context, mask);
        }) {}
  nccl::Result operator()(void (*init)(), void** context, int* mask) const {
    return call_(callable_, init, context, mask);
  }

 private:
  const void* callable_;
  nccl::Result (*call_)(const void*, void (*)(), void**, int*);
};

// Ends gradprobe's own init, which gave `own` (or null) and asks for `own_mask`: where a chain is set, `*context` and
// `*mask` are those of both plugins. Loads the chained plugin at the first call of the process. A chain that can't be
// used is named in one warning and left out.
void open(int version, void* own, int own_mask, const CallInit& init, NcclLogger logger, void** context, int* mask);

// True for contexts and handles of pairs. Everything else is gradprobe's own or null.
inline bool is_pair(const void* handle) {
  return Handle(handle).type() == HandleType::chained;
}

// What the two plugins know an event or a context by.
struct Pair {
  void* own = nullptr;
  void* chained = nullptr;
};

// The parts of any handle; null ones when it is stale.
Pair parts(void* handle);
// gradprobe's context, null when there is none. `context` is a pair.
void* own_context(void* context);

struct Event {
  std::uint64_t type = 0;
  void* descriptor = nullptr;  // with the chained plugin's parents
  bool captured = false;       // an API call that replays may name as parent
  bool orphan = false;         // has a parent of which the chained plugin knows nothing
};
// Forwards an event of which gradprobe keeps `own` (or null). Returns what NCCL shall keep.
void* start(void* context, const Event& event, void* own);
// `handle` is a pair.
void stop(void* handle);
void record(void* handle, int state, void* arguments);
void finalize(void* context);

// The process's id when the chain was loaded: a proxy may report operations of another process, whose handles mean
// nothing here.
int process_id();

}  // namespace gradprobe::chain
