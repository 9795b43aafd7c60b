// Every bit pattern, and rounding of many floats, against the formats' definition.
#include "float_types.h"

#include <gtest/gtest.h>

#include <random>

#include "float_reference.h"

namespace {

namespace ref = float_reference;

template <typename T>
void check_every_pattern(const ref::Format& f) {
  for (uint32_t bits = 0; bits < 1u << (8 * sizeof(T)); bits++) {
    double expected = ref::decode(f, bits);
    T stored{static_cast<decltype(T::bits)>(bits)};
    float v = stored.value();
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(v)) << bits;
      EXPECT_TRUE(std::isnan(T::from(v).value())) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(v), expected) << bits;
    if (std::isfinite(expected)) {
      ASSERT_EQ(T::from(v).bits, stored.bits) << bits;
    }
  }
}

template <typename T>
void check_rounding(const ref::Format& f) {
  ref::Rounder rounded(f);
  std::mt19937 random(7);
  auto check = [&](float x) {
    double expected = rounded(x);
    float found = T::from(x).value();
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found));
    } else {
      ASSERT_EQ(static_cast<double>(found), expected) << x;
    }
  };
  for (int i = 0; i < 200'000; i++) check(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Neighbours of each value and the middles between them, where ties are.
  for (uint32_t bits = 0; bits + 1 < 1u << (8 * sizeof(T) - 1); bits++) {
    double low = ref::decode(f, bits), high = ref::decode(f, bits + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    auto middle = static_cast<float>((low + high) / 2);
    for (float x : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, INFINITY), -middle}) check(x);
  }
  for (float x : {0.f, -0.f, INFINITY, -INFINITY, NAN, 1e30f, -1e30f, 448.f, 463.9f, 464.f, 480.f, 57344.f, 61439.f,
                  61440.f, 65504.f, 65519.f, 65520.f})
    check(x);
}

TEST(FloatTypes, Half) {
  check_every_pattern<standin::Half>(ref::kHalf);
  check_rounding<standin::Half>(ref::kHalf);
}
TEST(FloatTypes, Bfloat16) {
  check_every_pattern<standin::Bfloat16>(ref::kBfloat16);
  check_rounding<standin::Bfloat16>(ref::kBfloat16);
}
TEST(FloatTypes, Float8e4m3) {
  check_every_pattern<standin::Float8e4m3>(ref::kE4m3);
  check_rounding<standin::Float8e4m3>(ref::kE4m3);
}
TEST(FloatTypes, Float8e5m2) {
  check_every_pattern<standin::Float8e5m2>(ref::kE5m2);
  check_rounding<standin::Float8e5m2>(ref::kE5m2);
}

}  // namespace
