#include "values.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace gradprobe::real {
namespace {

struct Format {
  const char* name;
  std::size_t bytes;
  int exponent_bits, mantissa_bits;  // 0: an integer
};

const Format& format(ncclDataType_t type) {
  static constexpr Format kF16{"f16", 2, 5, 10}, kBf16{"bf16", 2, 8, 7}, kF32{"f32", 4, 8, 23}, kF64{"f64", 8, 11, 52};
  static constexpr Format kI32{"i32", 4, 0, 0}, kI64{"i64", 8, 0, 0}, kU8{"u8", 1, 0, 0};
  switch (type) {
    case ncclFloat16:
      return kF16;
    case ncclBfloat16:
      return kBf16;
    case ncclFloat32:
      return kF32;
    case ncclFloat64:
      return kF64;
    case ncclInt32:
      return kI32;
    case ncclInt64:
      return kI64;
    case ncclUint8:
      return kU8;
    default:
      throw std::logic_error("a datatype that these tests don't use");
  }
}

std::uint64_t sign_bit(const Format& f) {
  return std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits);
}

// Sign, exponent and mantissa at random.
std::uint64_t random_bits(const Format& f, std::uint64_t random) {
  if (f.exponent_bits == 0) return random % 100;
  const std::uint64_t mantissa = random & ((std::uint64_t{1} << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const auto exponent = static_cast<std::uint64_t>(bias - 7 + static_cast<int>(random >> 53 & 7));
  return ((random >> 60 & 1) != 0 ? sign_bit(f) : 0) | exponent << f.mantissa_bits | mantissa;
}

std::uint64_t special_bits(const Format& f, std::uint64_t random) {
  const std::uint64_t infinity = ((std::uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
  if ((random & 1) == 0) return infinity | std::uint64_t{1} << (f.mantissa_bits - 1);  // a quiet NaN
  return infinity | ((random & 2) != 0 ? sign_bit(f) : 0);
}

double decode_bits(const Format& f, std::uint64_t bits) {
  const auto mantissa = static_cast<double>(bits & ((std::uint64_t{1} << f.mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> f.mantissa_bits & ((std::uint64_t{1} << f.exponent_bits) - 1));
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double sign = (bits & sign_bit(f)) != 0 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return sign * std::ldexp(1 + std::ldexp(mantissa, -f.mantissa_bits), exponent - bias);
}

}  // namespace

const char* name(ncclDataType_t type) {
  return format(type).name;
}
std::size_t bytes_of(ncclDataType_t type) {
  return format(type).bytes;
}
bool is_floating(ncclDataType_t type) {
  return format(type).exponent_bits != 0;
}
double epsilon(ncclDataType_t type) {
  return std::ldexp(1, -format(type).mantissa_bits);
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a + 0x9e3779b97f4a7c15u * (b + 1);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

std::uint64_t mixed(const std::string& text) {
  std::uint64_t hash = text.size();
  for (const char c : text) hash = mixed(hash, static_cast<unsigned char>(c));
  return hash;
}

Bytes random_values(std::uint64_t key, ncclDataType_t type, std::size_t count, bool special) {
  const Format& f = format(type);
  Bytes bytes(count * f.bytes);
  for (std::size_t i = 0; i < count; i++) {
    const std::uint64_t random = mixed(key, i);
    // One element in 50 or so, among few elements one or two.
    const bool odd = special && mixed(random, 1) % 50 < (count < 50 ? 12 : 1);
    const std::uint64_t bits = odd && is_floating(type) ? special_bits(f, mixed(random, 2)) : random_bits(f, random);
    std::memcpy(&bytes[i * f.bytes], &bits, f.bytes);
  }
  return bytes;
}

std::vector<double> decoded(const Bytes& bytes, ncclDataType_t type) {
  const Format& f = format(type);
  std::vector<double> values(bytes.size() / f.bytes);
  for (std::size_t i = 0; i < values.size(); i++) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &bytes[i * f.bytes], f.bytes);
    if (f.exponent_bits != 0)
      values[i] = decode_bits(f, bits);
    else
      values[i] =
          f.bytes == 4 ? std::bit_cast<std::int32_t>(static_cast<std::uint32_t>(bits)) : static_cast<double>(bits);
  }
  return values;
}

Facts facts_of(const std::vector<double>& values) {
  Facts facts;
  long double sum = 0;
  for (std::size_t i = 0; i < values.size(); i++) {
    const double x = values[i];
    if (std::isfinite(x)) {
      sum += static_cast<long double>(x) * x;
      facts.max_abs = std::max(facts.max_abs, std::abs(x));
      continue;
    }
    (std::isnan(x) ? facts.nans : facts.infs)++;
    if (facts.first_nonfinite == Facts::kNone) facts.first_nonfinite = i;
  }
  facts.sum_squares = static_cast<double>(sum);
  return facts;
}

std::uint64_t fingerprint(const Bytes& bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i++) sum += std::uint64_t{bytes[i]} << 8 * (i % 4);
  return sum;
}

}  // namespace gradprobe::real
