// ncclGroupStart and ncclGroupEnd: what the calling thread has collected, and how it is carried out at the outermost
// end.
#pragma once
#include <functional>
#include <vector>

#include "comm.h"

namespace standin {

// A step of a communicator's life (init, split, finalize, destroy).
struct LifeJob {
  ncclComm* comm;
  std::function<ncclResult_t()> run;
  bool destroys = false;
};

void group_start();
// Inner ends only count down. The outermost runs everything, or hands it to a thread of its own when the communicators
// are non-blocking. With `simulate` the collected calls are dropped instead of launched.
ncclResult_t group_end(ncclSimInfo_t* simulate = nullptr);
// Remembers a failed call: the group's end returns it and launches nothing.
ncclResult_t group_error(ncclResult_t r);

// Runs now (outside a group) or at the group's end.
ncclResult_t add_life_job(LifeJob job);
// Validates the call and queues it on its communicator; makes its API events.
ncclResult_t enqueue(ncclComm* comm, const char* call, const Transfer&, CUstream stream);

// All queued calls of one set of communicators, on the current thread.
ncclResult_t launch_all(const std::vector<ncclComm*>& comms);

}  // namespace standin
