// The number formats that are measured, from their published definitions (IEEE 754-2019; bfloat16: its upper half of a
// binary32; OCP 8-bit Floating Point Specification 1.0): bits to numbers and back, by arithmetic alone.
#pragma once

#include <cstdint>
#include <vector>

#include "gradprobe/ring_format.hpp"

namespace gradprobe::test {

inline constexpr Datatype kTypes[] = {Datatype::f64,  Datatype::f32,    Datatype::f16,
                                      Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2};

// Sign, exponent and fraction, from the highest bit down.
struct Format {
  std::uint32_t exponent_bits;
  std::uint32_t fraction_bits;
  bool ieee;  // the largest exponent means infinities and NaN; e4m3: only its largest fraction is NaN, none is infinite

  std::uint32_t bits() const { return 1 + exponent_bits + fraction_bits; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
Format format_of(Datatype type);

// `bits` as stored, in the low bits.
double decode(Datatype type, std::uint64_t bits);
// The nearest representable number, ties to the even fraction; what is too large becomes infinite, in e4m3 NaN.
std::uint64_t encode(Datatype type, double value);

std::uint64_t sign_bit(Datatype type);
std::uint64_t largest_bits(Datatype type);   // of the finite numbers
std::uint64_t fraction_mask(Datatype type);  // the largest subnormal number
std::uint64_t nan_bits(Datatype type);       // quiet, where there are several kinds
std::uint64_t infinity_bits(Datatype type);  // throws for e4m3
bool has_infinity(Datatype type);
// NaN of every kind (quiet, signalling, either sign) and the infinities that the type has.
std::vector<std::uint64_t> nonfinite_bits(Datatype type);

}  // namespace gradprobe::test
