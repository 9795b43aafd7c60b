// Moves and reduces data between the ranks of a session. Collectives cut the data into chunks of the exchange buffers:
// every rank copies its chunk in, reduces its own slice of it over all ranks, copies the result out.
#pragma once
#include <vector>

#include "session.h"
#include "transfer.h"

namespace standin {

// ncclSuccess, ncclRemoteError (a peer is gone), ncclInvalidUsage (the ranks called different things) or
// ncclInternalError (this rank aborted).
ncclResult_t run_collective(Session*, const Transfer&);

// All sends and receives of a launch, at the same time.
ncclResult_t run_point_to_point(Session*, const std::vector<Transfer>&);

}  // namespace standin
