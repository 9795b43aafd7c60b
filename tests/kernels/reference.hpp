// What the kernels must compute, in float64 on the host, from the element-index definition of the measures and of the
// sketch alone; nothing here knows of threads, vectors or launches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "elements.hpp"
#include "formats.hpp"

namespace gradprobe::test {

// Elements beyond this magnitude are left out of the sketch.
inline constexpr double kSketchLimit = 0x1p100;

struct Reference {
  double sum_squares = 0;  // over the finite elements, as is max_abs
  double max_abs = 0;
  std::uint64_t nan_count = 0, inf_count = 0, zero_count = 0;
  std::uint64_t first_nonfinite = kNone;
  std::vector<double> sketch;      // k values
  std::vector<double> magnitudes;  // sum of |x| that went into each: the scale of its rounding error
  std::uint64_t count = 0;
};

// Where an element goes in a sketch of k floats, and its sign.
struct SketchPlace {
  std::uint32_t index;
  bool negative;
};
class SketchMap {
 public:
  SketchMap(std::uint32_t k, std::uint64_t run_key);
  SketchPlace operator()(std::uint64_t element) const;

 private:
  std::uint32_t k_;
  std::array<std::uint32_t, 4> keys_;
};

Reference measure(const Elements& elements, std::uint32_t k, std::uint64_t run_key);

// The same for `count` elements that are +0 but for the planted ones.
struct Planted {
  std::uint64_t index;
  std::uint64_t bits;
};
Reference measure_sparse(Datatype type, std::uint64_t count, std::span<const Planted> planted, std::uint32_t k,
                         std::uint64_t run_key);

// The sum modulo 2^64 of the buffer's little-endian 32-bit words, the last filled up with zeros.
std::uint64_t fingerprint(std::span<const std::byte> bytes);

// The key of a run, from the definition.
std::uint64_t run_key_reference(std::uint64_t key, std::uint32_t run);

}  // namespace gradprobe::test
