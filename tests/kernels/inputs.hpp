// Inputs for the kernel tests.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "elements.hpp"
#include "formats.hpp"

namespace gradprobe::test {

// -8 ... 8: all sums are exact in any order, for every datatype and up to millions of elements.
inline Elements small_integers(Datatype type, std::size_t n, std::uint32_t seed) {
  std::array<std::uint64_t, 17> values;
  for (int i = 0; i < 17; ++i) values[static_cast<std::size_t>(i)] = encode(type, i - 8);
  std::mt19937 random(seed);
  Elements elements(type, n);
  for (std::size_t i = 0; i < n; ++i) elements.set(i, values[random() % 17]);
  return elements;
}

template <typename Draw>
Elements drawn(Datatype type, std::size_t n, Draw draw) {
  Elements elements(type, n);
  for (std::size_t i = 0; i < n; ++i) elements.set(i, encode(type, draw()));
  return elements;
}

inline Elements gaussian(Datatype type, std::size_t n, std::uint32_t seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  return drawn(type, n, [&] { return normal(random); });
}

// Magnitudes from 2^low to 2^high, evenly in the exponent, either sign.
inline Elements log_uniform(Datatype type, std::size_t n, std::uint32_t seed, double low, double high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(low, high);
  return drawn(type, n, [&] { return (random() & 1 ? -1 : 1) * std::exp2(exponent(random)); });
}

// Exponents of base 2 between which log_uniform() leaves no number out and overflows nowhere, for a test that wants a
// wide range of any type: from the smallest subnormal numbers up to the sketch's limit.
inline std::pair<double, double> wide_range(Datatype type) {
  switch (type) {
    case Datatype::f64:
      return {-1070, 99};
    case Datatype::f32:
      return {-148, 99};
    case Datatype::bf16:
      return {-132, 99};
    case Datatype::f16:
      return {-24, 15.9};
    case Datatype::f8e4m3:
      return {-9, 8.7};
    default:
      return {-16, 15.7};
  }
}

// All misalignments of a bucket's base, in bytes.
inline std::vector<std::uint32_t> offsets(Datatype type) {
  std::vector<std::uint32_t> all(16 / element_bytes(type));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i) * element_bytes(type);
  return all;
}

inline std::string describe(Datatype type, std::size_t n, std::uint32_t k, std::uint32_t ctas, std::uint32_t offset) {
  return std::string(name(type)) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
         " ctas=" + std::to_string(ctas) + " offset=" + std::to_string(offset);
}

}  // namespace gradprobe::test
