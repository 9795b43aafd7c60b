// One call of NCCL as a mode asks for it, and the output that it must leave. Inputs and outputs follow from the seed
// alone, so each rank knows those of the others.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ledger.hpp"
#include "values.hpp"

namespace gradprobe::real {

// exchange: a send to the next rank and a receive from the one before, in a group of their own. It is no collective:
// NCCL doesn't number it, and it may have no record.
enum class Function { all_reduce, reduce_scatter, reduce, all_gather, broadcast, exchange };
const char* name(Function function);

struct Spec {
  Function function = Function::all_reduce;
  ncclDataType_t type = ncclFloat32;
  std::size_t count = 0;  // as NCCL is told
  ncclRedOp_t op = ncclSum;
  int root = 0;
  int stream = 0;
  bool in_place = true;
  bool special = false;  // NaN and infinite elements on some of the ranks
  std::string comm = "world";
};

// A call as one rank of a communicator makes it.
struct Call {
  Spec spec;
  std::string mode;
  int rank = 0, ranks = 0;
  std::uint64_t key = 0;         // of seed, communicator and number of the call: the same on all ranks
  std::uint64_t op = 0;          // collectives before it on the communicator
  std::uint32_t generation = 0;  // of the input: a graph's is replaced between its replays
  bool captured = false, aborted = false;
  std::uint32_t replays = 0;  // noted so far

  std::size_t input_elements() const;
  std::size_t output_elements() const;  // on this rank
  std::size_t input_bytes() const { return input_elements() * bytes_of(spec.type); }
  std::size_t output_bytes() const { return output_elements() * bytes_of(spec.type); }
  bool is_collective() const { return spec.function != Function::exchange; }
};

Bytes input_of(const Call& call, int rank);

// Throws std::runtime_error where `output` is not what the collective must leave, up to rounding.
void check_output(const Call& call, const Bytes& output);

// What a ring file should say of the call. `output`: null when nobody knows it.
LedgerCall ledger_entry(const Call& call, std::uint32_t replay, const Bytes* output);

}  // namespace gradprobe::real
