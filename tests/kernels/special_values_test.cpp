// NaN, infinities, zeros, subnormal and extreme numbers, wherever they may lie in a bucket.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint64_t kKey = 77;

// By one CTA and by several, the input pass; and the result pass of the latter.
void expect_right(const Elements& elements, Sums sums, std::uint32_t offset = 0) {
  const Bucket bucket(elements, offset);
  const std::uint32_t k = RigOptions{}.k;
  expect_measured(measure_one(bucket, kKey, {}, 1), bucket, kKey, 1, k, sums);
  SinglePass several(bucket, kKey, {}, 4);
  expect_measured(several.input(), bucket, kKey, 1, k, sums);
  expect_result(several.result(), bucket, kKey, 1, k, sums);
}

class SpecialValues : public testing::TestWithParam<Datatype> {};

TEST_P(SpecialValues, OneNonfiniteElementAnywhere) {
  const Datatype type = GetParam();
  const Elements integers = small_integers(type, 70'001, 20);
  for (const std::size_t at : {0u, 1u, 7u, 2047u, 2048u, 9999u, 16383u, 16384u, 40'000u, 65'535u, 65'536u, 70'000u}) {
    for (const std::uint64_t bits : nonfinite_bits(type)) {
      SCOPED_TRACE(std::to_string(bits) + " at " + std::to_string(at));
      Elements elements = integers;
      elements.set(at, bits);
      // One in two misaligned.
      const Bucket bucket(elements, at % 2 ? element_bytes(type) : 0);
      expect_measured(measure_one(bucket, kKey, {}, 3), bucket, kKey, 1, 1024, Sums::exact);
    }
  }
}

TEST_P(SpecialValues, FirstOfManyNonfiniteElements) {
  const Datatype type = GetParam();
  const auto nonfinite = nonfinite_bits(type);
  std::mt19937 random(21);
  for (const std::size_t count : {2u, 10u, 5000u}) {
    SCOPED_TRACE(count);
    Elements elements = small_integers(type, 90'000, 22);
    for (std::size_t i = 0; i < count; ++i) elements.set(random() % elements.size(), nonfinite[i % nonfinite.size()]);
    expect_right(elements, Sums::exact);
  }
}

TEST_P(SpecialValues, NothingFinite) {
  const Datatype type = GetParam();
  for (const std::uint64_t bits : nonfinite_bits(type)) {
    SCOPED_TRACE(bits);
    expect_right(Elements(type, 3, bits), Sums::exact);
    expect_right(Elements(type, 70'000, bits), Sums::exact);
  }
}

TEST_P(SpecialValues, ZerosOfBothSigns) {
  const Datatype type = GetParam();
  Elements elements(type, 80'000);
  expect_right(elements, Sums::exact);
  for (std::size_t i = 0; i < elements.size(); i += 3) elements.set(i, sign_bit(type));
  expect_right(elements, Sums::exact);
  elements.set(33'333, encode(type, -2));
  expect_right(elements, Sums::exact);
  for (std::size_t i = 0; i < elements.size(); i += 5) elements.set(i, nonfinite_bits(type).back());
  expect_right(elements, Sums::exact);
  expect_right(Elements(type, 70'000, sign_bit(type)), Sums::exact);
}

TEST_P(SpecialValues, SubnormalNumbers) {
  const Datatype type = GetParam();
  std::mt19937_64 random(23);
  Elements elements(type, 70'000);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements.set(i, (random() & fraction_mask(type)) | (random() & 1 ? sign_bit(type) : 0u));
  }
  expect_right(elements, Sums::rounded, element_bytes(type));
  // The smallest of all, alone.
  expect_right(Elements(type, 5, 1), Sums::rounded);
  // Among ordinary numbers.
  for (std::size_t i = 0; i < elements.size(); i += 2) elements.set(i, encode(type, 3));
  expect_right(elements, Sums::rounded);
}

TEST_P(SpecialValues, LargestNumbers) {
  const Datatype type = GetParam();
  const Elements elements(type, 70'000, largest_bits(type));
  expect_right(elements, Sums::rounded);
  Elements mixed = small_integers(type, 70'000, 24);
  mixed.set(0, largest_bits(type));
  mixed.set(69'999, largest_bits(type) | sign_bit(type));
  expect_right(mixed, Sums::rounded);
}

// All bit patterns there are, at random: every path at once.
TEST_P(SpecialValues, AnyBits) {
  const Datatype type = GetParam();
  std::mt19937_64 random(25);
  Elements elements(type, 100'000);
  for (std::size_t i = 0; i < elements.size(); ++i) elements.set(i, random());
  expect_right(elements, Sums::rounded, element_bytes(type));
}

INSTANTIATE_TEST_SUITE_P(Types, SpecialValues, testing::ValuesIn(kTypes),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// |x| > 2^100: in the norm, not in the sketch.
class LargeNumbers : public testing::TestWithParam<Datatype> {
 protected:
  void expect_left_out(const Elements& integers, const std::vector<std::pair<std::size_t, std::uint64_t>>& planted) {
    Elements elements = integers, without = integers;
    for (const auto& [at, bits] : planted) {
      elements.set(at, bits);
      without.set(at, 0);
    }
    const Bucket bucket(elements);
    for (const std::uint32_t ctas : {1u, 4u}) {
      const Measured got = measure_one(bucket, kKey, {}, ctas);
      EXPECT_EQ(got.head.flags, gate::kResultSketchInvalid);
      const Reference want = measure(elements, 1024, run_key_reference(kKey, 1));
      EXPECT_EQ(got.head.max_abs, want.max_abs);
      expect_norm(got.head.sum_squares, want.sum_squares, norm_tolerance(elements.type()));
      EXPECT_EQ(got.head.inf_count, 0u);
      // The sketch is that of the others, exactly.
      const Reference others = measure(without, 1024, run_key_reference(kKey, 1));
      ASSERT_EQ(got.sketch.size(), others.sketch.size());
      for (std::size_t j = 0; j < got.sketch.size(); ++j) {
        ASSERT_EQ(static_cast<double>(got.sketch[j]), others.sketch[j]) << j;
      }
    }
  }
};

TEST_P(LargeNumbers, AreLeftOutOfTheSketch) {
  const Datatype type = GetParam();
  const Elements integers = small_integers(type, 70'001, 30);
  const std::uint64_t above = encode(type, 0x1p100) + 1, negative = sign_bit(type);
  expect_left_out(integers, {{5, above}});
  expect_left_out(integers, {{69'999, above | negative}});
  expect_left_out(integers, {{0, encode(type, 0x1p101)}, {1, encode(type, -0x1p120)}, {2048, largest_bits(type)}});
  std::vector<std::pair<std::size_t, std::uint64_t>> many;
  for (std::size_t i = 0; i < integers.size(); i += 3)
    many.emplace_back(i, largest_bits(type) | (i & 1 ? negative : 0));
  expect_left_out(integers, many);
}

TEST_P(LargeNumbers, LimitItselfIsSketched) {
  const Datatype type = GetParam();
  Elements elements(type, 70'001);
  elements.set(40'000, encode(type, -0x1p100));
  const Bucket bucket(elements);
  const Measured got = measure_one(bucket, kKey, {}, 3);
  EXPECT_EQ(got.head.flags, 0u);
  expect_measured(got, bucket, kKey, 1, 1024, Sums::exact);
}

// Squares and sums that leave float32's range on the way, below the limit.
TEST_P(LargeNumbers, BelowTheLimit) {
  const Datatype type = GetParam();
  expect_right(log_uniform(type, 70'000, 31, 60, 99.9), Sums::rounded);
  expect_right(Elements(type, 70'000, encode(type, 0x1p100)), Sums::rounded);
}

INSTANTIATE_TEST_SUITE_P(Types, LargeNumbers, testing::Values(Datatype::f64, Datatype::f32, Datatype::bf16),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Numbers that float32 can't hold enter the sketch rounded; those that round to the limit from above stay out.
TEST(Float64, NumbersThatFloat32CannotHold) {
  const double limit = 0x1p100;
  Elements elements(Datatype::f64, 70'000);
  const double values[] = {0.1,    1 + 0x1p-24, 1 + 0x1.8p-23, 1e-45, 1e-46, 1e-300, -5e-324,
                           -1e-40, 3e29,        16777217,      -0.0,  1e-38, limit,  std::nextafter(limit, 0)};
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements.set(i, encode(Datatype::f64, i % 1000 ? 0 : values[i / 1000 % std::size(values)]));
  }
  expect_right(elements, Sums::rounded);
  // Alone, so that rounding shows.
  for (const double value : values) {
    SCOPED_TRACE(value);
    Elements alone(Datatype::f64, 3);
    alone.set(1, encode(Datatype::f64, value));
    expect_right(alone, Sums::exact);
  }
  for (const double value : {std::nextafter(limit, 2 * limit), 1e39, 1e300}) {
    SCOPED_TRACE(value);
    Elements alone(Datatype::f64, 3);
    alone.set(1, encode(Datatype::f64, -value));
    expect_right(alone, Sums::exact);
  }
}

TEST(Float64, SumOfSquaresOverflows) {
  Elements elements = small_integers(Datatype::f64, 70'000, 32);
  elements.set(12, encode(Datatype::f64, 1e200));
  const Bucket one(elements);
  for (const std::uint32_t ctas : {1u, 4u}) {
    const Measured got = measure_one(one, kKey, {}, ctas);
    EXPECT_EQ(got.head.sum_squares, std::numeric_limits<double>::infinity());
    EXPECT_EQ(got.head.inf_count, 0u);
    EXPECT_EQ(got.head.nan_count, 0u);
    EXPECT_EQ(got.head.first_nonfinite, kNone);
    EXPECT_EQ(got.head.max_abs, 1e200);
    for (const float value : got.sketch) ASSERT_TRUE(std::isfinite(value));
  }
  // Each square is finite, their sum is not.
  const Measured got = measure_one(Bucket(Elements(Datatype::f64, 70'000, encode(Datatype::f64, 1e153))), kKey, {}, 4);
  EXPECT_EQ(got.head.sum_squares, std::numeric_limits<double>::infinity());
  EXPECT_EQ(got.head.inf_count, 0u);
}

}  // namespace
}  // namespace gradprobe::test
