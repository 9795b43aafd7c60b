// Every value of the 16-bit and the 8-bit types, each so that what it alone adds to a measure shows.
#include <gtest/gtest.h>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

class AllValues : public testing::TestWithParam<Datatype> {
 protected:
  std::uint64_t values() const { return 2 * sign_bit(GetParam()); }

  // The values first ... first + count - 1.
  Elements range(std::uint64_t first, std::size_t count) const {
    Elements elements(GetParam(), count);
    for (std::size_t i = 0; i < count; ++i) elements.set(i, first + i);
    return elements;
  }

  // Buckets make(0) ... make(count - 1), as many in a pass as a slot can have.
  template <typename Make>
  static void expect_each(std::uint32_t k, std::uint64_t count, Make make) {
    RigOptions options;
    options.k = k;
    options.ring_capacity = gate::kMaxEntries;
    Rig rig(options);
    for (std::uint64_t next = 0; next < count;) {
      std::vector<Bucket> buckets;
      rig.reopen(0);
      for (; next < count && buckets.size() < gate::kMaxEntries; ++next) {
        buckets.emplace_back(make(next));
        rig.add(0, buckets.back().entry(next));
      }
      rig.publish(0);
      const std::uint64_t first = next - buckets.size();
      const auto results = by_entry(run_pass(rig, {.ctas = 16, .kernel = measured_type(GetParam())}), buckets.size());
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        SCOPED_TRACE(buckets[i].elements()[0]);
        expect_measured(results[i], buckets[i], first + i, 1, k, Sums::exact);
      }
      if (HasFailure()) return;
    }
  }
};

// Elements of one row never share one of 2048 sums: each sum is exactly one value, or none.
TEST_P(AllValues, Sketch) {
  const Datatype type = GetParam();
  const std::uint32_t k = gate::kRegisterSketch;
  RigOptions options;
  options.k = k;
  const auto of = static_cast<std::size_t>(std::min<std::uint64_t>(k, values()));
  for (std::uint64_t first = 0; first < values(); first += of) {
    const Bucket bucket(range(first, of));
    const Measured got = measure_one(bucket, first, options, 1);
    const SketchMap map(k, run_key_reference(first, 1));
    std::vector<double> want(k, 0);
    for (std::size_t i = 0; i < of; ++i) {
      const double x = decode(type, first + i);
      const SketchPlace at = map(i);
      if (std::isfinite(x) && std::fabs(x) <= kSketchLimit) want[at.index] = at.negative ? -x : x;
    }
    ASSERT_EQ(got.sketch.size(), k);
    for (std::size_t j = 0; j < k; ++j) ASSERT_EQ(static_cast<double>(got.sketch[j]), want[j]) << first << " " << j;
  }
}

// Neighbours of one exponent, whose squares are of one size: none hides in another's rounding.
TEST_P(AllValues, NormAndCounts) {
  const std::uint64_t of = std::min<std::uint64_t>(fraction_mask(GetParam()) + 1, 128);
  expect_each(0, values() / of, [&](std::uint64_t i) { return range(i * of, of); });
}

// Each value alone, with its square, its magnitude as the maximum, its place among the counts; of the 8-bit types with
// its one float, of the 16-bit types each magnitude with one of both signs.
TEST_P(AllValues, Alone) {
  if (element_bytes(GetParam()) == 1) {
    expect_each(256, values(), [&](std::uint64_t i) { return range(i, 1); });
  } else {
    const std::uint64_t sign = sign_bit(GetParam());
    expect_each(0, sign, [&](std::uint64_t i) { return range(i | (i % 2 ? sign : 0), 1); });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AllValues,
                         testing::Values(Datatype::f16, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace gradprobe::test
