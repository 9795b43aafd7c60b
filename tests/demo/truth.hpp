// What the host itself finds in every all-reduce's input, for tests to hold against the rings: one JSON object a line
// in DIR/rank<R>.jsonl. Members: op (ordinal of the NCCL call on the communicator, from 0), step, dtype, count, norm
// (float64, over the finite elements), sum_squares, nan, inf, first_nonfinite (or null), max_abs; for a single element
// also value (a string when not finite); with --truth-buckets offset, where its bytes begin in DIR/rank<R>.bin.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "options.hpp"

namespace gradprobe::demo {

class TruthWriter {
 public:
  // Throws std::runtime_error when the files can't be created.
  TruthWriter(const std::string& folder, int rank, bool buckets);

  void add(std::uint64_t op, int step, BucketType type, const void* data, int count);

 private:
  std::string file_;
  std::ofstream lines_;
  std::ofstream bytes_;
  bool buckets_;
  std::uint64_t offset_ = 0;
};

// Value of a 16-bit float.
double bf16_value(std::uint16_t bits);
double f16_value(std::uint16_t bits);

}  // namespace gradprobe::demo
