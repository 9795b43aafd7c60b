// Pairs of orthogonal unit vectors with the structure that gradients have, or that would suit a sketch badly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace gradprobe::test {

// cos * x + sin * z is a unit vector with this cosine to x.
struct GradientPair {
  std::vector<std::uint64_t> index;  // of the elements, ascending; all others are zero
  std::vector<double> x, z;

  std::size_t size() const { return x.size(); }
};

using Random = std::mt19937_64;

struct Distribution {
  std::string name;
  int data_sets;  // to draw from it
  int keys;       // to sketch each with
  std::function<GradientPair(Random&)> make;
};

namespace pairs {

inline constexpr std::size_t kRows = 128, kColumns = 1024;  // of the matrices

inline void orthonormalize(GradientPair& pair) {
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
  };
  const double x_scale = 1 / std::sqrt(dot(pair.x, pair.x));
  for (double& v : pair.x) v *= x_scale;
  // Twice: what the first subtraction leaves is of the size of its rounding.
  for (int pass = 0; pass < 2; pass++) {
    const double along = dot(pair.x, pair.z);
    for (std::size_t i = 0; i < pair.size(); i++) pair.z[i] -= along * pair.x[i];
  }
  const double z_scale = 1 / std::sqrt(dot(pair.z, pair.z));
  for (double& v : pair.z) v *= z_scale;
}

// Elements 0...n - 1: fill(i, x, z), in this order.
inline GradientPair dense(std::size_t n, const std::function<void(std::size_t, double&, double&)>& fill) {
  GradientPair pair;
  for (std::size_t i = 0; i < n; i++) {
    pair.index.push_back(i);
    fill(i, pair.x.emplace_back(), pair.z.emplace_back());
  }
  orthonormalize(pair);
  return pair;
}

inline std::vector<double> normal(Random& random, std::size_t n) {
  std::normal_distribution<double> gauss;
  std::vector<double> values(n);
  for (double& v : values) v = gauss(random);
  return values;
}

inline GradientPair gaussian(Random& random, std::size_t n) {
  std::normal_distribution<double> gauss;
  return dense(n, [&](std::size_t, double& x, double& z) {
    x = gauss(random);
    z = gauss(random);
  });
}

// Each coordinate with a scale of its own, the same in both vectors. Of 131072 elements the 2048 largest, which hold
// all but a thousandth of the squared norm.
inline GradientPair lognormal(Random& random, double sigma) {
  constexpr std::size_t kKept = 2048;
  std::normal_distribution<double> gauss;
  struct Element {
    std::uint64_t index;
    double x, z;
  };
  std::vector<Element> elements;
  for (std::uint64_t i = 0; i < kRows * kColumns; i++) {
    const double scale = std::exp(sigma * gauss(random));
    elements.push_back({i, scale * gauss(random), scale * gauss(random)});
  }
  const auto larger = [](const Element& a, const Element& b) { return std::hypot(a.x, a.z) > std::hypot(b.x, b.z); };
  std::nth_element(elements.begin(), elements.begin() + kKept, elements.end(), larger);
  elements.resize(kKept);
  std::sort(elements.begin(), elements.end(), [](const Element& a, const Element& b) { return a.index < b.index; });
  GradientPair pair;
  for (const Element& e : elements) {
    pair.index.push_back(e.index);
    pair.x.push_back(e.x);
    pair.z.push_back(e.z);
  }
  orthonormalize(pair);
  return pair;
}

// An embedding's: 4 of 4096 rows of 256 elements.
inline GradientPair sparse_rows(Random& random) {
  std::normal_distribution<double> gauss;
  GradientPair pair;
  for (const std::uint64_t row : {411u, 1290u, 1291u, 3777u}) {
    for (std::uint64_t column = 0; column < 256; column++) {
      pair.index.push_back(256 * row + column);
      pair.x.push_back(gauss(random));
      pair.z.push_back(gauss(random));
    }
  }
  orthonormalize(pair);
  return pair;
}

// A linear layer's for a single token: outer products, with the same activations in both.
inline GradientPair rank_one(Random& random) {
  const std::vector<double> u = normal(random, kRows), u2 = normal(random, kRows), spread = normal(random, kColumns);
  std::vector<double> v = normal(random, kColumns);
  for (std::size_t i = 0; i < kColumns; i++) v[i] *= std::exp(spread[i]);
  return dense(kRows * kColumns, [&](std::size_t i, double& x, double& z) {
    x = u[i / kColumns] * v[i % kColumns];
    z = u2[i / kColumns] * v[i % kColumns];
  });
}

// Rank 4 and noise; every 256th column is 30 times as large.
inline GradientPair rank_four_with_outlier_columns(Random& random) {
  const std::vector<double> u = normal(random, 4 * kRows), u2 = normal(random, 4 * kRows);
  std::vector<double> v = normal(random, 4 * kColumns);
  for (std::size_t i = 37; i < v.size(); i += 256) v[i] *= 30;
  std::normal_distribution<double> gauss;
  return dense(kRows * kColumns, [&](std::size_t i, double& x, double& z) {
    const std::size_t row = i / kColumns, column = i % kColumns;
    for (std::size_t r = 0; r < 4; r++) {
      x += u[r * kRows + row] * v[r * kColumns + column];
      z += u2[r * kRows + row] * v[r * kColumns + column];
    }
    x += 0.5 * gauss(random);
    z += 0.5 * gauss(random);
  });
}

inline GradientPair repeated_rows(Random& random) {
  const std::vector<double> v = normal(random, kColumns), w = normal(random, kColumns);
  return dense(kRows * kColumns, [&](std::size_t i, double& x, double& z) {
    x = v[i % kColumns];
    z = w[i % kColumns];
  });
}

// One coordinate of x holds nine tenths of its squared norm.
inline GradientPair dominant_coordinate(Random& random) {
  std::normal_distribution<double> gauss;
  const std::size_t n = kRows * kColumns;
  return dense(n, [&](std::size_t i, double& x, double& z) {
    x = gauss(random) + (i == 123'457 ? 3 * std::sqrt(static_cast<double>(n)) : 0);
    z = gauss(random);
  });
}

inline GradientPair ones_and_alternating_signs(Random&) {
  return dense(kRows * kColumns, [](std::size_t i, double& x, double& z) {
    x = 1;
    z = i % 2 == 0 ? 1 : -1;
  });
}

// One column of a matrix with so many columns.
inline GradientPair one_column(Random& random, std::uint64_t period) {
  std::normal_distribution<double> gauss;
  GradientPair pair;
  for (std::uint64_t row = 0; row < 1024; row++) {
    pair.index.push_back(row * period + 37);
    pair.x.push_back(gauss(random));
    pair.z.push_back(gauss(random));
  }
  orthonormalize(pair);
  return pair;
}

}  // namespace pairs

inline std::vector<Distribution> gradient_distributions() {
  std::vector<Distribution> all = {
      {"Gaussian", 4, 500, [](Random& random) { return pairs::gaussian(random, pairs::kRows * pairs::kColumns); }},
      {"GaussianOf4096", 4, 5000, [](Random& random) { return pairs::gaussian(random, 4096); }},
      {"Lognormal", 16, 6000, [](Random& random) { return pairs::lognormal(random, 3); }},
      {"SparseRows", 4, 5000, pairs::sparse_rows},
      {"RankOne", 4, 500, pairs::rank_one},
      {"RankFourWithOutlierColumns", 4, 500, pairs::rank_four_with_outlier_columns},
      {"RepeatedRows", 4, 500, pairs::repeated_rows},
      {"DominantCoordinate", 4, 500, pairs::dominant_coordinate},
      {"OnesAndAlternatingSigns", 1, 2000, pairs::ones_and_alternating_signs},
  };
  for (int log_period = 8; log_period <= 17; log_period++) {
    all.push_back({"OneColumnOfPeriod2To" + std::to_string(log_period), 4, 5000,
                   [log_period](Random& random) { return pairs::one_column(random, std::uint64_t{1} << log_period); }});
  }
  return all;
}

}  // namespace gradprobe::test
