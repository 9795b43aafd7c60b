// Everything that is set through the environment, read anew for each communicator.
//
// name                            default  meaning
// STANDIN_NCCL_VERSION            2.28.9   which release to behave as, from 2.8 on, as major.minor[.patch]: what
//                                          ncclGetVersion says, which profiler struct is the newest known (2.28: v5,
//                                          2.29 and 2.30: v6, later v7; before 2.28 no plugin is loaded), which
//                                          profiler calls are made, when a communicator made in a group is stored.
//                                          (Functions that a release doesn't have are there all the same; libraries
//                                          without them: CMakeLists.txt.)
// STANDIN_NCCL_NODES              1        number of nodes told to the profiler's init; above 1 ranks are taken to talk
//                                          over a network, so every launch has proxy work
// STANDIN_NCCL_HOST_CALLBACK      0        1: every launch has proxy work, as with a network: Group and Coll events
//                                          come from a CUDA host function where the real library does so (a captured
//                                          launch, CUDA_LAUNCH_BLOCKING, or a captured graph's host function still
//                                          running). 2: from a host function for every launch
// STANDIN_NCCL_MAX_COLLS_PER_LAUNCH        a group's collectives are split into launches of at most so many; 0 (as
//                                 0        unset): no limit
// STANDIN_NCCL_SYMMETRIC          0        N > 0: all-reduces, all-gathers and reduce-scatters whose input has at least
//                                          N bytes run as symmetric kernels: launched first, and before 2.31
//                                          with no events but those of the API call
// STANDIN_NCCL_COPY_ENGINE        0        N > 0: all-gathers whose input has at least N bytes run on copy engines: a
//                                          CeColl event (2.29 and later) instead of KernelLaunch, Group and Coll
// STANDIN_NCCL_FLIP                        rank:op:element:bit: in that rank's result of the op-th collective of each
//                                          communicator (from 0, in the order of the calls) one bit is wrong
// STANDIN_NCCL_CHUNK_KIB          0        size of a rank's exchange buffer; 0: chosen from the number of ranks
// STANDIN_NCCL_JOIN_TIMEOUT       120      seconds to wait for the other ranks of a new communicator
//
// As in the real library: NCCL_PROFILER_PLUGIN, NCCL_DEBUG, NCCL_DEBUG_FILE, CUDA_LAUNCH_BLOCKING,
// NCCL_ALLGATHERV_ENABLE (from 2.29 on ncclBroadcast makes no launch or Coll events unless this is 0).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace standin {

struct Flip {
  int rank = 0;
  uint64_t op = 0;
  size_t element = 0;
  unsigned bit = 0;  // of the element, 0: the lowest
};

struct Settings {
  int minor = 28;  // of release 2.minor.patch
  int patch = 9;
  int nodes = 1;
  bool proxy_work = false;
  bool always_host_callback = false;
  bool launch_blocking = false;
  bool allgatherv = true;
  int max_colls_per_launch = 0;
  size_t symmetric_bytes = 0;    // 0: none
  size_t copy_engine_bytes = 0;  // 0: none
  std::optional<Flip> flip;
  size_t chunk_bytes = 0;
  int join_timeout_s = 120;

  int version_code() const { return (minor <= 8 ? 2000 : 20000) + minor * 100 + patch; }
  // A communicator made in a group is stored at the group's end, not at the call.
  bool stores_at_group_end() const { return minor < 14; }
  bool has_copy_engine_events() const { return minor >= 29; }
  bool tells_symmetric_kernels() const { return minor >= 31; }
  // GroupApi, CollApi, P2pApi and KernelLaunch name the communicator's rank; before, 0.
  bool tells_rank_in_api_events() const { return minor >= 32; }
  int newest_profiler_abi() const { return minor < 28 ? 0 : minor == 28 ? 5 : minor < 31 ? 6 : 7; }  // 0: none
};

// False with one line in `error` that names the variable when one has an impossible value.
bool read_settings(Settings* out, std::string* error);

}  // namespace standin
