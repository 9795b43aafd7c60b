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

  // One pass over one bucket for each `of` neighbouring values.
  void expect_all(std::uint32_t k, std::uint64_t of) const {
    RigOptions options;
    options.k = k;
    options.ring_capacity = gate::kMaxEntries;
    Rig rig(options);
    for (std::uint64_t first = 0; first < values();) {
      std::vector<Bucket> buckets;
      rig.reopen(0);
      for (; first < values() && buckets.size() < gate::kMaxEntries; first += of) {
        buckets.emplace_back(range(first, of));
        rig.add(0, buckets.back().entry(first));
      }
      rig.publish(0);
      const auto results = by_entry(run_pass(rig, {.ctas = 16, .kernel = measured_type(GetParam())}), buckets.size());
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        SCOPED_TRACE(buckets[i].elements()[0]);
        expect_measured(results[i], buckets[i], buckets[i].elements()[0], 1, k, Sums::exact);
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
  const auto fraction = fraction_mask(GetParam());
  expect_all(0, std::min<std::uint64_t>(fraction + 1, 128));
}

// Each value alone: its square, its magnitude as the maximum, its place among the counts, its one float.
TEST_P(AllValues, Alone) {
  expect_all(element_bytes(GetParam()) == 1 ? 256 : 0, 1);
}

INSTANTIATE_TEST_SUITE_P(Types, AllValues,
                         testing::Values(Datatype::f16, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace gradprobe::test
