// How far apart one number lies on the ranks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace gradprobe {

struct RankValue {
  std::uint32_t rank = 0;
  double value = 0;
};

// Over the finite values. `std` is the population's (divided by n, not n - 1): the ranks are all there are.
struct Dispersion {
  std::size_t count = 0;       // finite values
  std::size_t non_finite = 0;  // left out
  double mean = std::numeric_limits<double>::quiet_NaN();
  double std = mean;
  double cv = mean;     // std / |mean|; 0 when all values are equal, NaN when only the mean is 0
  double range = mean;  // max - min
  RankValue min, max;   // of equals the lowest rank
};

inline Dispersion dispersion(std::span<const RankValue> values) {
  Dispersion d;
  double sum = 0;
  for (const RankValue& v : values) {
    if (!std::isfinite(v.value)) {
      d.non_finite++;
      continue;
    }
    if (d.count == 0 || v.value < d.min.value) d.min = v;
    if (d.count == 0 || v.value > d.max.value) d.max = v;
    sum += v.value;
    d.count++;
  }
  if (d.count == 0) return d;
  const auto n = static_cast<double>(d.count);
  d.range = d.max.value - d.min.value;
  d.mean = d.range == 0 ? d.min.value : sum / n;
  double squares = 0;
  for (const RankValue& v : values)
    if (std::isfinite(v.value)) squares += (v.value - d.mean) * (v.value - d.mean);
  d.std = std::sqrt(squares / n);
  d.cv = d.std == 0 ? 0 : d.mean == 0 ? std::numeric_limits<double>::quiet_NaN() : d.std / std::fabs(d.mean);
  return d;
}

}  // namespace gradprobe
