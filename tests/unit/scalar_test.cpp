#include <gtest/gtest.h>
#include <gradprobe/scalar.hpp>

#include <cmath>

#include "synthetic_ring.hpp"

namespace gradprobe {
namespace {

template <typename T>
CollectiveBody body_of(Datatype type, std::initializer_list<T> values) {
  CollectiveBody b{};
  b.datatype = static_cast<std::uint8_t>(type);
  b.count = b.raw_count = static_cast<std::uint32_t>(values.size());
  std::size_t at = 0;
  for (const T v : values) {
    std::memcpy(b.raw + at, &v, sizeof v);
    at += sizeof v;
  }
  return b;
}

TEST(RawValue, Integers) {
  EXPECT_EQ(raw_value(body_of<std::int8_t>(Datatype::i8, {-128, 127}), 0), -128);
  EXPECT_EQ(raw_value(body_of<std::uint8_t>(Datatype::u8, {255}), 0), 255);
  EXPECT_EQ(raw_value(body_of<std::int32_t>(Datatype::i32, {7, -2147483647 - 1}), 1), -2147483648.0);
  EXPECT_EQ(raw_value(body_of<std::uint32_t>(Datatype::u32, {4294967295u}), 0), 4294967295.0);
  EXPECT_EQ(raw_value(body_of<std::int64_t>(Datatype::i64, {-1}), 0), -1);
  EXPECT_EQ(raw_value(body_of<std::uint64_t>(Datatype::u64, {std::uint64_t{1} << 63}), 0), 9223372036854775808.0);
}

// Bit patterns and values from the formats' definitions.
TEST(RawValue, FloatingPoint) {
  EXPECT_EQ(raw_value(body_of<float>(Datatype::f32, {1.5f, -0.1f}), 1), static_cast<double>(-0.1f));
  EXPECT_EQ(raw_value(body_of<double>(Datatype::f64, {1e300}), 0), 1e300);
  const auto half =
      body_of<std::uint16_t>(Datatype::f16, {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x3555});
  EXPECT_EQ(raw_value(half, 0), 1.0);
  EXPECT_EQ(raw_value(half, 1), -2.0);
  EXPECT_EQ(raw_value(half, 2), std::ldexp(1.0, -24));
  EXPECT_EQ(raw_value(half, 3), 65504.0);
  EXPECT_EQ(raw_value(half, 4), INFINITY);
  EXPECT_EQ(raw_value(half, 5), -INFINITY);
  EXPECT_TRUE(std::isnan(*raw_value(half, 6)));
  EXPECT_NEAR(*raw_value(half, 7), 1.0 / 3, 1e-4);
  const auto bf = body_of<std::uint16_t>(Datatype::bf16, {0x3FC0, 0x0001, 0x7F80, 0xFFC0});
  EXPECT_EQ(raw_value(bf, 0), 1.5);
  EXPECT_EQ(raw_value(bf, 1), std::ldexp(1.0, -133));
  EXPECT_EQ(raw_value(bf, 2), INFINITY);
  EXPECT_TRUE(std::isnan(*raw_value(bf, 3)));
  const auto e4m3 = body_of<std::uint8_t>(Datatype::f8e4m3, {0x38, 0x7E, 0x7F, 0xFF, 0x01, 0xB8, 0x78});
  EXPECT_EQ(raw_value(e4m3, 0), 1.0);
  EXPECT_EQ(raw_value(e4m3, 1), 448.0);
  EXPECT_TRUE(std::isnan(*raw_value(e4m3, 2)));
  EXPECT_TRUE(std::isnan(*raw_value(e4m3, 3)));
  EXPECT_EQ(raw_value(e4m3, 4), std::ldexp(1.0, -9));
  EXPECT_EQ(raw_value(e4m3, 5), -1.0);
  EXPECT_EQ(raw_value(e4m3, 6), 256.0);
  const auto e5m2 = body_of<std::uint8_t>(Datatype::f8e5m2, {0x3C, 0x7B, 0x7C, 0xFC, 0x7D, 0x01});
  EXPECT_EQ(raw_value(e5m2, 0), 1.0);
  EXPECT_EQ(raw_value(e5m2, 1), 57344.0);
  EXPECT_EQ(raw_value(e5m2, 2), INFINITY);
  EXPECT_EQ(raw_value(e5m2, 3), -INFINITY);
  EXPECT_TRUE(std::isnan(*raw_value(e5m2, 4)));
  EXPECT_EQ(raw_value(e5m2, 5), std::ldexp(1.0, -16));
}

double value_of(Datatype type, std::uint64_t bits) {
  return *raw_value(body_of<std::uint64_t>(type, {bits}), 0);
}

// IEEE 754 binary64: patterns and values of its definition (limits as in C's float.h).
TEST(RawValue, DoublePatterns) {
  EXPECT_EQ(value_of(Datatype::f64, 0x3FF0000000000000), 1.0);
  EXPECT_EQ(value_of(Datatype::f64, 0xC000000000000000), -2.0);
  EXPECT_EQ(value_of(Datatype::f64, 0x400921FB54442D18), 3.141592653589793);
  EXPECT_EQ(value_of(Datatype::f64, 0x7FEFFFFFFFFFFFFF), 1.7976931348623157e308);
  EXPECT_EQ(value_of(Datatype::f64, 0x0010000000000000), 2.2250738585072014e-308);
  EXPECT_EQ(value_of(Datatype::f64, 0x0000000000000001), 4.9406564584124654e-324);
  EXPECT_EQ(value_of(Datatype::f64, 0x7FF0000000000000), INFINITY);
  EXPECT_EQ(value_of(Datatype::f64, 0xFFF0000000000000), -INFINITY);
  EXPECT_TRUE(std::isnan(value_of(Datatype::f64, 0x7FF8000000000000)));
  EXPECT_TRUE(std::isnan(value_of(Datatype::f64, 0x7FF0000000000001)));
  EXPECT_EQ(value_of(Datatype::f64, 0x8000000000000000), 0);
  EXPECT_TRUE(std::signbit(value_of(Datatype::f64, 0x8000000000000000)));
}

// Open Compute Project, 8-bit Floating Point Specification (OFP8), table of the limits of E4M3 and E5M2.
TEST(RawValue, LimitsOfEightBitFormats) {
  const auto e4m3 = [](unsigned bits) { return value_of(Datatype::f8e4m3, bits); };
  EXPECT_EQ(e4m3(0b0'1111'110), 448);
  EXPECT_EQ(e4m3(0b1'1111'110), -448);
  EXPECT_EQ(e4m3(0b0'0001'000), std::ldexp(1.0, -6));
  EXPECT_EQ(e4m3(0b0'0000'111), std::ldexp(0.875, -6));
  EXPECT_EQ(e4m3(0b0'0000'001), std::ldexp(1.0, -9));
  EXPECT_TRUE(e4m3(0b1'0000'000) == 0 && std::signbit(e4m3(0b1'0000'000)));
  const auto e5m2 = [](unsigned bits) { return value_of(Datatype::f8e5m2, bits); };
  EXPECT_EQ(e5m2(0b0'11110'11), 57344);
  EXPECT_EQ(e5m2(0b1'11110'11), -57344);
  EXPECT_EQ(e5m2(0b0'00001'00), std::ldexp(1.0, -14));
  EXPECT_EQ(e5m2(0b0'00000'11), std::ldexp(0.75, -14));
  EXPECT_EQ(e5m2(0b0'00000'01), std::ldexp(1.0, -16));
  EXPECT_TRUE(e5m2(0b1'00000'00) == 0 && std::signbit(e5m2(0b1'00000'00)));
}

// Every pattern: E5M2 is the upper byte of float16, and E4M3 has its exponents and one fraction bit less than fits
// there, all but the exponent's bias, 7 instead of 15. E4M3 has two NaNs and no infinity.
TEST(RawValue, EveryEightBitPatternAgreesWithFloat16) {
  int nans = 0;
  for (unsigned bits = 0; bits < 256; bits++) {
    const double e5m2 = value_of(Datatype::f8e5m2, bits);
    const double upper = value_of(Datatype::f16, bits << 8);
    EXPECT_TRUE(e5m2 == upper || (std::isnan(e5m2) && std::isnan(upper))) << bits;
    const double e4m3 = value_of(Datatype::f8e4m3, bits);
    EXPECT_FALSE(std::isinf(e4m3)) << bits;
    if (std::isnan(e4m3)) {
      EXPECT_EQ(bits & 0x7F, 0x7Fu);
      nans++;
      continue;
    }
    EXPECT_EQ(e4m3, value_of(Datatype::f16, (bits & 0x80) << 8 | (bits & 0x7F) << 7) * 256) << bits;
  }
  EXPECT_EQ(nans, 2);
}

TEST(RawValue, NothingBeyondWhatIsThere) {
  CollectiveBody b = body_of<float>(Datatype::f32, {1, 2});
  EXPECT_EQ(raw_value(b, 2), std::nullopt);
  b.raw_count = 0xFFFFFFFF;
  EXPECT_TRUE(raw_value(b, 7).has_value());
  EXPECT_EQ(raw_value(b, 8), std::nullopt);
  b.datatype = 77;
  EXPECT_EQ(raw_value(b, 0), std::nullopt);
}

TEST(LossValue, OnlyOneElementFloatingPointScalars) {
  RecordHead loss = test::make_scalar(0, 0, 0, 1, 0.75f);
  EXPECT_EQ(loss_value(loss), 0.75);
  RecordHead integer = loss;
  integer.collective.datatype = static_cast<std::uint8_t>(Datatype::i32);
  EXPECT_EQ(loss_value(integer), std::nullopt);
  RecordHead two = loss;
  two.collective.count = two.collective.raw_count = 2;
  EXPECT_EQ(loss_value(two), std::nullopt);
  RecordHead missed = loss;
  missed.missed = 1;
  EXPECT_EQ(loss_value(missed), std::nullopt);
  EXPECT_EQ(loss_value(test::make_collective(0, 0, 0, 1, 1, 1)), std::nullopt);
  // The reduced loss is no rank's own.
  EXPECT_EQ(loss_value(test::make_result(loss, 1)), std::nullopt);
}

}  // namespace
}  // namespace gradprobe
