// What a buffer holds: random elements of every datatype that the tests use, and what is true of them in float64.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradprobe::real {

using Bytes = std::vector<unsigned char>;

const char* name(ncclDataType_t type);  // as in ring files: f32, bf16, ...
std::size_t bytes_of(ncclDataType_t type);
bool is_floating(ncclDataType_t type);
// Distance between 1 and the next number.
double epsilon(ncclDataType_t type);

// Mixes numbers into one that has nothing to do with them.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b);
std::uint64_t mixed(const std::string& text);

// Elements that follow from `key` alone. Magnitudes of floating-point ones lie between 2^-7 and 2, so that no sum of a
// few overflows; integers are small. With `special` some elements are NaN or infinite.
Bytes random_values(std::uint64_t key, ncclDataType_t type, std::size_t count, bool special);

std::vector<double> decoded(const Bytes& bytes, ncclDataType_t type);

// The definitions of docs/FORMAT.md, in (more than) float64.
struct Facts {
  static constexpr std::uint64_t kNone = UINT64_MAX;
  double sum_squares = 0;  // of the finite elements, as max_abs
  double max_abs = 0;
  std::uint64_t nans = 0, infs = 0;
  std::uint64_t first_nonfinite = kNone;
};
Facts facts_of(const std::vector<double>& values);

// The sum of the buffer's 32-bit words, the last one filled up with zeros.
std::uint64_t fingerprint(const Bytes& bytes);

}  // namespace gradprobe::real
