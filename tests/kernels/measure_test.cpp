// The measuring kernels against the element-index definition: datatypes, sizes, alignments, sketch sizes, grids.
#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "inputs.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kSketchSizes[] = {0, 256, 512, 1024, 2048};
constexpr std::uint32_t kGrids[] = {1, 3, 20, 40};
constexpr std::size_t kSizes[] = {1, 7, 8, 2047, 2048, 2049, 16383, 16384, 16385, 100000};

// One bucket in a slot of its own.
Measured measure_one(const Bucket& bucket, std::uint64_t key, const RigOptions& options, std::uint32_t ctas) {
  Rig rig(options);
  Stream stream;
  rig.add(0, bucket.entry(key));
  rig.publish(0);
  rig.launch(0, ctas, stream.get(), {bucket.type()});
  stream.synchronize();
  auto results = rig.collect();
  EXPECT_EQ(results.size(), 1u);
  EXPECT_EQ(rig.runs(0), 1u);
  if (results.empty()) throw std::runtime_error("no result");
  return std::move(results[0]);
}

std::vector<std::uint32_t> offsets(Datatype type) {
  std::vector<std::uint32_t> all(16 / element_bytes(type));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i) * element_bytes(type);
  return all;
}

TEST(Measure, EverySizeAndSketchAndGrid) {
  std::uint32_t seed = 0;
  for (const Datatype type : kTypes) {
    const auto all_offsets = offsets(type);
    for (const std::size_t n : kSizes) {
      for (const std::uint32_t k : kSketchSizes) {
        for (const std::uint32_t ctas : kGrids) {
          // Every second case aligned, the others through all misalignments.
          const std::uint32_t offset = seed % 2 ? all_offsets[seed / 2 % all_offsets.size()] : 0;
          SCOPED_TRACE(describe(type, n, k, ctas, offset));
          const Bucket bucket(type, small_integers(type, n, seed), offset);
          RigOptions options;
          options.k = k;
          expect_measured(measure_one(bucket, seed, options, ctas), bucket, seed, 1, k, Sums::exact);
          ++seed;
        }
      }
    }
  }
}

TEST(Measure, EveryAlignment) {
  for (const Datatype type : kTypes) {
    for (const std::uint32_t offset : offsets(type)) {
      for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 33000u}) {
        SCOPED_TRACE(describe(type, n, 512, 3, offset));
        const Bucket bucket(type, small_integers(type, n, offset), offset);
        RigOptions options;
        options.k = 512;
        expect_measured(measure_one(bucket, n, options, 3), bucket, n, 1, 512, Sums::exact);
      }
    }
  }
}

// Enough units for all CTAs of the grid, and for blocks of them: both levels of the reduction.
TEST(Measure, ManyCtas) {
  const std::size_t n = 1'000'003;
  for (const Datatype type : kTypes) {
    const Bucket integers(type, small_integers(type, n, 5));
    const Bucket normal(type, gaussian(type, n, 6), 2 * element_bytes(type));
    for (const std::uint32_t ctas : {16u, 17u, 40u, 300u}) {
      SCOPED_TRACE(describe(type, n, 1024, ctas, 0));
      expect_measured(measure_one(integers, 1, {}, ctas), integers, 1, 1, 1024, Sums::exact);
      expect_measured(measure_one(normal, 2, {}, ctas), normal, 2, 1, 1024, Sums::rounded);
    }
  }
}

// kMaxCtas and more are launched, and there is work for all of them.
TEST(Measure, MaximumCtas) {
  const std::size_t n = gate::kMaxCtas * std::size_t{gate::kSuperrow} + 1;
  const Bucket bucket(Datatype::f32, small_integers(Datatype::f32, n, 7));
  expect_measured(measure_one(bucket, 3, {}, gate::kMaxCtas + 3), bucket, 3, 1, 1024, Sums::exact);
}

TEST(Measure, SameBitsEveryTime) {
  for (const Datatype type : kTypes) {
    const Bucket bucket(type, log_uniform(type, 300'000, 9, type == Datatype::f16 ? -20 : -50, 10));
    for (const std::uint32_t ctas : {1u, 7u, 19u}) {
      SCOPED_TRACE(describe(type, 300'000, 1024, ctas, 0));
      const Measured first = measure_one(bucket, 4, {}, ctas), second = measure_one(bucket, 4, {}, ctas);
      EXPECT_EQ(first.head.sum_squares, second.head.sum_squares);
      EXPECT_EQ(first.sketch, second.sketch);
    }
  }
}

TEST(Measure, GridChangesNothingButRounding) {
  for (const Datatype type : kTypes) {
    const Bucket bucket(type, gaussian(type, 300'000, 10));
    const Measured one = measure_one(bucket, 4, {}, 1);
    for (const std::uint32_t ctas : {3u, 20u}) {
      SCOPED_TRACE(describe(type, 300'000, 1024, ctas, 0));
      const Measured other = measure_one(bucket, 4, {}, ctas);
      EXPECT_EQ(one.head.max_abs, other.head.max_abs);
      EXPECT_EQ(one.head.zero_count, other.head.zero_count);
      EXPECT_NEAR(one.head.sum_squares, other.head.sum_squares, 1e-12 * one.head.sum_squares);
      for (std::size_t j = 0; j < one.sketch.size(); ++j) ASSERT_NEAR(one.sketch[j], other.sketch[j], 1e-2);
    }
  }
}

// Squares that leave float32's range in both directions, side by side, and the limits of the fast path.
TEST(Measure, WideRange) {
  struct Range {
    Datatype type;
    double low, high;
  };
  for (const Range& range :
       {Range{Datatype::f32, -148, -90}, Range{Datatype::f32, -45, -35}, Range{Datatype::f32, 45, 55},
        Range{Datatype::f32, -120, 99}, Range{Datatype::bf16, -132, -90}, Range{Datatype::bf16, -45, -35},
        Range{Datatype::bf16, 45, 55}, Range{Datatype::bf16, -120, 99}, Range{Datatype::f16, -24, -10},
        Range{Datatype::f16, -24, 15.9}}) {
    SCOPED_TRACE(std::string(name(range.type)) + " 2^" + std::to_string(range.low) + " to 2^" +
                 std::to_string(range.high));
    const Bucket bucket(range.type, log_uniform(range.type, 40'000, 11, range.low, range.high));
    const Measured got = measure_one(bucket, 5, {}, 2);
    expect_measured(got, bucket, 5, 1, 1024, Sums::rounded);
    EXPECT_EQ(got.head.flags, 0u);
  }
}

// The norm's relative error stays near 1e-8 where a float32 sum would lose digits: constant data.
TEST(Measure, NormOfConstantData) {
  for (const Datatype type : kTypes) {
    const Bucket bucket(type, std::vector(500'000, encode(type, 0.1)));
    const double x = decode(type, encode(type, 0.1));
    const Measured got = measure_one(bucket, 6, {}, 4);
    EXPECT_NEAR(got.head.sum_squares, 500'000 * x * x, 1e-7 * 500'000 * x * x);
  }
}

TEST(Measure, ZerosAreNotCountedUnasked) {
  RigOptions options;
  options.flags = 0;
  for (const Datatype type : kTypes) {
    const Bucket bucket(type, small_integers(type, 5000, 12));
    EXPECT_EQ(measure_one(bucket, 7, options, 1).head.zero_count, kNone);
  }
}

// The sketch is an unbiased estimate of inner products whose error falls with k: what it exists for.
TEST(Measure, SketchEstimatesInnerProducts) {
  const std::size_t n = 20'000;
  const std::uint32_t k = 256;
  const auto x_bits = gaussian(Datatype::f32, n, 13), noise = gaussian(Datatype::f32, n, 14);
  std::vector<std::uint32_t> y_bits(n);
  double xx = 0, yy = 0, xy = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = decode(Datatype::f32, x_bits[i]);
    y_bits[i] = encode(Datatype::f32, 0.6 * x + 0.8 * decode(Datatype::f32, noise[i]));
    const double y = decode(Datatype::f32, y_bits[i]);
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  const Bucket x(Datatype::f32, x_bits), y(Datatype::f32, y_bits);
  RigOptions options;
  options.k = k;
  double bias = 0, square = 0;
  const int draws = 64;
  for (int draw = 0; draw < draws; ++draw) {
    const auto key = static_cast<std::uint64_t>(1000 + draw);
    const Measured sx = measure_one(x, key, options, 2), sy = measure_one(y, key, options, 2);
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
