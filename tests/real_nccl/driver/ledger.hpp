// The ledger: what each rank's program knows of its calls by itself, as text. The driver writes it, the check compares
// the ring files with it. One line for each call and replay: "NAME=VALUE", separated by blanks.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace gradprobe::real {

// What is true of a buffer.
struct BufferFacts {
  std::uint64_t count = 0;
  double sum_squares = 0, max_abs = 0;
  std::uint64_t nans = 0, infs = 0, first_nonfinite = UINT64_MAX;
  std::uint64_t fingerprint = 0;
  std::string raw;  // of at most 8 elements: their bytes in hexadecimal digits
};

enum class Output { none, known, undone };  // undone: the call was aborted, nobody knows what it left

struct LedgerCall {
  std::string mode, comm, function, datatype;
  std::uint64_t op = 0;
  std::uint32_t replay = 0;
  std::uint64_t count = 0;  // as NCCL was told
  int root = 0, stream = 0;
  bool in_place = false, captured = false;
  BufferFacts input, output;
  Output has_output = Output::none;
};

struct LedgerComm {
  std::string name;
  int rank = 0, ranks = 0;
};

struct Ledger {
  std::vector<LedgerComm> comms;
  std::vector<LedgerCall> calls;
};

class LedgerWriter {
 public:
  explicit LedgerWriter(const std::string& file);
  void write(const LedgerComm& comm);
  void write(const LedgerCall& call);

 private:
  std::ofstream out_;
};

// Throws std::runtime_error with file and line.
Ledger read_ledger(const std::string& file);

}  // namespace gradprobe::real
