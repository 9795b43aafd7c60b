// Inputs for the kernel tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gradprobe/ring_format.hpp"
#include "reference.hpp"

namespace gradprobe::test {

inline constexpr Datatype kTypes[] = {Datatype::f32, Datatype::bf16, Datatype::f16};

// -8 ... 8: all sums are exact in any order, for every datatype and up to millions of elements.
inline std::vector<std::uint32_t> small_integers(Datatype type, std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> bits(n);
  for (auto& b : bits) b = encode(type, static_cast<int>(random() % 17) - 8);
  return bits;
}

inline std::vector<std::uint32_t> gaussian(Datatype type, std::size_t n, std::uint32_t seed, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<std::uint32_t> bits(n);
  for (auto& b : bits) b = encode(type, normal(random));
  return bits;
}

// Magnitudes from 2^low to 2^high, evenly in the exponent, either sign.
inline std::vector<std::uint32_t> log_uniform(Datatype type, std::size_t n, std::uint32_t seed, double low,
                                              double high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(low, high);
  std::vector<std::uint32_t> bits(n);
  for (auto& b : bits) b = encode(type, (random() & 1 ? -1 : 1) * std::exp2(exponent(random)));
  return bits;
}

inline std::uint32_t infinity_bits(Datatype type) {
  return type == Datatype::f32 ? 0x7f800000u : type == Datatype::bf16 ? 0x7f80u : 0x7c00u;
}
inline std::uint32_t sign_bit(Datatype type) {
  return type == Datatype::f32 ? 0x80000000u : 0x8000u;
}
inline std::uint32_t quiet_nan_bits(Datatype type) {
  return infinity_bits(type) | infinity_bits(type) / 2;
}
inline std::uint32_t signalling_nan_bits(Datatype type) {
  return infinity_bits(type) | 1;
}
inline std::uint32_t largest_bits(Datatype type) {
  return infinity_bits(type) - 1;
}

inline std::string describe(Datatype type, std::size_t n, std::uint32_t k, std::uint32_t ctas, std::uint32_t offset) {
  return std::string(name(type)) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
         " ctas=" + std::to_string(ctas) + " offset=" + std::to_string(offset);
}

}  // namespace gradprobe::test
