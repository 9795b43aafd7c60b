// The measuring kernels: rounding, repetition, grids, and what the sketch is for. Shapes: product_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

// Enough units for all CTAs of the grid, and for blocks of them: both levels of the reduction.
TEST(Measure, ManyCtas) {
  for (const Datatype type : kTypes) {
    const std::size_t n = 1'000'003 * (element_bytes(type) == 1 ? 3 : 1);
    const Bucket integers(small_integers(type, n, 5), element_bytes(type));
    const Reference want = measure(integers.elements(), 1024, run_key_reference(1, 1));
    for (const std::uint32_t ctas : {16u, 17u, 200u}) {
      SCOPED_TRACE(describe(type, n, 1024, ctas, element_bytes(type)));
      expect_measures(measure_one(integers, 1, {}, ctas), want, type, Sums::exact);
    }
  }
}

// There is work for all of kMaxCtas, and one unit more.
TEST(Measure, MaximumCtas) {
  const std::size_t n = gate::kMaxCtas * std::size_t{gate::kSuperrow} + 1;
  const Bucket bucket(small_integers(Datatype::f32, n, 7));
  RigOptions options;
  options.k = 4096;
  expect_measured(measure_one(bucket, 3, options, gate::kMaxCtas), bucket, 3, 1, 4096, Sums::exact);
}

TEST(Measure, SameBitsEveryTime) {
  for (const Datatype type : kTypes) {
    const auto [low, high] = wide_range(type);
    const Bucket bucket(log_uniform(type, 300'000, 9, std::max(low, -60.0), std::min(high, 10.0)));
    for (const std::uint32_t ctas : {1u, 7u}) {
      SCOPED_TRACE(describe(type, 300'000, 1024, ctas, 0));
      SinglePass first(bucket, 4, {}, ctas), second(bucket, 4, {}, ctas);
      const Measured input = first.input();
      expect_same_bits(input, second.input());
      expect_same_bits(first.result(), second.result());
    }
  }
}

// A result pass and the kernel for several datatypes sum up in the same order as the others.
TEST(Measure, SameBitsByEveryKernelAndPass) {
  for (const Datatype type : kTypes) {
    SCOPED_TRACE(name(type));
    const Bucket bucket(gaussian(type, 300'000, 9), element_bytes(type));
    SinglePass own(bucket, 4, {}, 7), mixed(bucket, 4, {}, 7, gate::kMixed);
    const Measured input = own.input(), result = own.result();
    expect_same_bits(input, mixed.input());
    expect_same_bits(result, mixed.result());
    EXPECT_EQ(input.head.sum_squares, result.head.sum_squares);
    EXPECT_EQ(input.sketch, result.sketch);
  }
}

TEST(Measure, GridChangesNothingButRounding) {
  for (const Datatype type : kTypes) {
    const std::size_t n = 300'000;
    Elements elements = gaussian(type, n, 10);
    elements.set(123'456, nan_bits(type));
    elements.set(223'456, nonfinite_bits(type).back());
    elements.set(11, 0);
    const Bucket bucket(elements);
    SinglePass one(bucket, 4, {}, 1);
    const Measured input = one.input(), result = one.result();
    for (const std::uint32_t ctas : {2u, 20u}) {
      SCOPED_TRACE(describe(type, n, 1024, ctas, 0));
      SinglePass other(bucket, 4, {}, ctas);
      const Measured other_input = other.input();
      expect_same_counts(input, other_input);
      expect_same_counts(result, other.result());
      EXPECT_NEAR(input.head.sum_squares, other_input.head.sum_squares, 1e-12 * input.head.sum_squares);
      for (std::size_t j = 0; j < input.sketch.size(); ++j) ASSERT_NEAR(input.sketch[j], other_input.sketch[j], 1e-2);
    }
  }
}

// Squares that leave float32's range in both directions, side by side, and the limits of the fast path.
TEST(Measure, WideRange) {
  for (const Datatype type : kTypes) {
    const auto [lowest, highest] = wide_range(type);
    for (const auto& [low, high] : {std::pair{-1070.0, -500.0},
                                    {-160.0, -120.0},
                                    {-148.0, -90.0},
                                    {-76.0, -57.0},
                                    {-71.0, -70.0},
                                    {-45.0, -35.0},
                                    {-30.0, 30.0},
                                    {45.0, 55.0},
                                    {57.0, 70.0},
                                    {-120.0, 99.0},
                                    {-1070.0, 99.0}}) {
      const double from = std::max(low, lowest), to = std::min(high, highest);
      if (from >= to) continue;
      SCOPED_TRACE(std::string(name(type)) + " 2^" + std::to_string(from) + " to 2^" + std::to_string(to));
      const Bucket bucket(log_uniform(type, 40'000, 11, from, to));
      expect_measured(measure_one(bucket, 5, {}, 2), bucket, 5, 1, 1024, Sums::rounded);
    }
  }
}

// The norm's relative error stays near 1e-8 where a float32 sum would lose digits: constant data.
TEST(Measure, NormOfConstantData) {
  for (const Datatype type : kTypes) {
    const Bucket bucket(Elements(type, 500'000, encode(type, 0.1)));
    const double x = decode(type, encode(type, 0.1)), want = 500'000 * x * x;
    EXPECT_NEAR(measure_one(bucket, 6, {}, 4).head.sum_squares, want, 1e-7 * want);
  }
}

TEST(Measure, ZerosAreNotCountedUnasked) {
  RigOptions options;
  options.flags = 0;
  for (const Datatype type : kTypes) {
    const Bucket bucket(small_integers(type, 5000, 12));
    SinglePass pass(bucket, 7, options, 1);
    const Measured input = pass.input();
    EXPECT_EQ(input.head.zero_count, kNone);
    EXPECT_EQ(input.head.sum_squares, measure(bucket.elements(), 0, 0).sum_squares);
    EXPECT_EQ(pass.result().head.zero_count, kNone);
  }
}

// The sketch is an unbiased estimate of inner products whose error falls with k: what it exists for.
TEST(Measure, SketchEstimatesInnerProducts) {
  const std::size_t n = 20'000;
  const std::uint32_t k = 256;
  const Elements x = gaussian(Datatype::f32, n, 13), noise = gaussian(Datatype::f32, n, 14);
  Elements y(Datatype::f32, n);
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double a = decode(Datatype::f32, x[i]);
    y.set(i, encode(Datatype::f32, 0.6 * a + 0.8 * decode(Datatype::f32, noise[i])));
    const double b = decode(Datatype::f32, y[i]);
    xx += a * a;
    yy += b * b;
    xy += a * b;
  }
  const Bucket x_bucket(x), y_bucket(y);
  RigOptions options;
  options.k = k;
  double bias = 0, square = 0;
  const int draws = 64;
  for (int draw = 0; draw < draws; ++draw) {
    const auto key = static_cast<std::uint64_t>(1000 + draw);
    const Measured sx = measure_one(x_bucket, key, options, 2), sy = measure_one(y_bucket, key, options, 2);
    const double estimate = std::inner_product(sx.sketch.begin(), sx.sketch.end(), sy.sketch.begin(), 0.0);
    const double error = (estimate - xy) / std::sqrt(xx * yy);
    bias += error / draws;
    square += error * error / draws;
  }
  const double cosine = xy / std::sqrt(xx * yy);
  const double theory = std::sqrt((1 + cosine * cosine) / k);
  EXPECT_LT(std::fabs(bias), 4 * theory / std::sqrt(draws));
  EXPECT_GT(std::sqrt(square), 0.6 * theory);
  EXPECT_LT(std::sqrt(square), 1.4 * theory);
}

}  // namespace
}  // namespace gradprobe::test
