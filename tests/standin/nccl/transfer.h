// What a collective or point-to-point call asks for, and the arithmetic of its operator.
#pragma once
#include <cstddef>
#include <cstdint>

#include "include/nccl.h"

namespace standin {

// Numbered as in the profiler interface's version 1.
enum class Func : int {
  Broadcast = 0,
  Reduce = 1,
  AllGather = 2,
  ReduceScatter = 3,
  AllReduce = 4,
  SendRecv = 5,
  Send = 6,
  Recv = 7,
};
inline constexpr int kFuncs = 8;
const char* func_name(Func);
const char* type_name(ncclDataType_t);  // as profiler events spell it
const char* short_type_name(ncclDataType_t);
size_t type_size(ncclDataType_t);
const char* operator_name(ncclRedOp_t);

struct Transfer {
  Func func = Func::AllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // of the API call
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // or the peer
};

// out[i] = inputs[0][i] op inputs[1][i] op ..., in that order whatever the number of threads or processes; `ranks` is
// what ncclAvg divides by. 16-bit and 8-bit floats are accumulated as float and rounded once, to nearest even. `out`
// may be one of the inputs.
void reduce(ncclDataType_t, ncclRedOp_t, int ranks, const void* const* inputs, void* out, size_t n);

}  // namespace standin
