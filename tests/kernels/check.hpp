// Comparing a kernel's result with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "rig.hpp"

namespace gradprobe::test {

enum class Sums {
  exact,    // every partial sum of the input is representable (small integers), so any order gives the same bits
  rounded,  // float32 sums in any order
};

// Relative error of the sum of squares: some float32 additions before each of float64, for f64 none. The norm is its
// root and has half of that.
inline double norm_tolerance(Datatype type) {
  return type == Datatype::f64 ? 1e-12 : 2e-7;
}

inline void expect_norm(double got, double want, double relative) {
  if (std::isinf(want)) {
    EXPECT_EQ(got, want);
  } else {
    EXPECT_NEAR(got, want, relative * want);
  }
}

// The measures of one bucket, whatever run they are of.
inline void expect_measures(const Measured& got, const Reference& want, Datatype type, Sums sums) {
  EXPECT_EQ(got.head.status, gate::kMeasured);
  EXPECT_EQ(got.head.nan_count, want.nan_count);
  EXPECT_EQ(got.head.inf_count, want.inf_count);
  EXPECT_EQ(got.head.first_nonfinite, want.first_nonfinite);
  EXPECT_EQ(got.head.zero_count, want.zero_count);
  EXPECT_EQ(got.head.max_abs, want.max_abs);
  EXPECT_EQ(got.head.flags, want.max_abs > kSketchLimit ? gate::kResultSketchInvalid : 0u);
  EXPECT_LE(got.head.start_ns, got.head.end_ns);
  if (sums == Sums::exact) {
    EXPECT_EQ(got.head.sum_squares, want.sum_squares);
  } else {
    expect_norm(got.head.sum_squares, want.sum_squares, norm_tolerance(type));
  }
  ASSERT_EQ(got.sketch.size(), want.sketch.size());
  std::size_t wrong = 0;
  // Each float32 addition of n terms is off by at most half an ulp of a partial sum.
  const double terms =
      static_cast<double>(want.count) / static_cast<double>(std::max<std::size_t>(got.sketch.size(), 1)) + 64;
  for (std::size_t j = 0; j < got.sketch.size(); ++j) {
    const double allowed = sums == Sums::exact ? 0 : terms * 0x1p-24 * want.magnitudes[j];
    // Negated, so that NaN counts as wrong.
    wrong += !(std::fabs(static_cast<double>(got.sketch[j]) - want.sketch[j]) <= allowed);
  }
  EXPECT_EQ(wrong, 0u) << "of " << got.sketch.size() << " sketch values";
}

inline void expect_run(const Measured& got, gate::Pass pass, std::uint64_t key, std::uint32_t run) {
  EXPECT_EQ(got.head.pass, static_cast<std::uint32_t>(pass));
  EXPECT_EQ(got.head.run, run);
  EXPECT_EQ(got.head.key, run_key_reference(key, run));
}

// Run `run` of the input pass of an entry with `key`.
inline void expect_measured(const Measured& got, const Bucket& bucket, std::uint64_t key, std::uint32_t run,
                            std::uint32_t k, Sums sums) {
  expect_run(got, gate::kInputPass, key, run);
  expect_measures(got, measure(bucket.elements(), k, run_key_reference(key, run)), bucket.type(), sums);
}

// The same of the result pass, whose output is `bucket`.
inline void expect_result(const Measured& got, const Bucket& bucket, std::uint64_t key, std::uint32_t run,
                          std::uint32_t k, Sums sums) {
  expect_run(got, gate::kResultPass, key, run);
  expect_measures(got, measure(bucket.elements(), k, run_key_reference(key, run)), bucket.type(), sums);
  EXPECT_EQ(got.head.fingerprint, fingerprint(bucket.elements().bytes()));
}

// All that a second measurement of the same elements must repeat bit by bit; floats too when `grid` is the same.
inline void expect_same_counts(const Measured& a, const Measured& b) {
  EXPECT_EQ(a.head.max_abs, b.head.max_abs);
  EXPECT_EQ(a.head.nan_count, b.head.nan_count);
  EXPECT_EQ(a.head.inf_count, b.head.inf_count);
  EXPECT_EQ(a.head.zero_count, b.head.zero_count);
  EXPECT_EQ(a.head.first_nonfinite, b.head.first_nonfinite);
  EXPECT_EQ(a.head.fingerprint, b.head.fingerprint);
}
inline void expect_same_bits(const Measured& a, const Measured& b) {
  expect_same_counts(a, b);
  EXPECT_EQ(a.head.sum_squares, b.head.sum_squares);
  EXPECT_EQ(a.sketch, b.sketch);
}

}  // namespace gradprobe::test
