// Small floating-point formats from their definition, by a table of all values: slow, and independent of the library's
// conversions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace float_reference {

struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // else the top exponent holds numbers and only all-ones is NaN
  bool saturates;     // what is too large becomes the largest value
};
inline constexpr Format kHalf{5, 10, true, false};
inline constexpr Format kBfloat16{8, 7, true, false};
inline constexpr Format kE4m3{4, 3, false, true};
inline constexpr Format kE5m2{5, 2, true, true};

inline double decode(const Format& f, uint32_t bits) {
  int bias = (1 << (f.exponent_bits - 1)) - 1;
  uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  int exponent = static_cast<int>(bits >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  bool negative = bits >> (f.mantissa_bits + f.exponent_bits) & 1;
  double value;
  bool top = exponent == (1 << f.exponent_bits) - 1;
  if (top && f.has_infinity)
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else if (top && mantissa == (1u << f.mantissa_bits) - 1)
    value = std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  else
    value = std::ldexp(mantissa + (1u << f.mantissa_bits), exponent - bias - f.mantissa_bits);
  return negative ? -value : value;
}

// Rounds to nearest, ties to the even pattern, by looking for the neighbours among all values.
class Rounder {
 public:
  explicit Rounder(const Format& f) : f_(f) {
    for (uint32_t bits = 0; bits < 1u << (f.exponent_bits + f.mantissa_bits); bits++) {
      double v = decode(f, bits);
      if (std::isfinite(v)) values_.push_back(v);
    }
  }
  double operator()(double x) const {
    if (std::isnan(x)) return x;
    double m = std::fabs(x), largest = values_.back();
    double step = largest - values_[values_.size() - 2];
    double out;
    if (m >= largest + step / 2) {
      out = f_.saturates ? largest : std::numeric_limits<double>::infinity();
    } else {
      auto above = std::lower_bound(values_.begin(), values_.end(), m);
      if (above == values_.end()) {
        out = largest;
      } else if (*above == m || above == values_.begin()) {
        out = *above;
      } else {
        double high = *above, low = *(above - 1);
        bool low_is_even = (above - 1 - values_.begin()) % 2 == 0;
        out = m - low < high - m || (m - low == high - m && low_is_even) ? low : high;
      }
    }
    return std::copysign(out, x);
  }

 private:
  Format f_;
  std::vector<double> values_;  // of the non-negative patterns, in the patterns' order
};

}  // namespace float_reference
