#include <gtest/gtest.h>
#include <gradprobe/dispersion.hpp>
#include <gradprobe/estimators.hpp>

#include <ostream>
#include <random>
#include <string>

#include "reference_sketch.hpp"

namespace gradprobe {
namespace {

using Vectors = std::vector<std::vector<double>>;  // [rank][element]

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); i++) sum += x[i] * y[i];
  return sum;
}

// Ranks whose gradients share a common part, in several buckets; exact values beside the estimates.
class Ranks {
 public:
  Ranks(std::vector<Vectors> buckets, std::uint32_t k, std::uint64_t key) : buckets_(std::move(buckets)) {
    const std::size_t n = buckets_.front().size();
    totals_.assign(n, 0);
    std::vector<std::vector<double>> squares;
    for (const Vectors& bucket : buckets_) {
      squares.emplace_back();
      for (std::size_t i = 0; i < n; i++) {
        squares.back().push_back(dot(bucket[i], bucket[i]));
        totals_[i] += squares.back().back();
      }
    }
    estimator_ = std::make_unique<CosineEstimator>(totals_, k);
    for (std::size_t b = 0; b < buckets_.size(); b++) {
      const test::ReferenceSketch sketch(key + b);
      std::vector<std::vector<float>> sketches;
      std::vector<const float*> data;
      for (std::size_t i = 0; i < n; i++) sketches.push_back(sketch(buckets_[b][i], k));
      for (const auto& s : sketches) data.push_back(s.data());
      estimator_->add_bucket(data, squares[b]);
    }
  }

  double exact(std::size_t i, std::size_t j) const {
    double sum = 0;
    for (const Vectors& bucket : buckets_) sum += dot(bucket[i], bucket[j]);
    return sum / std::sqrt(totals_[i] * totals_[j]);
  }
  double exact_mean() const {
    double sum = 0;
    std::size_t pairs = 0;
    for (std::size_t i = 0; i < totals_.size(); i++)
      for (std::size_t j = i + 1; j < totals_.size(); j++, pairs++) sum += exact(i, j);
    return sum / static_cast<double>(pairs);
  }
  const CosineEstimator& estimator() const { return *estimator_; }

 private:
  std::vector<Vectors> buckets_;
  std::vector<double> totals_;
  std::unique_ptr<CosineEstimator> estimator_;
};

enum class Shape { gaussian, heavy_tailed, outlier_columns };

std::vector<Vectors> random_buckets(std::mt19937_64& random, Shape shape, std::size_t ranks, std::size_t buckets,
                                    double common, std::size_t elements) {
  std::normal_distribution<double> gauss;
  std::vector<Vectors> all;
  for (std::size_t b = 0; b < buckets; b++) {
    const std::size_t n = elements / (b + 1);
    std::vector<double> scale(n, 1.0), shared(n);
    for (std::size_t i = 0; i < n; i++) {
      if (shape == Shape::heavy_tailed) scale[i] = std::exp(2 * gauss(random));
      if (shape == Shape::outlier_columns) scale[i] = (i % 97 < 3 ? 30 : 1) * std::exp(gauss(random));
      shared[i] = gauss(random) * scale[i];
    }
    Vectors bucket(ranks, std::vector<double>(n));
    for (auto& x : bucket)
      for (std::size_t i = 0; i < n; i++) {
        x[i] = std::sqrt(common) * shared[i] + std::sqrt(1 - common) * scale[i] * gauss(random);
      }
    all.push_back(std::move(bucket));
  }
  return all;
}

struct Case {
  Shape shape;
  double common;
  std::size_t buckets;
  std::uint32_t k;
};
std::string percent(double x) {
  return std::to_string(static_cast<int>(100 * x + 0.5)) + "percent";
}

// As "Gaussian_90percent_common_4buckets_k1024".
std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* const shapes[] = {"Gaussian", "HeavyTailed", "OutlierColumns"};
  return shapes[static_cast<int>(c.shape)] + std::string("_") + (c.common > 0.99 ? "nearly_all" : percent(c.common)) +
         "_common_" + std::to_string(c.buckets) + (c.buckets == 1 ? "bucket_k" : "buckets_k") + std::to_string(c.k);
}
void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of({c, 0});
}

class Coverage : public testing::TestWithParam<Case> {};

// The stated 95 % intervals hold the exact value in at least 90 % of the cases, and are not wider than they need to be.
TEST_P(Coverage, OfPairsAndMean) {
  const Case& c = GetParam();
  std::mt19937_64 random(11);
  constexpr int kTrials = 80;
  constexpr std::size_t kRanks = 6;
  int pairs = 0, pairs_held = 0, means_held = 0;
  double width = 0, squared_error = 0, mean_width = 0, mean_squared_error = 0;
  for (int trial = 0; trial < kTrials; trial++) {
    const Ranks ranks(random_buckets(random, c.shape, kRanks, c.buckets, c.common, 4000), c.k, random());
    for (std::size_t i = 0; i < kRanks; i++) {
      for (std::size_t j = i + 1; j < kRanks; j++) {
        const double exact = ranks.exact(i, j);
        const Cosine estimate = ranks.estimator().pair(i, j);
        ASSERT_LE(estimate.low, estimate.value);
        ASSERT_GE(estimate.high, estimate.value);
        pairs++;
        pairs_held += exact >= estimate.low && exact <= estimate.high ? 1 : 0;
        width += estimate.high - estimate.low;
        squared_error += (estimate.value - exact) * (estimate.value - exact);
      }
    }
    const Cosine mean = ranks.estimator().mean();
    const double exact = ranks.exact_mean();
    means_held += exact >= mean.low && exact <= mean.high ? 1 : 0;
    mean_width += mean.high - mean.low;
    mean_squared_error += (mean.value - exact) * (mean.value - exact);
  }
  EXPECT_GE(pairs_held, 0.90 * pairs);
  EXPECT_GE(means_held, 0.90 * kTrials);
  // A 95 % interval of a normal error is 3.9 standard deviations wide. Heavy tails leave S less error than Gaussian,
  // and that of the mean, 80 draws in all, is known to 8 % only.
  const double rms = std::sqrt(squared_error / pairs), mean_rms = std::sqrt(mean_squared_error / kTrials);
  EXPECT_LT(width / pairs, 10 * rms + 2e-5);
  EXPECT_LT(mean_width / kTrials, 15 * mean_rms + 2e-5);
  // Never worse than the plain product of sketches by theory.
  EXPECT_LT(rms, 1.3 * std::sqrt((1 + c.common * c.common) / c.k));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Shape shape : {Shape::gaussian, Shape::heavy_tailed, Shape::outlier_columns})
    for (const double common : {0.0, 0.3, 0.9, 0.9999})
      for (const std::size_t buckets : {std::size_t{1}, std::size_t{4}})
        for (const std::uint32_t k : {256u, 1024u}) cases.push_back({shape, common, buckets, k});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Shapes, Coverage, testing::ValuesIn(all_cases()), name_of);

TEST(CosineEstimator, IdenticalGradientsGiveExactlyOne) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 3, 2, 0.5, 3000);
  for (Vectors& bucket : buckets) bucket[2] = bucket[0];
  const Ranks ranks(buckets, 1024, 9);
  const Cosine same = ranks.estimator().pair(0, 2);
  EXPECT_EQ(same.value, 1.0);
  EXPECT_EQ(same.low, 1.0);
  EXPECT_EQ(same.high, 1.0);
  EXPECT_TRUE(ranks.estimator().identical(2, 0));
  EXPECT_FALSE(ranks.estimator().identical(0, 1));
  EXPECT_LT(ranks.estimator().pair(0, 1).high, 0.9);
}

TEST(CosineEstimator, AllIdentical) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 4, 2, 0.5, 3000);
  for (Vectors& bucket : buckets)
    for (auto& x : bucket) x = bucket[0];
  const Cosine mean = Ranks(buckets, 256, 9).estimator().mean();
  EXPECT_EQ(mean.value, 1.0);
  EXPECT_EQ(mean.low, 1.0);
}

TEST(CosineEstimator, OneDifferentBitIsNotIdentical) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 2, 1, 0.5, 3000);
  buckets[0][1] = buckets[0][0];
  buckets[0][1][7] *= 1.001;
  const Ranks ranks(buckets, 1024, 9);
  EXPECT_FALSE(ranks.estimator().identical(0, 1));
  const Cosine c = ranks.estimator().pair(0, 1);
  EXPECT_NEAR(c.value, 1.0, 1e-5);
  EXPECT_LE(c.high, 1.0);
  EXPECT_LE(c.low, ranks.exact(0, 1));
}

TEST(CosineEstimator, OppositeGradients) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::heavy_tailed, 2, 3, 0.5, 3000);
  for (Vectors& bucket : buckets)
    for (std::size_t i = 0; i < bucket[0].size(); i++) bucket[1][i] = -bucket[0][i];
  const Cosine c = Ranks(buckets, 1024, 9).estimator().pair(0, 1);
  EXPECT_NEAR(c.value, -1.0, 1e-5);
  EXPECT_GE(c.low, -1.0);
}

// A scale factor between ranks changes no cosine.
TEST(CosineEstimator, ScaleDoesNotMatter) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 2, 2, 0.5, 3000);
  const Cosine before = Ranks(buckets, 1024, 9).estimator().pair(0, 1);
  for (Vectors& bucket : buckets)
    for (double& v : bucket[1]) v *= 1024;
  const Cosine after = Ranks(buckets, 1024, 9).estimator().pair(0, 1);
  EXPECT_NEAR(before.value, after.value, 1e-9);
  EXPECT_NEAR(before.low, after.low, 1e-9);
}

TEST(CosineEstimator, ZeroGradientsHaveNoCosine) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 3, 2, 0.5, 3000);
  for (Vectors& bucket : buckets) std::fill(bucket[1].begin(), bucket[1].end(), 0.0);
  const Ranks ranks(buckets, 1024, 9);
  EXPECT_FALSE(ranks.estimator().defined(0, 1));
  EXPECT_TRUE(std::isnan(ranks.estimator().pair(0, 1).value));
  // The mean is over the one pair that is left.
  EXPECT_EQ(ranks.estimator().mean().value, ranks.estimator().pair(0, 2).value);
  EXPECT_NEAR(ranks.estimator().mean().high, ranks.estimator().pair(0, 2).high, 1e-9);
}

// One bucket of zeros beside others.
TEST(CosineEstimator, ZeroBucketOfOneRank) {
  std::mt19937_64 random(1);
  auto buckets = random_buckets(random, Shape::gaussian, 2, 2, 0.5, 3000);
  std::fill(buckets[1][1].begin(), buckets[1][1].end(), 0.0);
  const Ranks ranks(buckets, 1024, 9);
  const Cosine c = ranks.estimator().pair(0, 1);
  EXPECT_LE(c.low, ranks.exact(0, 1));
  EXPECT_GE(c.high, ranks.exact(0, 1));
}

TEST(CosineEstimator, NothingAdded) {
  const CosineEstimator none({1.0, 1.0}, 256);
  EXPECT_TRUE(std::isnan(none.mean().value));
  EXPECT_FALSE(none.identical(0, 1));
}

// The likelihood itself, searched on a grid: -log(1 - z^2) / 2 - (gu - 2 z g + gv) / (2 (1 - z^2)).
TEST(MarginCosine, MaximizesTheLikelihood) {
  const auto likelihood = [](double z, double g, double gu, double gv) {
    return -0.5 * std::log(1 - z * z) - (gu - 2 * z * g + gv) / (2 * (1 - z * z));
  };
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> cosine(-0.999, 0.999), norm(0.8, 1.2);
  for (int i = 0; i < 300; i++) {
    const double gu = norm(random), gv = norm(random), g = cosine(random) * std::sqrt(gu * gv);
    double best = -1, best_value = -1e300;
    for (int step = -99999; step <= 99999; step++) {
      const double z = step / 1e5;
      const double value = likelihood(z, g, gu, gv);
      if (value > best_value) {
        best_value = value;
        best = z;
      }
    }
    EXPECT_NEAR(margin_cosine(g, gu, gv), best, 2e-5) << g << " " << gu << " " << gv;
  }
}

TEST(MarginCosine, NonsenseStaysInRange) {
  for (const double g : {-1e300, -5.0, 0.0, 5.0, 1e300, std::nan("")}) {
    for (const double n : {-1.0, 0.0, 1e-300, 1.0, 1e300, std::nan("")}) {
      const double c = margin_cosine(g, n, 1);
      EXPECT_TRUE(std::isnan(c) || (c >= -1 && c <= 1)) << g << " " << n;
    }
  }
}

TEST(Dispersion, AgainstHandComputedValues) {
  const std::vector<RankValue> values = {{0, 2}, {1, 4}, {2, 4}, {3, 4}, {4, 5}, {5, 5}, {6, 7}, {7, 9}};
  const Dispersion d = dispersion(values);
  EXPECT_EQ(d.count, 8u);
  EXPECT_DOUBLE_EQ(d.mean, 5);
  EXPECT_DOUBLE_EQ(d.std, 2);  // of the population
  EXPECT_DOUBLE_EQ(d.cv, 0.4);
  EXPECT_DOUBLE_EQ(d.range, 7);
  EXPECT_EQ(d.min.rank, 0u);
  EXPECT_EQ(d.max.rank, 7u);
}

TEST(Dispersion, EqualValuesHaveNone) {
  const Dispersion d = dispersion(std::vector<RankValue>(7, {0, 0.1}));
  EXPECT_EQ(d.mean, 0.1);
  EXPECT_EQ(d.std, 0);
  EXPECT_EQ(d.cv, 0);
  EXPECT_EQ(dispersion(std::vector<RankValue>(3, {0, 0.0})).cv, 0);
}

TEST(Dispersion, LargeOffsetKeepsItsDigits) {
  const std::vector<RankValue> values = {{0, 1e9 + 1}, {1, 1e9 + 2}, {2, 1e9 + 3}};
  EXPECT_NEAR(dispersion(values).std, std::sqrt(2.0 / 3), 1e-6);
}

TEST(Dispersion, NonFiniteAndNothing) {
  const std::vector<RankValue> values = {{0, NAN}, {1, 3}, {2, INFINITY}};
  const Dispersion d = dispersion(values);
  EXPECT_EQ(d.count, 1u);
  EXPECT_EQ(d.non_finite, 2u);
  EXPECT_EQ(d.mean, 3);
  EXPECT_TRUE(std::isnan(dispersion({}).mean));
  EXPECT_TRUE(std::isnan(dispersion(std::vector<RankValue>{{0, -1}, {1, 1}}).cv));
}

}  // namespace
}  // namespace gradprobe
