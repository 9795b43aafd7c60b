// Reference for small floating-point formats, by search in the table of all values instead of arithmetic on bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace standin::ptx::test {

#if defined(__SIZEOF_FLOAT128__)
using Wide = __float128;
#else
using Wide = long double;
#endif

enum class Mode { kNearest, kZero, kUp, kDown };

class SmallFloat {
 public:
  // no_infinity: the top exponent holds finite values but for the last pattern, which is not a number (E4M3).
  SmallFloat(int mantissa_bits, int exponent_bits, bool no_infinity = false)
      : mantissa_bits_(mantissa_bits), sign_(1u << (mantissa_bits + exponent_bits)), no_infinity_(no_infinity) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint32_t top = (1u << exponent_bits) - 1;
    // Also the values that the patterns behind the greatest finite one would have: rounding may go there.
    for (uint32_t pattern = 0; pattern < sign_; pattern++) {
      uint32_t exponent = pattern >> mantissa_bits, mantissa = pattern & ((1u << mantissa_bits) - 1);
      values_.push_back(exponent
                            ? std::ldexp(1.0 + std::ldexp(mantissa, -mantissa_bits), static_cast<int>(exponent) - bias)
                            : std::ldexp(mantissa, 1 - bias - mantissa_bits));
    }
    first_special_ = no_infinity ? sign_ - 1 : top << mantissa_bits;
  }

  bool is_nan(uint32_t pattern) const {
    uint32_t magnitude = pattern & (sign_ - 1);
    return no_infinity_ ? magnitude == first_special_ : magnitude > first_special_;
  }
  double value(uint32_t pattern) const {
    uint32_t magnitude = pattern & (sign_ - 1);
    double v = is_nan(pattern) ? NAN : magnitude >= first_special_ ? INFINITY : values_[magnitude];
    return pattern & sign_ ? -v : v;
  }
  // The pattern that `x` rounds to; saturate: values beyond the greatest finite one become that one.
  uint32_t round(Wide x, Mode mode, bool saturate = false) const {
    if (x != x) return sign_ - 1;
    bool negative = x < 0 || (x == 0 && std::signbit(static_cast<double>(x)));
    Wide magnitude = negative ? -x : x;
    uint32_t below = 0, above = sign_ - 1;  // values_[below] <= magnitude
    if (magnitude >= values_[above]) {
      below = above;
    } else {
      while (above - below > 1) {
        uint32_t middle = (below + above) / 2;
        (values_[middle] <= magnitude ? below : above) = middle;
      }
    }
    uint32_t pattern = below;
    if (Wide rest = magnitude - values_[below]; rest != 0 && below + 1 < sign_) {
      Wide gap = static_cast<Wide>(values_[below + 1]) - values_[below];
      bool up = mode == Mode::kNearest ? rest * 2 > gap || (rest * 2 == gap && (below & 1))
                : mode == Mode::kUp    ? !negative
                : mode == Mode::kDown  ? negative
                                       : false;
      pattern += up;
    }
    if (pattern >= first_special_) {
      bool to_infinity =
          mode == Mode::kNearest || (mode == Mode::kUp && !negative) || (mode == Mode::kDown && negative);
      bool infinite = std::isinf(static_cast<double>(magnitude));
      pattern = saturate ? first_special_ - 1 : to_infinity || infinite ? first_special_ : first_special_ - 1;
    }
    return pattern | (negative ? sign_ : 0);
  }

 private:
  int mantissa_bits_;
  uint32_t sign_;
  bool no_infinity_;
  uint32_t first_special_ = 0;
  std::vector<double> values_;
};

inline const SmallFloat& half_format() {
  static const SmallFloat f(10, 5);
  return f;
}
inline const SmallFloat& bfloat16_format() {
  static const SmallFloat f(7, 8);
  return f;
}

}  // namespace standin::ptx::test
