#include "formats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace gradprobe::test {
namespace {

using u64 = std::uint64_t;

double decode_fields(const Format& f, u64 bits) {
  const u64 fraction = bits & ((u64{1} << f.fraction_bits) - 1);
  const u64 top = (u64{1} << f.exponent_bits) - 1;
  const u64 exponent = bits >> f.fraction_bits & top;
  const int unit = 1 - f.bias() - static_cast<int>(f.fraction_bits);  // exponent of the smallest subnormal number
  double value;
  if (f.ieee && exponent == top) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (!f.ieee && exponent == top && fraction == (u64{1} << f.fraction_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(fraction), unit);
  } else {
    value =
        std::ldexp(static_cast<double>((u64{1} << f.fraction_bits) + fraction), unit + static_cast<int>(exponent) - 1);
  }
  return bits >> (f.bits() - 1) & 1 ? -value : value;
}

template <Datatype type>
double decode_by_table(u64 bits) {
  static const std::vector<double> table = [] {
    const Format f = format_of(type);
    std::vector<double> values(std::size_t{1} << f.bits());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = decode_fields(f, i);
    return values;
  }();
  return table[bits];
}

}  // namespace

Format format_of(Datatype type) {
  switch (type) {
    case Datatype::f64:
      return {11, 52, true};
    case Datatype::f32:
      return {8, 23, true};
    case Datatype::f16:
      return {5, 10, true};
    case Datatype::bf16:
      return {8, 7, true};
    case Datatype::f8e4m3:
      return {4, 3, false};
    case Datatype::f8e5m2:
      return {5, 2, true};
    default:
      throw std::invalid_argument("not a floating-point datatype");
  }
}

double decode(Datatype type, u64 bits) {
  switch (type) {
    case Datatype::f64:
      return std::bit_cast<double>(bits);
    case Datatype::f32:
      return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    case Datatype::f16:
      return decode_by_table<Datatype::f16>(bits);
    case Datatype::bf16:
      return decode_by_table<Datatype::bf16>(bits);
    case Datatype::f8e4m3:
      return decode_by_table<Datatype::f8e4m3>(bits);
    default:
      return decode_by_table<Datatype::f8e5m2>(bits);
  }
}

u64 encode(Datatype type, double value) {
  const Format f = format_of(type);
  const u64 sign = std::signbit(value) ? sign_bit(type) : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(magnitude)) return sign | nan_bits(type);
  u64 bits = 0;
  if (std::isinf(magnitude)) {
    bits = largest_bits(type) + 1;
  } else if (magnitude != 0) {
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
    const int field = std::max(exponent - 1 + f.bias(), 1);
    const double units = std::nearbyint(std::ldexp(magnitude, f.bias() + static_cast<int>(f.fraction_bits) - field));
    // Subnormal numbers have the field 0, and a fraction that rounds up to the next power of two carries into the
    // exponent: both by adding.
    bits = (static_cast<u64>(field - 1) << f.fraction_bits) + static_cast<u64>(units);
  }
  return sign | std::min(bits, largest_bits(type) + 1);
}

u64 sign_bit(Datatype type) {
  return u64{1} << (format_of(type).bits() - 1);
}

u64 fraction_mask(Datatype type) {
  return (u64{1} << format_of(type).fraction_bits) - 1;
}

u64 largest_bits(Datatype type) {
  const Format f = format_of(type);
  const u64 last = sign_bit(type) - 1;
  return f.ieee ? last - (u64{1} << f.fraction_bits) : last - 1;
}

u64 nan_bits(Datatype type) {
  const Format f = format_of(type);
  return f.ieee ? infinity_bits(type) | u64{1} << (f.fraction_bits - 1) : sign_bit(type) - 1;
}

bool has_infinity(Datatype type) {
  return format_of(type).ieee;
}

u64 infinity_bits(Datatype type) {
  if (!has_infinity(type)) throw std::invalid_argument("this datatype has no infinity");
  return largest_bits(type) + 1;
}

std::vector<u64> nonfinite_bits(Datatype type) {
  const u64 sign = sign_bit(type), nan = nan_bits(type);
  if (!has_infinity(type)) return {nan, sign | nan};
  const u64 infinity = infinity_bits(type);
  return {nan, sign | nan, infinity | 1, sign | infinity | 1, sign - 1, infinity, sign | infinity};
}

}  // namespace gradprobe::test
