// The reference itself: published values of the number formats, and properties of the definition.
#include "reference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "inputs.hpp"

namespace gradprobe::test {
namespace {

struct Published {
  Datatype type;
  std::uint64_t bits;
  double value;
};

// OCP 8-bit Floating Point Specification, tables of both formats; IEEE 754 binary16, 32 and 64; bfloat16.
const Published kPublished[] = {
    {Datatype::f8e4m3, 0x7e, 448},
    {Datatype::f8e4m3, 0x08, 0x1p-6},
    {Datatype::f8e4m3, 0x07, 0.875 * 0x1p-6},
    {Datatype::f8e4m3, 0x01, 0x1p-9},
    {Datatype::f8e4m3, 0x00, 0},
    {Datatype::f8e4m3, 0x38, 1},
    {Datatype::f8e4m3, 0xb8, -1},
    {Datatype::f8e4m3, 0x78, 256},
    {Datatype::f8e5m2, 0x7b, 57344},
    {Datatype::f8e5m2, 0x04, 0x1p-14},
    {Datatype::f8e5m2, 0x03, 0.75 * 0x1p-14},
    {Datatype::f8e5m2, 0x01, 0x1p-16},
    {Datatype::f8e5m2, 0x3c, 1},
    {Datatype::f8e5m2, 0x7c, std::numeric_limits<double>::infinity()},
    {Datatype::f8e5m2, 0xfc, -std::numeric_limits<double>::infinity()},
    {Datatype::f16, 0x7bff, 65504},
    {Datatype::f16, 0x3c00, 1},
    {Datatype::f16, 0x0400, 0x1p-14},
    {Datatype::f16, 0x0001, 0x1p-24},
    {Datatype::f16, 0x3555, 0.333251953125},
    {Datatype::f16, 0x7c00, std::numeric_limits<double>::infinity()},
    {Datatype::bf16, 0x3f80, 1},
    {Datatype::bf16, 0x4049, 3.140625},
    {Datatype::bf16, 0x7f7f, 0x1.fep127},
    {Datatype::bf16, 0x0001, 0x1p-133},
    {Datatype::bf16, 0xff80, -std::numeric_limits<double>::infinity()},
    {Datatype::f32, 0x7f7fffff, 0x1.fffffep127},
    {Datatype::f32, 0x00800000, 0x1p-126},
    {Datatype::f32, 0x00000001, 0x1p-149},
    {Datatype::f32, 0x40490fdb, 3.1415927410125732},
    {Datatype::f64, 0x7fefffffffffffff, 0x1.fffffffffffffp1023},
    {Datatype::f64, 0x0010000000000000, 0x1p-1022},
    {Datatype::f64, 0x0000000000000001, 0x1p-1074},
    {Datatype::f64, 0x400921fb54442d18, 3.141592653589793},
};

TEST(Formats, PublishedValues) {
  for (const Published& p : kPublished) {
    SCOPED_TRACE(std::string(name(p.type)) + " " + std::to_string(p.bits));
    EXPECT_EQ(decode(p.type, p.bits), p.value);
    EXPECT_EQ(encode(p.type, p.value), p.bits);
  }
  // NaN: e4m3 has one of either sign, e5m2 three.
  for (const std::uint64_t bits : {0x7fu, 0xffu}) EXPECT_TRUE(std::isnan(decode(Datatype::f8e4m3, bits)));
  for (const std::uint64_t bits : {0x7du, 0x7eu, 0x7fu, 0xfdu}) EXPECT_TRUE(std::isnan(decode(Datatype::f8e5m2, bits)));
  for (const std::uint64_t bits : {0x7c01u, 0x7e00u, 0xffffu}) EXPECT_TRUE(std::isnan(decode(Datatype::f16, bits)));
  EXPECT_EQ(largest_bits(Datatype::f8e4m3), 0x7eu);
  EXPECT_EQ(largest_bits(Datatype::f8e5m2), 0x7bu);
  EXPECT_EQ(nan_bits(Datatype::f32), 0x7fc00000u);
  EXPECT_EQ(infinity_bits(Datatype::bf16), 0x7f80u);
}

TEST(Formats, EveryNumberOfTheShortTypesComesBack) {
  for (const Datatype type : {Datatype::f16, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2}) {
    double before = -1;
    for (std::uint64_t bits = 0; bits < 2 * sign_bit(type); ++bits) {
      const double value = decode(type, bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(decode(type, encode(type, value))));
        continue;
      }
      ASSERT_EQ(encode(type, value), bits) << name(type);
      if (bits < sign_bit(type)) {
        ASSERT_GT(value, before) << name(type) << ": the numbers rise with their bits";
        before = value;
      }
    }
  }
}

// The processor's own conversions, where it has them.
TEST(Formats, EncodingRoundsAsTheProcessorDoes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bits = random();
    const double value = decode(Datatype::f64, bits);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(encode(Datatype::f64, value), bits);
    // Most binary64 are far outside of binary32.
    int exponent = 0;
    const double near = std::ldexp(std::frexp(value, &exponent), static_cast<int>(bits % 280) - 152);
    ASSERT_EQ(decode(Datatype::f32, encode(Datatype::f32, near)), static_cast<double>(static_cast<float>(near)));
  }
}

TEST(Formats, TiesGoToEven) {
  EXPECT_EQ(encode(Datatype::f8e4m3, 17), encode(Datatype::f8e4m3, 16));
  EXPECT_EQ(encode(Datatype::f8e4m3, 19), encode(Datatype::f8e4m3, 20));
  EXPECT_EQ(encode(Datatype::f8e5m2, 9), encode(Datatype::f8e5m2, 8));
  EXPECT_EQ(encode(Datatype::f8e5m2, 11), encode(Datatype::f8e5m2, 12));
  EXPECT_EQ(encode(Datatype::f8e4m3, 0x1p-10), 0u);
  EXPECT_EQ(encode(Datatype::f16, 2049), encode(Datatype::f16, 2048));
  EXPECT_EQ(encode(Datatype::f8e4m3, 480), nan_bits(Datatype::f8e4m3));
  EXPECT_EQ(encode(Datatype::f8e5m2, 65536), infinity_bits(Datatype::f8e5m2));
}

// In each row of 2048 elements every position of the registers is taken once: no two elements of a row share a sum.
TEST(Definition, RowsArePermuted) {
  for (const std::uint64_t row : {0u, 1u, 7u, 8u, 12'345u, (1u << 21) + 5}) {
    const SketchMap map(2048, run_key_reference(3, 1));
    std::set<std::uint32_t> seen;
    for (std::uint64_t p = 0; p < 2048; ++p) seen.insert(map(row * 2048 + p).index);
    EXPECT_EQ(seen.size(), 2048u);
    EXPECT_EQ(*seen.rbegin(), 2047u);
  }
}

// Folding gives every sum of a smaller sketch the same number of positions.
TEST(Definition, FoldsEvenly) {
  for (const std::uint32_t k : {256u, 512u, 1024u}) {
    const SketchMap map(k, run_key_reference(3, 1));
    std::vector<std::uint32_t> elements(k);
    for (std::uint64_t i = 0; i < 2048; ++i) ++elements.at(map(i).index);
    for (const std::uint32_t n : elements) ASSERT_EQ(n, 2048 / k);
  }
}

// k = 4096: the superrows of a pair never meet, and which comes first changes from pair to pair.
TEST(Definition, LargestSketchKeepsNeighbouringSuperrowsApart) {
  const SketchMap map(4096, run_key_reference(4, 1));
  std::set<bool> first;
  for (std::uint64_t pair = 0; pair < 50; ++pair) {
    const auto upper = [&](std::uint64_t superrow) { return map(superrow * 16384).index >= 2048; };
    EXPECT_NE(upper(2 * pair), upper(2 * pair + 1));
    for (std::uint64_t i = 0; i < 16384; i += 777) ASSERT_EQ(map(2 * pair * 16384 + i).index >= 2048, upper(2 * pair));
    first.insert(upper(2 * pair));
  }
  EXPECT_EQ(first.size(), 2u);
}

TEST(Definition, SparseAndDenseAgree) {
  std::mt19937 random(6);
  for (const Datatype type : kTypes) {
    Elements elements(type, 70'000);
    std::vector<Planted> planted;
    for (std::uint64_t i = random() % 1000; i < elements.size(); i += 1 + random() % 1000) {
      planted.push_back({i, encode(type, static_cast<int>(random() % 15) - 7)});
    }
    planted.back().bits = nan_bits(type);
    for (const Planted& p : planted) elements.set(p.index, p.bits);
    const Reference dense = measure(elements, 512, 9), sparse = measure_sparse(type, elements.size(), planted, 512, 9);
    EXPECT_EQ(dense.sum_squares, sparse.sum_squares);
    EXPECT_EQ(dense.zero_count, sparse.zero_count);
    EXPECT_EQ(dense.first_nonfinite, sparse.first_nonfinite);
    EXPECT_EQ(dense.sketch, sparse.sketch);
  }
}

TEST(Definition, Fingerprint) {
  const auto of = [](std::initializer_list<std::uint8_t> values) {
    std::vector<std::byte> bytes;
    for (const std::uint8_t v : values) bytes.push_back(std::byte{v});
    return fingerprint(bytes);
  };
  EXPECT_EQ(of({}), 0u);
  EXPECT_EQ(of({0x12}), 0x12u);
  EXPECT_EQ(of({0x78, 0x56, 0x34, 0x12}), 0x12345678u);
  EXPECT_EQ(of({0xff, 0xff, 0xff, 0xff, 0x01}), 0x100000000u);
  EXPECT_EQ(of({0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0x80, 0, 0x10}), 0x180000fffu);
}

}  // namespace
}  // namespace gradprobe::test
