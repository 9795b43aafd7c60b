// What the kernels must compute, in float64 on the host, from the element-index definition of the measures and of the
// sketch alone (at the top of kernels/sketch_map.cuh); nothing here knows of threads, vectors or launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gradprobe/ring_format.hpp"

namespace gradprobe::test {

// One element's bits as stored (the low bits for 16-bit types) and the number they mean.
double decode(Datatype type, std::uint32_t bits);
// The nearest representable bits (f32, bf16, f16); exact for small integers.
std::uint32_t encode(Datatype type, double value);

struct Reference {
  double sum_squares = 0;
  double max_abs = 0;
  std::uint64_t nan_count = 0, inf_count = 0, zero_count = 0;
  std::uint64_t first_nonfinite = kNone;
  std::vector<double> sketch;      // k values
  std::vector<double> magnitudes;  // sum of |x| that went into each: the scale of its rounding error
};

Reference measure(Datatype type, std::span<const std::uint32_t> bits, std::uint32_t k, std::uint64_t run_key);

// The key of a run, and mix64, from the definition.
std::uint64_t run_key_reference(std::uint64_t key, std::uint32_t run);

}  // namespace gradprobe::test
