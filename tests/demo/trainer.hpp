// One rank's process: trains and ends.
#pragma once

#include "options.hpp"
#include "shared_state.hpp"

namespace gradprobe::demo {

// Exit statuses of a rank's process.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // it has said why
inline constexpr int kExitPeerLost = 3;  // ended because another rank did

int run_rank(const Options& options, int rank, SharedState& shared);

}  // namespace gradprobe::demo
