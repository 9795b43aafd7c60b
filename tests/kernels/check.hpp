// Comparing a kernel's result with the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "reference.hpp"
#include "rig.hpp"

namespace gradprobe::test {

enum class Sums { exact, rounded };

// Sums::exact: every partial sum of the input is representable (small integers), so any order gives the same bits.
inline void expect_measured(const Measured& got, const Bucket& bucket, std::uint64_t key, std::uint32_t run,
                            std::uint32_t k, Sums sums) {
  const Reference want = measure(bucket.type(), bucket.bits(), k, run_key_reference(key, run));
  EXPECT_EQ(got.head.status, gate::kMeasured);
  EXPECT_EQ(got.head.run, run);
  EXPECT_EQ(got.head.key, run_key_reference(key, run));
  EXPECT_EQ(got.head.nan_count, want.nan_count);
  EXPECT_EQ(got.head.inf_count, want.inf_count);
  EXPECT_EQ(got.head.first_nonfinite, want.first_nonfinite);
  EXPECT_EQ(got.head.zero_count, want.zero_count);
  EXPECT_EQ(got.head.max_abs, want.max_abs);
  EXPECT_LE(got.head.start_ns, got.head.end_ns);
  if (sums == Sums::exact) {
    EXPECT_EQ(got.head.sum_squares, want.sum_squares);
  } else {
    EXPECT_NEAR(got.head.sum_squares, want.sum_squares, 1e-6 * want.sum_squares);
  }
  ASSERT_EQ(got.sketch.size(), k);
  std::size_t wrong = 0;
  // Each float32 addition of n terms is off by at most half an ulp of a partial sum.
  const double terms = static_cast<double>(bucket.bits().size()) / std::max(k, 1u) + 64;
  for (std::uint32_t j = 0; j < k; ++j) {
    const double allowed = sums == Sums::exact ? 0 : terms * 0x1p-24 * want.magnitudes[j];
    // Negated, so that NaN counts as wrong.
    wrong += !(std::fabs(static_cast<double>(got.sketch[j]) - want.sketch[j]) <= allowed);
  }
  EXPECT_EQ(wrong, 0u) << "of " << k << " sketch values";
}

}  // namespace gradprobe::test
