// NCCL's public C interface as far as the preload library interposes it: types and signatures as ABI, from NCCL's
// public headers of releases 2.8 to 2.30. Enumerations are int there; numbers of newer releases extend the older ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl_types.hpp"

namespace gradprobe::nccl {

struct Comm;    // opaque
struct Stream;  // CUstream_st

inline constexpr int kInternalError = 3;
inline constexpr int kInvalidUsage = 5;
inline constexpr int kInProgress = 7;  // since 2.14: of communicators that don't block

// ncclUniqueId, passed by value.
struct UniqueId {
  char internal[128];
};
static_assert(sizeof(UniqueId) == 128);

// The fields of ncclConfig_t up to the communicator's name, which is there since 2.27. `size` says how much of it
// the caller has.
struct CommConfig {
  std::size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char* net_name;
  int split_share, traffic_class;
  const char* comm_name;
};
static_assert(offsetof(CommConfig, comm_name) == 48);
inline constexpr unsigned int kConfigMagic = 0xcafebeef;

// Since which release a function exists is said where it isn't 2.8.
using AllReduce = int (*)(const void*, void*, std::size_t, int, int, Comm*, Stream*);
using ReduceScatter = AllReduce;
using AllGather = int (*)(const void*, void*, std::size_t, int, Comm*, Stream*);
using Reduce = int (*)(const void*, void*, std::size_t, int, int, int, Comm*, Stream*);
using Broadcast = int (*)(const void*, void*, std::size_t, int, int, Comm*, Stream*);
using Bcast = int (*)(void*, std::size_t, int, int, Comm*, Stream*);

using GroupStart = int (*)();
using GroupEnd = int (*)();
using GroupSimulateEnd = int (*)(void*);  // 2.22

using CommInitRank = int (*)(Comm**, int, UniqueId, int);
using CommInitRankConfig = int (*)(Comm**, int, UniqueId, int, CommConfig*);          // 2.14
using CommInitRankScalable = int (*)(Comm**, int, int, int, UniqueId*, CommConfig*);  // 2.23
using CommInitAll = int (*)(Comm**, int, const int*);
using CommSplit = int (*)(Comm*, int, int, Comm**, CommConfig*);         // 2.18
using CommShrink = int (*)(Comm*, int*, int, Comm**, CommConfig*, int);  // 2.27
using CommEnd = int (*)(Comm*);          // ncclCommFinalize (2.14), ncclCommDestroy, ncclCommAbort
using CommRevoke = int (*)(Comm*, int);  // 2.29

using CommQuery = int (*)(const Comm*, int*);  // ncclCommUserRank, ncclCommCount, ncclCommCuDevice
using CommGetAsyncError = int (*)(Comm*, int*);
using GetVersion = int (*)(int*);

inline constexpr int kShrinkAbort = 1;  // bit of ncclCommShrink's flags: ends what is running

}  // namespace gradprobe::nccl
