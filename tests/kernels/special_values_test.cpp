// NaN, infinities, zeros, subnormal and extreme numbers, wherever they may lie in a bucket.
#include "check.hpp"
#include "inputs.hpp"

namespace gradprobe::test {
namespace {

class SpecialValues : public testing::TestWithParam<Datatype> {
 protected:
  Measured run(const Bucket& bucket, std::uint32_t ctas = 3) {
    Rig rig;
    Stream stream;
    rig.add(0, bucket.entry(kKey));
    rig.publish(0);
    rig.launch(0, ctas, stream.get(), {bucket.type()});
    stream.synchronize();
    auto results = rig.collect();
    if (results.size() != 1) throw std::runtime_error("no result");
    return std::move(results[0]);
  }
  void expect_exact(const Bucket& bucket) {
    expect_measured(run(bucket), bucket, kKey, 1, RigOptions{}.k, Sums::exact);
  }
  void expect_rounded(const Bucket& bucket) {
    expect_measured(run(bucket), bucket, kKey, 1, RigOptions{}.k, Sums::rounded);
  }
  static constexpr std::uint64_t kKey = 77;
};

TEST_P(SpecialValues, OneNonfiniteElementAnywhere) {
  const Datatype type = GetParam();
  const std::size_t n = 70'001;
  for (const std::size_t at : {0u, 1u, 7u, 2047u, 2048u, 9999u, 16383u, 16384u, 40'000u, 65'535u, 65'536u, 70'000u}) {
    for (const std::uint32_t bits :
         {quiet_nan_bits(type), signalling_nan_bits(type), quiet_nan_bits(type) | sign_bit(type), infinity_bits(type),
          infinity_bits(type) | sign_bit(type)}) {
      SCOPED_TRACE(std::to_string(bits) + " at " + std::to_string(at));
      auto content = small_integers(type, n, 20);
      content[at] = bits;
      // One in two misaligned.
      expect_exact(Bucket(type, std::move(content), at % 2 ? element_bytes(type) : 0));
    }
  }
}

TEST_P(SpecialValues, FirstOfManyNonfiniteElements) {
  const Datatype type = GetParam();
  std::mt19937 random(21);
  for (const std::size_t count : {2u, 10u, 5000u}) {
    SCOPED_TRACE(count);
    auto content = small_integers(type, 90'000, 22);
    for (std::size_t i = 0; i < count; ++i) {
      content[random() % content.size()] = i % 3 ? quiet_nan_bits(type) : infinity_bits(type);
    }
    expect_exact(Bucket(type, std::move(content)));
  }
}

TEST_P(SpecialValues, NothingButNan) {
  const Datatype type = GetParam();
  const Bucket bucket(type, std::vector(40'000, quiet_nan_bits(type)));
  const Measured got = run(bucket);
  EXPECT_EQ(got.head.nan_count, 40'000u);
  EXPECT_EQ(got.head.first_nonfinite, 0u);
  EXPECT_EQ(got.head.sum_squares, 0);
  EXPECT_EQ(got.head.max_abs, 0);
  for (const float value : got.sketch) ASSERT_EQ(value, 0);
}

TEST_P(SpecialValues, ZerosOfBothSigns) {
  const Datatype type = GetParam();
  std::vector<std::uint32_t> content(50'000, 0u);
  for (std::size_t i = 0; i < content.size(); i += 3) content[i] = sign_bit(type);
  expect_exact(Bucket(type, content));
  content[33'333] = encode(type, -2);
  expect_exact(Bucket(type, content));
  for (std::size_t i = 0; i < content.size(); i += 5) content[i] = infinity_bits(type);
  expect_exact(Bucket(type, content));
}

TEST_P(SpecialValues, SubnormalNumbers) {
  const Datatype type = GetParam();
  std::mt19937 random(23);
  // The fraction's bits alone: below the smallest normal number.
  const std::uint32_t fraction = type == Datatype::f32 ? 0x7fffffu : type == Datatype::bf16 ? 0x7fu : 0x3ffu;
  std::vector<std::uint32_t> content(20'000);
  for (auto& bits : content)
    bits = static_cast<std::uint32_t>(random() & fraction) | (random() & 1 ? sign_bit(type) : 0u);
  expect_rounded(Bucket(type, content));
  // Among ordinary numbers.
  for (std::size_t i = 0; i < content.size(); i += 2) content[i] = encode(type, 3);
  expect_rounded(Bucket(type, content));
}

TEST_P(SpecialValues, LargestNumbers) {
  const Datatype type = GetParam();
  const Bucket bucket(type, std::vector(2000, largest_bits(type)));
  const Measured got = run(bucket);
  const double largest = decode(type, largest_bits(type));
  EXPECT_EQ(got.head.max_abs, largest);
  EXPECT_NEAR(got.head.sum_squares, 2000 * largest * largest, 1e-9 * 2000 * largest * largest);
  EXPECT_EQ(got.head.inf_count, 0u);
  // float32 sums of the largest f32 and bf16 may overflow, of the largest f16 they can't.
  EXPECT_EQ(got.head.flags, type == Datatype::f16 ? 0 : gate::kResultSketchInvalid);
}

INSTANTIATE_TEST_SUITE_P(Types, SpecialValues, testing::ValuesIn(kTypes),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace gradprobe::test
