// The sketch by its element-index definition, in float64: a reference for the kernels' thread view and for estimators.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradprobe::test {

class ReferenceSketch {
 public:
  static constexpr std::uint32_t kSuperrow = 16384;  // elements
  static constexpr std::uint32_t kRow = 2048;        // elements, and register positions
  static constexpr std::uint32_t kLargest = 4096;    // floats

  // What the elements of a superrow have in common.
  struct Superrow {
    std::uint32_t index;
    std::uint32_t low, high;  // one byte of permutation for each slot
    std::uint32_t rho;        // row u is slot u ^ rho
    std::uint32_t half;       // of a sketch of 4096 floats
  };

  struct Place {
    std::uint32_t position;  // in a sketch of 4096 floats
    bool negative;
  };

  explicit ReferenceSketch(std::uint64_t key) {
    const std::uint64_t a = split_mix(key), b = split_mix(key);
    k0_ = static_cast<std::uint32_t>(a);
    k1_ = static_cast<std::uint32_t>(a >> 32);
    k2_ = static_cast<std::uint32_t>(b);
    k3_ = static_cast<std::uint32_t>(b >> 32);
  }

  // k: 256, 512, 1024, 2048 or 4096. Elements enter rounded to float32; those beyond 2^100, infinite or NaN don't.
  std::vector<float> operator()(std::span<const double> x, std::uint32_t k) const {
    std::vector<double> sums(k, 0.0);
    for (std::uint64_t first = 0; first < x.size(); first += kSuperrow) {
      const Superrow row = superrow(static_cast<std::uint32_t>(first / kSuperrow));
      for (std::uint64_t i = first; i < x.size() && i < first + kSuperrow; i++) {
        if (!(std::fabs(x[i]) <= 0x1p100)) continue;
        const Place p = place(row, i);
        const double value = static_cast<float>(x[i]);
        sums[fold(p.position, k)] += p.negative ? -value : value;
      }
    }
    return {sums.begin(), sums.end()};
  }

  Superrow superrow(std::uint32_t c) const {
    return {c, hash(4 * c, k2_, k3_), hash(4 * c + 1, k2_, k3_),
            static_cast<std::uint32_t>(second_product(4 * c, k2_, k3_) >> 32) & 7,
            (c & 1u) ^ (hash(4 * (c >> 1) + 2, k2_, k3_) & 1u)};
  }

  // What is XORed to the positions of the elements that are in a slot (0...7) of the superrow.
  static std::uint32_t permutation(const Superrow& row, std::uint32_t slot) {
    const std::uint32_t r8 = ((slot < 4 ? row.low : row.high) >> (8 * (slot & 3u))) & 255u;
    return (r8 << 3) ^ slot;
  }

  // Element i of the bucket, which lies in the superrow.
  Place place(const Superrow& row, std::uint64_t i) const {
    const auto u = static_cast<std::uint32_t>(i >> 11) & 7u;
    const auto p = static_cast<std::uint32_t>(i) & (kRow - 1);
    const std::uint32_t slot = u ^ row.rho;
    const std::uint32_t q = p ^ permutation(row, slot);
    const std::uint32_t bits = hash(512 * row.index + 2 * (q >> 3) + ((p >> 2) & 1u), k0_, k1_);
    return {q + kRow * row.half, ((bits >> (8 * (p & 3u) + 7 - slot)) & 1u) != 0};
  }
  Place place(std::uint64_t i) const { return place(superrow(static_cast<std::uint32_t>(i / kSuperrow)), i); }

  // Where a position of the largest sketch goes in one of k floats.
  static std::uint32_t fold(std::uint32_t position, std::uint32_t k) {
    if (k == kLargest) return position;
    const std::uint32_t q = position & (kRow - 1);
    return (q & (k - 1)) ^ (kFold[q / k] & (k - 1));
  }

 private:
  static constexpr std::array<std::uint32_t, 16> kFold = {0x000, 0xcc1, 0x6ce, 0xfed, 0xaca, 0x35a, 0x9b5, 0xdd7,
                                                          0x636, 0x064, 0xfca, 0x09d, 0xf03, 0xaff, 0x63e, 0x005};

  static std::uint64_t split_mix(std::uint64_t& state) {
    state += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  static std::uint64_t second_product(std::uint32_t x, std::uint32_t ka, std::uint32_t kb) {
    const std::uint64_t m = std::uint64_t{x + ka} * 0xD2511F53u;
    const std::uint32_t a = static_cast<std::uint32_t>(m >> 32) ^ static_cast<std::uint32_t>(m) ^ kb;
    return std::uint64_t{a} * 0xCD9E8D57u;
  }
  static std::uint32_t hash(std::uint32_t x, std::uint32_t ka, std::uint32_t kb) {
    const std::uint64_t m = second_product(x, ka, kb);
    return static_cast<std::uint32_t>(m >> 32) ^ static_cast<std::uint32_t>(m);
  }

  std::uint32_t k0_, k1_, k2_, k3_;
};

}  // namespace gradprobe::test
