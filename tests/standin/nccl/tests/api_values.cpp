#include "api_values.h"

#include <nccl.h>

#include <cstddef>
#include <cstdio>
#include <type_traits>

// API_VALUES names the function to define. Wrong signatures don't compile.
ApiValues API_VALUES() {
  ApiValues v;
#define VALUE(name) v[#name] = static_cast<long long>(name)
#define FIELD(type, field)                                             \
  v[#type "." #field] = static_cast<long long>(offsetof(type, field)); \
  v["sizeof " #type "." #field] = static_cast<long long>(sizeof(type::field))
#define FUNCTION(name, ...) static_assert(std::is_same_v<decltype(&name), __VA_ARGS__>)
  VALUE(NCCL_UNIQUE_ID_BYTES);
  VALUE(sizeof(ncclUniqueId));
  VALUE(NCCL_VERSION(2, 8, 4));
  VALUE(NCCL_VERSION(2, 28, 9));
  VALUE(NCCL_CONFIG_UNDEF_INT);
  VALUE(NCCL_SPLIT_NOCOLOR);
  VALUE(ncclSuccess), VALUE(ncclUnhandledCudaError), VALUE(ncclSystemError), VALUE(ncclInternalError);
  VALUE(ncclInvalidArgument), VALUE(ncclInvalidUsage), VALUE(ncclRemoteError), VALUE(ncclInProgress);
  VALUE(ncclInt8), VALUE(ncclChar), VALUE(ncclUint8), VALUE(ncclInt32), VALUE(ncclInt), VALUE(ncclUint32);
  VALUE(ncclInt64), VALUE(ncclUint64), VALUE(ncclFloat16), VALUE(ncclHalf), VALUE(ncclFloat32), VALUE(ncclFloat);
  VALUE(ncclFloat64), VALUE(ncclDouble), VALUE(ncclBfloat16), VALUE(ncclFloat8e4m3), VALUE(ncclFloat8e5m2);
  VALUE(ncclSum), VALUE(ncclProd), VALUE(ncclMax), VALUE(ncclMin), VALUE(ncclAvg), VALUE(ncclNumOps);
  VALUE(ncclMaxRedOp), VALUE(sizeof(ncclRedOp_t)), VALUE(sizeof(ncclDataType_t)), VALUE(sizeof(ncclResult_t));
  VALUE(sizeof(ncclSimInfo_t));
  FIELD(ncclConfig_t, size);
  FIELD(ncclConfig_t, magic);
  FIELD(ncclConfig_t, version);
  FIELD(ncclConfig_t, blocking);
  FIELD(ncclConfig_t, cgaClusterSize);
  FIELD(ncclConfig_t, minCTAs);
  FIELD(ncclConfig_t, maxCTAs);
  FIELD(ncclConfig_t, netName);
  FIELD(ncclConfig_t, splitShare);
  FIELD(ncclConfig_t, trafficClass);
  FIELD(ncclConfig_t, commName);
  FIELD(ncclSimInfo_t, size);
  FIELD(ncclSimInfo_t, magic);
  FIELD(ncclSimInfo_t, version);
  FIELD(ncclSimInfo_t, estimatedTime);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  v["config.magic"] = config.magic;
  v["config.blocking"] = config.blocking;
  v["config.splitShare"] = config.splitShare;
  v["config.commName"] = config.commName != nullptr;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  v["info.magic"] = info.magic;
  v["info.estimatedTime"] = static_cast<long long>(info.estimatedTime);
#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
  VALUE(sizeof(ncclConfig_t));
  FIELD(ncclConfig_t, collnetEnable);
  FIELD(ncclConfig_t, CTAPolicy);
  FIELD(ncclConfig_t, shrinkShare);
  FIELD(ncclConfig_t, nvlsCTAs);
  FIELD(ncclConfig_t, nChannelsPerNetPeer);
  FIELD(ncclConfig_t, nvlinkCentricSched);
#endif

  using Result = ncclResult_t;
  using Type = ncclDataType_t;
  using Op = ncclRedOp_t;
  using Comm = ncclComm_t;
  using Stream = cudaStream_t;
  FUNCTION(ncclGetVersion, Result(*)(int*));
  FUNCTION(ncclGetUniqueId, Result(*)(ncclUniqueId*));
  FUNCTION(ncclCommInitRank, Result(*)(Comm*, int, ncclUniqueId, int));
  FUNCTION(ncclCommInitAll, Result(*)(Comm*, int, const int*));
  FUNCTION(ncclCommInitRankConfig, Result(*)(Comm*, int, ncclUniqueId, int, ncclConfig_t*));
  FUNCTION(ncclCommSplit, Result(*)(Comm, int, int, Comm*, ncclConfig_t*));
  FUNCTION(ncclCommFinalize, Result(*)(Comm));
  FUNCTION(ncclCommDestroy, Result(*)(Comm));
  FUNCTION(ncclCommAbort, Result(*)(Comm));
  FUNCTION(ncclCommGetAsyncError, Result(*)(Comm, Result*));
  FUNCTION(ncclCommCount, Result(*)(const Comm, int*));
  FUNCTION(ncclCommCuDevice, Result(*)(const Comm, int*));
  FUNCTION(ncclCommUserRank, Result(*)(const Comm, int*));
  FUNCTION(ncclGetErrorString, const char* (*)(Result));
  FUNCTION(ncclGetLastError, const char* (*)(Comm));
  FUNCTION(ncclGroupStart, Result(*)());
  FUNCTION(ncclGroupEnd, Result(*)());
  FUNCTION(ncclGroupSimulateEnd, Result(*)(ncclSimInfo_t*));
  FUNCTION(ncclAllReduce, Result(*)(const void*, void*, size_t, Type, Op, Comm, Stream));
  FUNCTION(ncclReduceScatter, Result(*)(const void*, void*, size_t, Type, Op, Comm, Stream));
  FUNCTION(ncclAllGather, Result(*)(const void*, void*, size_t, Type, Comm, Stream));
  FUNCTION(ncclBroadcast, Result(*)(const void*, void*, size_t, Type, int, Comm, Stream));
  FUNCTION(ncclBcast, Result(*)(void*, size_t, Type, int, Comm, Stream));
  FUNCTION(ncclReduce, Result(*)(const void*, void*, size_t, Type, Op, int, Comm, Stream));
  FUNCTION(ncclSend, Result(*)(const void*, size_t, Type, int, Comm, Stream));
  FUNCTION(ncclRecv, Result(*)(void*, size_t, Type, int, Comm, Stream));
  FUNCTION(ncclMemAlloc, Result(*)(void**, size_t));
  FUNCTION(ncclMemFree, Result(*)(void*));
  return v;
}
