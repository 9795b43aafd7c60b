// Cosines between the ranks' gradients, from sketches and exact norms.
//
// Each bucket b of rank i left a sketch S x_ib of k floats, made with the same S on every rank, and its exact norm
// n_ib = |x_ib|. With unit vectors u_i = S x_ib / n_ib the products g_ij = <u_i, u_j> have
//     E g = G (the true cosines),   Cov(g_ab, g_cd) = (G_ac G_bd + G_ad G_bc) / k,
// for Gaussian S; the sketch used here has no larger variance. That g_ii should be 1 is known, so it corrects g_ij:
// the margin maximum-likelihood cosine c of a bucket is the root in [-1, 1] of
//     z^3 - z^2 g_ij + z (g_ii + g_jj - 1) - g_ij = 0,
// to first order c = g_ij - a/2 (g_ii + g_jj - 2) with a = 2 c / (1 + c^2), of variance (1 - c^2)^2 / ((1 + c^2) k):
// never more than the plain product's (1 + c^2) / k, and nothing for identical gradients. Over the buckets of a step:
// cos_ij = sum_b n_ib n_jb c_b / (n_i n_j), with the variances added in the same way.
//
// All pairs share S, so their errors are correlated. Being linear in g, the mean's error of a bucket is tr(A (g - G))
// with A_ij = w_ij / (2 M), A_ii = -sum_j a_ij w_ij / (2 M), w_ij = n_ib n_jb / (n_i n_j), M the number of pairs; its
// variance is 2 tr(A G A G) / k.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace gradprobe {

struct Cosine {
  double value = std::numeric_limits<double>::quiet_NaN();
  double low = value;  // 95 % interval
  double high = value;
};

// The margin maximum-likelihood cosine of one bucket: g = <u, v>, gu = <u, u>, gv = <v, v>.
inline double margin_cosine(double g, double gu, double gv) {
  if (!(gu > 0) || !(gv > 0)) return 0;
  double z = std::clamp(g / std::sqrt(gu * gv), -1.0, 1.0);
  for (int i = 0; i < 50; i++) {
    const double f = ((z - g) * z + (gu + gv - 1)) * z - g;
    const double slope = (3 * z - 2 * g) * z + (gu + gv - 1);
    if (!(slope > 0)) break;
    const double next = std::clamp(z - f / slope, -1.0, 1.0);
    const bool done = std::fabs(next - z) < 1e-14;
    z = next;
    if (done) break;
  }
  return z;
}

// All pairs of ranks over one step: add each bucket, then ask. O(ranks^2 k) a bucket.
class CosineEstimator {
 public:
  // `sum_squares`: of each rank over all buckets that will be added, exact.
  CosineEstimator(std::vector<double> sum_squares, std::size_t sketch_floats)
      : ranks_(sum_squares.size()),
        k_(sketch_floats),
        total_(std::move(sum_squares)),
        sum_(ranks_ * ranks_, 0.0),
        variance_(ranks_ * ranks_, 0.0),
        identical_(ranks_ * ranks_, 1),
        gram_(ranks_ * ranks_),
        weights_(ranks_ * ranks_),
        product_(ranks_ * ranks_) {}

  // sketches[i]: k floats, the bucket's on rank i; sum_squares[i]: the bucket's.
  void add_bucket(std::span<const float* const> sketches, std::span<const double> sum_squares) {
    buckets_++;
    std::fill(gram_.begin(), gram_.end(), 0.0);
    for (std::size_t i = 0; i < ranks_; i++) gram_[at(i, i)] = dot(sketches[i], sketches[i]);
    for (std::size_t i = 0; i < ranks_; i++)
      for (std::size_t j = i + 1; j < ranks_; j++) add_pair(i, j, sketches, sum_squares);
    for (std::size_t i = 0; i < ranks_; i++) gram_[at(i, i)] = 1;
    mean_variance_ += variance_of_mean(sum_squares);
  }

  std::size_t ranks() const { return ranks_; }
  std::size_t buckets() const { return buckets_; }

  // No cosine with a gradient of zeros.
  bool defined(std::size_t i, std::size_t j) const { return buckets_ > 0 && total_[i] > 0 && total_[j] > 0; }

  // Every bucket's sketch and norm are equal to the last bit: so were the inputs.
  bool identical(std::size_t i, std::size_t j) const { return buckets_ > 0 && identical_[at(i, j)] != 0; }

  Cosine pair(std::size_t i, std::size_t j) const {
    if (!defined(i, j)) return {};
    if (identical(i, j)) return {1, 1, 1};
    const std::size_t p = at(std::min(i, j), std::max(i, j));
    return interval(sum_[p], variance_[p]);
  }

  // Mean over all pairs of ranks with a gradient that isn't zero.
  Cosine mean() const {
    double sum = 0;
    std::size_t pairs = 0;
    bool all_identical = true;
    for (std::size_t i = 0; i < ranks_; i++) {
      for (std::size_t j = i + 1; j < ranks_; j++) {
        if (!defined(i, j)) continue;
        pairs++;
        sum += pair(i, j).value;
        all_identical = all_identical && identical(i, j);
      }
    }
    if (pairs == 0) return {};
    if (all_identical) return {1, 1, 1};
    return interval(sum / static_cast<double>(pairs), mean_variance_);
  }

 private:
  // float32 rounding in sketches, which the variances don't know.
  static constexpr double kRounding = 4e-6;
  // 1.96 for a normal error, times 1.2: with few dominating elements collisions in the sketch are rare and large. In
  // simulations with outlier columns 1.96 covered 0.90 in the worst case and this covers 0.94.
  static constexpr double kZ95 = 2.35;

  std::size_t at(std::size_t i, std::size_t j) const { return i * ranks_ + j; }

  double dot(const float* x, const float* y) const {
    double part[4] = {};
    for (std::size_t i = 0; i < k_; i++) part[i & 3] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    return (part[0] + part[1]) + (part[2] + part[3]);
  }

  double weight(std::size_t i, std::size_t j, std::span<const double> sum_squares) const {
    if (!(total_[i] > 0) || !(total_[j] > 0)) return 0;
    return std::sqrt(sum_squares[i] / total_[i]) * std::sqrt(sum_squares[j] / total_[j]);
  }

  // Afterwards gram_ has the pair's cosine in both triangles; its diagonal still holds <Sx, Sx>.
  void add_pair(std::size_t i, std::size_t j, std::span<const float* const> sketches,
                std::span<const double> sum_squares) {
    const bool equal =
        sum_squares[i] == sum_squares[j] && std::memcmp(sketches[i], sketches[j], k_ * sizeof(float)) == 0;
    if (!equal) identical_[at(i, j)] = identical_[at(j, i)] = 0;
    double c = 0;
    if (sum_squares[i] > 0 && sum_squares[j] > 0) {
      const double norms = std::sqrt(sum_squares[i]) * std::sqrt(sum_squares[j]);
      c = equal ? 1.0
                : margin_cosine(dot(sketches[i], sketches[j]) / norms, gram_[at(i, i)] / sum_squares[i],
                                gram_[at(j, j)] / sum_squares[j]);
    }
    gram_[at(i, j)] = gram_[at(j, i)] = c;
    const double w = weight(i, j, sum_squares);
    const double one_minus = (1 - c) * (1 + c);
    sum_[at(i, j)] += w * c;
    variance_[at(i, j)] += w * w * one_minus * one_minus / ((1 + c * c) * static_cast<double>(k_));
  }

  double variance_of_mean(std::span<const double> sum_squares) {
    std::size_t nonzero = 0;
    for (const double t : total_) nonzero += t > 0 ? 1 : 0;
    if (nonzero < 2) return 0;
    const double pairs = static_cast<double>(nonzero) * static_cast<double>(nonzero - 1) / 2;
    std::fill(weights_.begin(), weights_.end(), 0.0);
    for (std::size_t i = 0; i < ranks_; i++) {
      for (std::size_t j = 0; j < ranks_; j++) {
        if (i == j) continue;
        const double w = weight(i, j, sum_squares) / (2 * pairs);
        const double c = gram_[at(i, j)];
        weights_[at(i, j)] = w;
        weights_[at(i, i)] -= w * 2 * c / (1 + c * c);
      }
    }
    std::fill(product_.begin(), product_.end(), 0.0);
    for (std::size_t i = 0; i < ranks_; i++)
      for (std::size_t l = 0; l < ranks_; l++)
        for (std::size_t j = 0; j < ranks_; j++) product_[at(i, j)] += weights_[at(i, l)] * gram_[at(l, j)];
    double trace = 0;
    for (std::size_t i = 0; i < ranks_; i++)
      for (std::size_t j = 0; j < ranks_; j++) trace += product_[at(i, j)] * product_[at(j, i)];
    return std::max(0.0, 2 * trace / static_cast<double>(k_));
  }

  static Cosine interval(double value, double variance) {
    const double half = kZ95 * std::sqrt(variance) + kRounding;
    const double c = std::clamp(value, -1.0, 1.0);
    return {c, std::max(-1.0, c - half), std::min(1.0, c + half)};
  }

  std::size_t ranks_, k_;
  std::size_t buckets_ = 0;
  std::vector<double> total_;
  std::vector<double> sum_, variance_;  // upper triangle
  std::vector<unsigned char> identical_;
  std::vector<double> gram_, weights_, product_;  // of the bucket being added
  double mean_variance_ = 0;
};

}  // namespace gradprobe
