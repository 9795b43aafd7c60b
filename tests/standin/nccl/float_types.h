// Small floating-point types, stored as their bits. Conversion to float is exact, from float rounds to nearest even.
// 8-bit types saturate at their largest finite value, as CUDA's do when they are converted from wider ones.
#pragma once
#include <bit>
#include <cstdint>

namespace standin {

// kExp exponent bits, kMan mantissa bits. kFinite: the top exponent holds ordinary numbers and all-ones is the only
// NaN.
template <typename Bits, int kExp, int kMan, bool kFinite, bool kSaturate>
struct SmallFloat {
  Bits bits;

  static constexpr int kBias = (1 << (kExp - 1)) - 1;
  static constexpr uint32_t kSignShift = kExp + kMan;
  static constexpr uint32_t kMagnitude = (1u << kSignShift) - 1;
  static constexpr uint32_t kTop = (1u << kExp) - 1;
  static constexpr uint32_t kInf = kTop << kMan;
  static constexpr uint32_t kNan = kFinite ? kMagnitude : kInf | (1u << (kMan - 1));
  static constexpr uint32_t kLargest = (kFinite ? kMagnitude : kInf) - 1;
  static constexpr uint32_t kOverflow = kSaturate ? kLargest : kInf;

  float value() const {
    uint32_t raw = bits;
    if constexpr (kExp == 8) return std::bit_cast<float>(raw << (23 - kMan));
    uint32_t sign = (raw >> kSignShift) << 31, mag = raw & kMagnitude, man = mag & ((1u << kMan) - 1);
    uint32_t exp = mag >> kMan;
    if (kFinite ? mag == kMagnitude : exp == kTop)
      return std::bit_cast<float>(sign | (man ? 0x7fc00000u : 0x7f800000u));
    if (exp == 0) {
      constexpr uint32_t kUnit = static_cast<uint32_t>(128 - kBias - kMan) & 0xff;
      float tiny = static_cast<float>(man) * std::bit_cast<float>(kUnit << 23);
      return sign ? -tiny : tiny;
    }
    return std::bit_cast<float>(sign | ((exp + 127 - kBias) << 23) | (man << (23 - kMan)));
  }

  static SmallFloat from(float f) {
    uint32_t raw = std::bit_cast<uint32_t>(f), sign = (raw >> 31) << kSignShift, mag = raw & 0x7fffffff;
    int exp = static_cast<int>(mag >> 23) - 127 + kBias;
    uint32_t out;
    if (mag > 0x7f800000) {
      out = kNan;
    } else if (mag == 0x7f800000) {
      out = kOverflow;
    } else if (kExp == 8 || exp >= 1) {
      out = round(mag - (static_cast<uint32_t>(127 - kBias) << 23), 23 - kMan);
      if (out > kLargest) out = kOverflow;
    } else {
      int drop = 23 - kMan + 1 - exp;
      out = drop > 25 ? 0 : round((mag & 0x7fffff) | 0x800000, drop);
    }
    return {static_cast<Bits>(sign | out)};
  }

 private:
  static uint32_t round(uint32_t v, int drop) {
    uint32_t half = 1u << (drop - 1), low = v & (half * 2 - 1), kept = v >> drop;
    return kept + (low > half || (low == half && (kept & 1)));
  }
};

using Half = SmallFloat<uint16_t, 5, 10, false, false>;
using Bfloat16 = SmallFloat<uint16_t, 8, 7, false, false>;
using Float8e4m3 = SmallFloat<uint8_t, 4, 3, true, true>;
using Float8e5m2 = SmallFloat<uint8_t, 5, 2, false, true>;

}  // namespace standin
