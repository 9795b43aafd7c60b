// Decodes the raw elements that records of tiny inputs (such as the loss) and of their results keep.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "ring_format.hpp"

namespace gradprobe {

constexpr bool is_floating_point(Datatype t) {
  switch (t) {
    case Datatype::f16:
    case Datatype::f32:
    case Datatype::f64:
    case Datatype::bf16:
    case Datatype::f8e4m3:
    case Datatype::f8e5m2:
      return true;
    default:
      return false;
  }
}

namespace detail {

template <typename T>
T load(const unsigned char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// 2^exponent for exponents of normal doubles. Not std::ldexp: the plugin shares this header and links without libm.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

// IEEE-like small formats. `has_infinity` is false for e4m3, whose only special value is NaN with all bits set.
inline double small_float(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const std::uint32_t exponent_mask = (1u << exponent_bits) - 1;
  const std::uint32_t mantissa_mask = (1u << mantissa_bits) - 1;
  const std::uint32_t exponent = (bits >> mantissa_bits) & exponent_mask;
  const std::uint32_t mantissa = bits & mantissa_mask;
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1u ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == exponent_mask) {
    if (has_infinity && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
    if (has_infinity || mantissa == mantissa_mask) return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * static_cast<double>(mantissa) * power_of_two(1 - bias - mantissa_bits);
  return sign * static_cast<double>(mantissa | (1u << mantissa_bits)) *
         power_of_two(static_cast<int>(exponent) - bias - mantissa_bits);
}

}  // namespace detail

// Element `i` of the raw bytes as a double (64-bit integers beyond 2^53 are rounded); none when it isn't there.
inline std::optional<double> raw_value(const CollectiveBody& body, std::size_t i) {
  const auto type = static_cast<Datatype>(body.datatype);
  const std::size_t size = element_bytes(type);
  if (size == 0 || i >= std::min(body.raw_count, kMaxRawElements)) return std::nullopt;
  const unsigned char* p = body.raw + i * size;
  switch (type) {
    case Datatype::i8:
      return detail::load<std::int8_t>(p);
    case Datatype::u8:
      return *p;
    case Datatype::i32:
      return detail::load<std::int32_t>(p);
    case Datatype::u32:
      return detail::load<std::uint32_t>(p);
    case Datatype::i64:
      return static_cast<double>(detail::load<std::int64_t>(p));
    case Datatype::u64:
      return static_cast<double>(detail::load<std::uint64_t>(p));
    case Datatype::f16:
      return detail::small_float(detail::load<std::uint16_t>(p), 5, 10, true);
    case Datatype::f32:
      return detail::load<float>(p);
    case Datatype::f64:
      return detail::load<double>(p);
    case Datatype::bf16:
      return std::bit_cast<float>(std::uint32_t{detail::load<std::uint16_t>(p)} << 16);
    case Datatype::f8e4m3:
      return detail::small_float(*p, 4, 3, false);
    case Datatype::f8e5m2:
      return detail::small_float(*p, 5, 2, true);
    case Datatype::unknown:
      break;
  }
  return std::nullopt;
}

// What counts as a loss: a one-element floating-point scalar.
inline std::optional<double> loss_value(const RecordHead& head) {
  if (static_cast<RecordKind>(head.kind) != RecordKind::scalar || head.missed != 0) return std::nullopt;
  const CollectiveBody& body = head.collective;
  if (body.count != 1 || !is_floating_point(static_cast<Datatype>(body.datatype))) return std::nullopt;
  return raw_value(body, 0);
}

}  // namespace gradprobe
