// How exact the kernels' sums of squares are over 10^8 elements: their order of operations on the host, against exact
// products summed in long double. The kernels themselves are compared with references at smaller sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "reference_sketch.hpp"

namespace gradprobe::test {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64, "the reference needs more than float64");

constexpr std::uint64_t kElements = 100'000'000;
constexpr std::uint32_t kSuperrow = ReferenceSketch::kSuperrow;
constexpr std::uint32_t kThreads = 512;
constexpr std::uint32_t kCtas = 132;
constexpr std::uint32_t kBlockCtas = 16;

constexpr double kLimit = 1e-7;

// ---- datatypes ------------------------------------------------------------------------------------------------------

// To nearest, ties to even, with `dropped` bits of the mantissa less.
float drop_mantissa(float x, int dropped) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t half = (1u << (dropped - 1)) - 1 + (bits >> dropped & 1u);
  return std::bit_cast<float>((bits + half) >> dropped << dropped);
}

enum class Type { f32, bf16, f16 };

float round_to(Type type, float x) {
  if (type == Type::f32) return x;
  if (type == Type::bf16) return drop_mantissa(x, 16);
  // Subnormals are multiples of 2^-24, which is the unit in the last place of 0.75.
  if (std::fabs(x) < 0x1p-14f) return (x + 0.75f) - 0.75f;
  return drop_mantissa(x, 13);
}

// ---- the kernels' order of operations -------------------------------------------------------------------------------

// What a thread does with its elements of one group: four slots of a superrow, one 16-byte vector of each.
enum class Path {
  guarded,     // as the kernels: float32 chains, or element by element in float64 where the guard says so
  unguarded,   // float32 chains whatever the range
  one_float32  // a single float32 sum per thread for all its elements
};

struct ThreadSums {
  double fast = 0;
  double exact = 0;
  float single = 0;
};

// The largest |x| of a group for which its float32 sums can be trusted: they neither overflow nor lose to underflow.
bool in_fast_range(Type type, float max) {
  if (type == Type::f16) return std::isfinite(max);
  return max == 0 || (max >= 0x1p-40f && max <= 0x1p50f);
}

float largest(std::span<const float* const, 4> vectors, std::size_t length) {
  float max = 0;
  for (const float* vector : vectors)
    for (std::size_t e = 0; e < length; e++) max = std::max(max, std::fabs(vector[e]));
  return max;
}

// Word j of each vector goes to chain j.
float sum_of_chains(std::span<const float* const, 4> vectors, std::size_t length) {
  const std::size_t per_word = length / 4;
  std::array<float, 4> squares{};
  for (const float* vector : vectors)
    for (std::size_t w = 0; w < per_word; w++)
      for (std::size_t j = 0; j < 4; j++) {
        const float value = vector[j * per_word + w];
        squares[j] = std::fma(value, value, squares[j]);
      }
  return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

void measure_group(Type type, Path path, std::span<const float* const, 4> vectors, std::size_t length,
                   ThreadSums& sums) {
  if (path == Path::one_float32) {
    for (const float* vector : vectors)
      for (std::size_t e = 0; e < length; e++) sums.single = std::fma(vector[e], vector[e], sums.single);
  } else if (path == Path::unguarded || in_fast_range(type, largest(vectors, length))) {
    sums.fast += static_cast<double>(sum_of_chains(vectors, length));
  } else {
    for (const float* vector : vectors)
      for (std::size_t e = 0; e < length; e++) {
        const double value = vector[e];
        sums.exact += value * value;
      }
  }
}

// Lane i adds lane i + 1, then i + 2, i + 4, ... The sum is lane 0's.
double reduce_lanes(std::span<double> lanes) {
  for (std::size_t offset = 1; offset < lanes.size(); offset *= 2)
    for (std::size_t i = 0; i + offset < lanes.size(); i++) lanes[i] += lanes[i + offset];
  return lanes[0];
}

double reduce_threads(std::span<const ThreadSums, kThreads> threads) {
  double sum = 0;
  for (std::size_t warp = 0; warp < kThreads; warp += 32) {
    std::array<double, 32> lanes;
    for (std::size_t i = 0; i < lanes.size(); i++) {
      const ThreadSums& thread = threads[warp + i];
      lanes[i] = (thread.exact + thread.fast) + static_cast<double>(thread.single);
    }
    sum += reduce_lanes(lanes);
  }
  return sum;
}

// Blocks of 16 neighbours, in order.
std::vector<double> reduce_blocks(std::span<const double> parts) {
  std::vector<double> blocks;
  for (std::size_t first = 0; first < parts.size(); first += kBlockCtas) {
    std::array<double, kBlockCtas> lanes{};
    const std::size_t count = std::min<std::size_t>(kBlockCtas, parts.size() - first);
    std::copy_n(parts.begin() + static_cast<std::ptrdiff_t>(first), count, lanes.begin());
    blocks.push_back(reduce_lanes(lanes));
  }
  return blocks;
}

// Elements first...first + out.size() - 1.
using Fill = std::function<void(std::uint64_t first, std::span<float> out)>;

struct Sums {
  double measured = 0;
  long double exact = 0;

  double relative_error() const { return static_cast<double>((measured - exact) / exact); }
};

Sums sum_squares(Type type, Path path, std::uint64_t count, const Fill& fill) {
  const std::uint32_t vector = type == Type::f32 ? 4 : 8;  // elements of 16 bytes
  const std::uint32_t team = ReferenceSketch::kRow / vector, teams = kThreads / team;
  const auto superrows = static_cast<std::uint32_t>((count + kSuperrow - 1) / kSuperrow);
  const std::uint64_t units = (superrows + teams - 1) / teams;
  const ReferenceSketch sketch(7);
  Sums sums;
  std::vector<float> x(kSuperrow);
  std::vector<double> ctas;
  for (std::uint64_t cta = 0; cta < kCtas; cta++) {
    const auto begin = static_cast<std::uint32_t>(units * cta / kCtas * teams);
    const auto end = std::min(superrows, static_cast<std::uint32_t>(units * (cta + 1) / kCtas * teams));
    std::array<ThreadSums, kThreads> threads{};
    for (std::uint32_t c = begin; c < end; c++) {
      const std::uint64_t first = std::uint64_t{c} * kSuperrow;
      const auto present = static_cast<std::size_t>(std::min<std::uint64_t>(kSuperrow, count - first));
      std::fill(x.begin(), x.end(), 0.0f);
      fill(first, std::span(x).first(present));
      long double exact = 0;
      for (const float value : x) exact += static_cast<long double>(value) * value;
      sums.exact += exact;

      const ReferenceSketch::Superrow row = sketch.superrow(c);
      std::array<const float*, 8> slots;  // where the row of each slot begins
      std::array<std::uint32_t, 8> permutation;
      for (std::uint32_t s = 0; s < 8; s++) {
        slots[s] = x.data() + (s ^ row.rho) * ReferenceSketch::kRow;
        permutation[s] = ReferenceSketch::permutation(row, s);
      }
      for (std::uint32_t member = 0; member < team; member++) {
        ThreadSums& thread = threads[(c - begin) % teams * team + member];
        for (std::uint32_t group = 0; group < 8; group += 4) {
          std::array<const float*, 4> vectors;
          for (std::uint32_t s = group; s < group + 4; s++) {
            vectors[s - group] = slots[s] + ((vector * member) ^ permutation[s]) / vector * vector;
          }
          measure_group(type, path, vectors, vector, thread);
        }
      }
    }
    ctas.push_back(reduce_threads(threads));
  }
  sums.measured = reduce_blocks(reduce_blocks(ctas)).at(0);
  return sums;
}

// ---- data -----------------------------------------------------------------------------------------------------------

Fill constant(Type type, float value) {
  return [v = round_to(type, value)](std::uint64_t, std::span<float> out) { std::fill(out.begin(), out.end(), v); };
}

// Draws from 65536 values, of which `value` makes one from a normal deviate.
Fill drawn(Type type, const std::function<double(double)>& value) {
  std::mt19937_64 random(21);
  std::normal_distribution<double> gauss;
  std::vector<float> table(65536);
  for (float& v : table) v = round_to(type, static_cast<float>(value(gauss(random))));
  return [table](std::uint64_t first, std::span<float> out) {
    std::mt19937_64 draw(first);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < out.size(); i++) {
      bits = i % 4 == 0 ? draw() : bits >> 16;
      out[i] = table[bits & 0xffff];
    }
  };
}

// x_i = (i + 1) * step
Fill growing(Type type, double step) {
  return [type, step](std::uint64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); i++) {
      out[i] = round_to(type, static_cast<float>(static_cast<double>(first + i + 1) * step));
    }
  };
}

Fill alternating(Type type, double large, double small) {
  const Fill draws = drawn(type, [&](double g) { return large * g; });
  const float ratio = static_cast<float>(small / large);
  return [type, draws, ratio](std::uint64_t first, std::span<float> out) {
    draws(first, out);
    for (std::size_t i = 1; i < out.size(); i += 2) out[i] = round_to(type, out[i] * ratio);
  };
}

struct Case {
  const char* name;
  Type type;
  std::function<Fill(Type)> data;
  bool single_fails;  // one float32 sum per thread misses the limit
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const auto kTenths = [](Type t) { return constant(t, 0.1f); };
const auto kGaussian = [](Type t) { return drawn(t, [](double g) { return g; }); };
// Up to the range of float16.
const auto kLognormal = [](Type t) { return drawn(t, [](double g) { return std::exp(3 * std::min(g, 3.6)); }); };
const auto kGrowing = [](Type t) { return growing(t, 1e4 / kElements); };
const auto kAlternating = [](Type t) {
  return t == Type::f16 ? alternating(t, 1e4, 1e-4) : alternating(t, 1e13, 1e-10);
};
// Some groups on either side of 2^50 and of 2^-40.
const auto kAroundLargest = [](Type t) { return drawn(t, [](double g) { return 0x1p49 * g; }); };
const auto kAroundSmallest = [](Type t) { return drawn(t, [](double g) { return 0x1p-41 * g; }); };
const auto kTiny = [](Type t) { return drawn(t, [](double g) { return 1e-25 * g; }); };
const auto kHuge = [](Type t) { return drawn(t, [](double g) { return 1e36 * g; }); };

const Case kCases[] = {
    {"TenthsF32", Type::f32, kTenths, true},
    {"TenthsBf16", Type::bf16, kTenths, true},
    {"TenthsF16", Type::f16, kTenths, true},
    {"GaussianF32", Type::f32, kGaussian, false},
    {"GaussianBf16", Type::bf16, kGaussian, true},
    {"GaussianF16", Type::f16, kGaussian, true},
    {"LognormalF32", Type::f32, kLognormal, true},
    {"LognormalBf16", Type::bf16, kLognormal, true},
    {"LognormalF16", Type::f16, kLognormal, true},
    {"GrowingF32", Type::f32, kGrowing, false},
    {"GrowingBf16", Type::bf16, kGrowing, true},
    {"GrowingF16", Type::f16, kGrowing, true},
    {"AlternatingF32", Type::f32, kAlternating, false},
    {"AlternatingBf16", Type::bf16, kAlternating, true},
    {"AlternatingF16", Type::f16, kAlternating, true},
    {"AroundLargestF32", Type::f32, kAroundLargest, false},
    {"AroundSmallestBf16", Type::bf16, kAroundSmallest, true},
    {"TinyF32", Type::f32, kTiny, true},
    {"HugeBf16", Type::bf16, kHuge, true},
};

class NormAccuracy : public testing::TestWithParam<Case> {};

// The limit is the norm's, and the sum of squares, whose relative error is twice the norm's, keeps it as well.
TEST_P(NormAccuracy, OfManyElements) {
  const Case& c = GetParam();
  const Fill fill = c.data(c.type);
  const double error = sum_squares(c.type, Path::guarded, kElements, fill).relative_error();
  EXPECT_LE(std::fabs(error), kLimit) << error;
  if (c.single_fails) {
    const double single = sum_squares(c.type, Path::one_float32, kElements, fill).relative_error();
    // Inf and NaN miss it too.
    EXPECT_FALSE(std::fabs(single) <= 2 * kLimit) << single;
  }
}

INSTANTIATE_TEST_SUITE_P(Data, NormAccuracy, testing::ValuesIn(kCases),
                         [](const auto& values) { return std::string(values.param.name); });

// Of constant data every group has the same error, and it stays in the sum however many there are. All mantissas: other
// exponents only scale the sums.
TEST(NormOfConstantData, WhateverTheConstant) {
  for (const Type type : {Type::f32, Type::bf16, Type::f16}) {
    const std::size_t length = type == Type::f32 ? 4 : 8;
    const std::uint32_t step = type == Type::f32 ? 1 : type == Type::bf16 ? 1u << 16 : 1u << 13;
    double worst = 0;
    for (std::uint32_t bits = 0x3f800000; bits < 0x40000000; bits += step) {
      std::array<float, 8> vector;
      vector.fill(std::bit_cast<float>(bits));
      const std::array<const float*, 4> vectors = {vector.data(), vector.data(), vector.data(), vector.data()};
      const double exact = 4 * static_cast<double>(length) * static_cast<double>(vector[0]) * vector[0];
      worst = std::max(worst, std::fabs(std::sqrt(sum_of_chains(vectors, length) / exact) - 1));
    }
    EXPECT_LE(worst, kLimit) << "elements of " << 16 / length << " bytes";
  }
}

// Out of the range that the guard admits float32 squares overflow, vanish or lose their digits.
TEST(NormGuard, IsNeeded) {
  for (const auto& data : {kTiny(Type::f32), kHuge(Type::f32)}) {
    EXPECT_LE(std::fabs(sum_squares(Type::f32, Path::guarded, 1'000'000, data).relative_error()), kLimit);
    EXPECT_FALSE(std::fabs(sum_squares(Type::f32, Path::unguarded, 1'000'000, data).relative_error()) <= kLimit);
  }
}

}  // namespace
}  // namespace gradprobe::test
