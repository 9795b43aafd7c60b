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
//
// Float64 elements are left out: their squares are never summed in float32.

struct Format {
  const char* name;
  std::uint32_t per_vector;  // elements of 16 bytes
  int dropped;               // bits of float32's mantissa that it hasn't got
  float smallest_normal;     // of those that float32 has as normal numbers
  float unit;                // of its subnormal numbers
  float largest;

  // To nearest, ties to even; saturating.
  float round(float x) const {
    if (dropped == 0) return x;
    if (std::fabs(x) < smallest_normal) {
      const float aligned = unit * 0x1.8p23f;  // its unit in the last place is the subnormals'
      return (x + aligned) - aligned;
    }
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t half = (1u << (dropped - 1)) - 1 + (bits >> dropped & 1u);
    return std::clamp(std::bit_cast<float>((bits + half) >> dropped << dropped), -largest, largest);
  }
};

constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr Format kFormats[] = {{"F32", 4, 0, 0, 0, kLargestFloat},
                               {"Bf16", 8, 16, 0, 0, 0x1.fep127f},
                               {"F16", 8, 13, 0x1p-14f, 0x1p-24f, 65504},
                               {"E4m3", 16, 20, 0x1p-6f, 0x1p-9f, 448},
                               {"E5m2", 16, 21, 0x1p-14f, 0x1p-16f, 57344}};
constexpr const Format &kF32 = kFormats[0], &kBf16 = kFormats[1];

// ---- the kernels' order of operations -------------------------------------------------------------------------------

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

// The 16-byte vectors that a thread loads for the slots of a superrow, in the order in which it takes their elements.
struct Vectors {
  std::array<std::array<float, 16>, 8> slots;
};

// Whether, with this largest |x| of a superrow's, a thread's float32 sums can be trusted: they neither overflow nor
// lose to underflow.
bool in_fast_range(const Format& format, float max) {
  if (format.largest < 1e9f) return true;
  return max == 0 || (max >= 0x1p-60f && max < 0x1p60f);
}

// Slots that are summed in float32 before they go to float64.
std::uint32_t group_of(const Format& format) {
  return format.per_vector == 8 ? 4 : 8;
}

// Chains of word j of each vector or, of 8-bit elements, of the even and of the odd elements.
float sum_of_chains(const Format& format, const Vectors& vectors, std::uint32_t first) {
  std::array<float, 4> squares{};
  for (std::uint32_t s = first; s < first + group_of(format); s++) {
    for (std::uint32_t e = 0; e < format.per_vector; e++) {
      float& chain = squares[format.per_vector == 16 ? e % 2 : e / (format.per_vector / 4)];
      chain = std::fma(vectors.slots[s][e], vectors.slots[s][e], chain);
    }
  }
  return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

void measure_superrow(const Format& format, Path path, const Vectors& vectors, ThreadSums& sums) {
  const auto for_each_element = [&](const auto& use) {
    for (const auto& slot : vectors.slots)
      for (std::uint32_t e = 0; e < format.per_vector; e++) use(slot[e]);
  };
  if (path == Path::one_float32) {
    for_each_element([&](float x) { sums.single = std::fma(x, x, sums.single); });
    return;
  }
  float max = 0;
  for_each_element([&](float x) { max = std::max(max, std::fabs(x)); });
  if (path == Path::unguarded || in_fast_range(format, max)) {
    for (std::uint32_t first = 0; first < 8; first += group_of(format)) {
      sums.fast += static_cast<double>(sum_of_chains(format, vectors, first));
    }
  } else {
    for_each_element([&](double x) { sums.exact += x * x; });
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

// What member `member` of a team loads of a superrow.
void load(const Format& format, std::span<const float, kSuperrow> x, const ReferenceSketch::Superrow& row,
          std::uint32_t member, Vectors& vectors) {
  for (std::uint32_t s = 0; s < 8; s++) {
    const std::uint32_t permutation = ReferenceSketch::permutation(row, s);
    const float* slot = x.data() + (s ^ row.rho) * ReferenceSketch::kRow;
    const float* vector = slot + ((format.per_vector * member) ^ permutation) / format.per_vector * format.per_vector;
    // The halves of a vector of 8-bit elements are permuted as whole vectors of the others are.
    const std::uint32_t swapped = format.per_vector == 16 ? permutation & 8u : 0;
    for (std::uint32_t e = 0; e < format.per_vector; e++) vectors.slots[s][e] = vector[e ^ swapped];
  }
}

Sums sum_squares(const Format& format, Path path, std::uint64_t count, const Fill& fill) {
  const std::uint32_t team = ReferenceSketch::kRow / format.per_vector, teams = kThreads / team;
  const auto superrows = static_cast<std::uint32_t>((count + kSuperrow - 1) / kSuperrow);
  const std::uint64_t units = (superrows + teams - 1) / teams;
  const ReferenceSketch sketch(7);
  Sums sums;
  std::vector<float> x(kSuperrow);
  Vectors vectors;
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
      for (std::uint32_t member = 0; member < team; member++) {
        load(format, std::span<const float, kSuperrow>(x), row, member, vectors);
        measure_superrow(format, path, vectors, threads[(c - begin) % teams * team + member]);
      }
    }
    ctas.push_back(reduce_threads(threads));
  }
  sums.measured = reduce_blocks(reduce_blocks(ctas)).at(0);
  return sums;
}

// ---- data -----------------------------------------------------------------------------------------------------------

Fill constant(const Format& format, float value) {
  return [v = format.round(value)](std::uint64_t, std::span<float> out) { std::fill(out.begin(), out.end(), v); };
}

// Draws from 65536 values, of which `value` makes one from a normal deviate.
Fill drawn(const Format& format, const std::function<double(double)>& value) {
  std::mt19937_64 random(21);
  std::normal_distribution<double> gauss;
  std::vector<float> table(65536);
  for (float& v : table) v = format.round(static_cast<float>(value(gauss(random))));
  return [table](std::uint64_t first, std::span<float> out) {
    std::mt19937_64 draw(first);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < out.size(); i++) {
      bits = i % 4 == 0 ? draw() : bits >> 16;
      out[i] = table[bits & 0xffff];
    }
  };
}

Fill tenths(const Format& format) {
  return constant(format, 0.1f);
}
Fill gaussian(const Format& format) {
  return drawn(format, [](double g) { return g; });
}
Fill lognormal(const Format& format) {
  return drawn(format, [](double g) { return std::exp(3 * g); });
}

// Linearly, to 10^4 or half the largest number.
Fill growing(const Format& format) {
  const double step = std::min(1e4, static_cast<double>(format.largest) / 2) / static_cast<double>(kElements);
  return [format, step](std::uint64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); i++) {
      out[i] = format.round(static_cast<float>(static_cast<double>(first + i + 1) * step));
    }
  };
}

// A large element, then a small one.
Fill alternating(const Format& format) {
  const double large = std::min(1e13, static_cast<double>(format.largest) / 8);
  const Fill draws_large = drawn(format, [&](double g) { return large * g; });
  const Fill draws_small = drawn(format, [&](double g) { return g / large; });
  return [draws_large, draws_small](std::uint64_t first, std::span<float> out) {
    draws_large(first, out);
    std::vector<float> small(out.size());
    draws_small(first + 1, small);
    for (std::size_t i = 1; i < out.size(); i += 2) out[i] = small[i];
  };
}

// With some groups on either side of 2^60 and of 2^-60.
Fill around_largest(const Format& format) {
  return drawn(format, [](double g) { return 0x1p59 * g; });
}
Fill around_smallest(const Format& format) {
  return drawn(format, [](double g) { return 0x1p-61 * g; });
}

Fill tiny(const Format& format) {
  return drawn(format, [](double g) { return 1e-25 * g; });
}
Fill huge(const Format& format) {
  return drawn(format, [](double g) { return 1e36 * g; });
}

// ---- tests ----------------------------------------------------------------------------------------------------------

struct Case {
  std::string name;
  Format format;
  Fill (*data)(const Format&);
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Format& format : kFormats) {
    cases.push_back({std::string("Tenths") + format.name, format, tenths});
    cases.push_back({std::string("Gaussian") + format.name, format, gaussian});
    cases.push_back({std::string("Lognormal") + format.name, format, lognormal});
    cases.push_back({std::string("Growing") + format.name, format, growing});
    cases.push_back({std::string("Alternating") + format.name, format, alternating});
  }
  cases.push_back({"AroundLargestF32", kF32, around_largest});
  cases.push_back({"AroundSmallestBf16", kBf16, around_smallest});
  cases.push_back({"TinyF32", kF32, tiny});
  cases.push_back({"HugeBf16", kBf16, huge});
  return cases;
}

class NormAccuracy : public testing::TestWithParam<Case> {};

// The limit is the norm's, and the sum of squares, whose relative error is twice the norm's, keeps it as well.
TEST_P(NormAccuracy, OfManyElements) {
  const Case& c = GetParam();
  const double error = sum_squares(c.format, Path::guarded, kElements, c.data(c.format)).relative_error();
  EXPECT_LE(std::fabs(error), kLimit) << error;
}

INSTANTIATE_TEST_SUITE_P(Data, NormAccuracy, testing::ValuesIn(all_cases()),
                         [](const auto& values) { return values.param.name; });

// Of constant data every group has the same error, and it stays in the sum however many there are. All mantissas: other
// exponents only scale the sums.
TEST(NormOfConstantData, WhateverTheConstant) {
  for (const Format& format : kFormats) {
    const double elements = static_cast<double>(group_of(format)) * format.per_vector;
    double worst = 0;
    Vectors vectors;
    for (std::uint32_t bits = 0x3f800000; bits < 0x40000000; bits += 1u << format.dropped) {
      const auto value = std::bit_cast<float>(bits);
      for (std::uint32_t s = 0; s < group_of(format); s++) vectors.slots[s].fill(value);
      const double exact = elements * static_cast<double>(value) * static_cast<double>(value);
      worst = std::max(worst, std::fabs(std::sqrt(sum_of_chains(format, vectors, 0) / exact) - 1));
    }
    EXPECT_LE(worst, kLimit) << format.name;
  }
}

// The limit is not met by itself: a thread that keeps one float32 sum of all its elements misses it. (Of constant data
// not with 8-bit elements, whose squares are so short that such sums are exact.)
TEST(NormLimit, NoticesFloat32Sums) {
  const auto error = [](const Format& format, const Fill& data) {
    return std::fabs(sum_squares(format, Path::one_float32, kElements, data).relative_error());
  };
  for (const Format& format : kFormats) {
    EXPECT_GT(error(format, lognormal(format)), 5 * kLimit) << format.name;
    if (format.per_vector <= 8) {
      EXPECT_GT(error(format, tenths(format)), 100 * kLimit) << format.name;
    }
  }
}

// Out of the range that the guard admits float32 squares overflow, vanish or lose their digits.
TEST(NormLimit, NoticesAMissingGuard) {
  for (const auto data : {tiny, huge}) {
    EXPECT_LE(std::fabs(sum_squares(kF32, Path::guarded, 1'000'000, data(kF32)).relative_error()), kLimit);
    EXPECT_FALSE(std::fabs(sum_squares(kF32, Path::unguarded, 1'000'000, data(kF32)).relative_error()) <= kLimit);
  }
}

}  // namespace
}  // namespace gradprobe::test
