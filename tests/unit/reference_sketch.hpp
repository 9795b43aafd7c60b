// The sketch by its element-index definition, in float64: a reference for the kernels' thread view and for estimators.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace gradprobe::test {

class ReferenceSketch {
 public:
  explicit ReferenceSketch(std::uint64_t key) {
    const std::uint64_t a = split_mix(key), b = split_mix(key);
    k0_ = static_cast<std::uint32_t>(a);
    k1_ = static_cast<std::uint32_t>(a >> 32);
    k2_ = static_cast<std::uint32_t>(b);
    k3_ = static_cast<std::uint32_t>(b >> 32);
  }

  std::vector<float> operator()(std::span<const double> x, std::uint32_t k) const {
    std::vector<double> positions(2048, 0.0);
    for (std::uint64_t i = 0; i < x.size(); i++) {
      const Place p = place_of(i);
      positions[p.position] += p.negative ? -x[i] : x[i];
    }
    std::vector<float> folded(k);
    for (std::uint32_t j = 0; j < k; j++) {
      double sum = 0;
      for (std::uint32_t r = 0; r < 2048 / k; r++) sum += positions[r * k + (j ^ (kFold[r] & (k - 1)))];
      folded[j] = static_cast<float>(sum);
    }
    return folded;
  }

 private:
  struct Place {
    std::uint32_t position;
    bool negative;
  };

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
  static std::uint32_t mum2(std::uint32_t x, std::uint32_t ka, std::uint32_t kb) {
    const std::uint64_t m = second_product(x, ka, kb);
    return static_cast<std::uint32_t>(m >> 32) ^ static_cast<std::uint32_t>(m);
  }

  Place place_of(std::uint64_t i) const {
    const auto c = static_cast<std::uint32_t>(i >> 14);
    const auto u = static_cast<std::uint32_t>(i >> 11) & 7u;
    const auto p = static_cast<std::uint32_t>(i) & 2047u;
    const auto rho = static_cast<std::uint32_t>(second_product(4 * c, k2_, k3_) >> 61);
    const std::uint32_t slot = u ^ rho;
    const std::uint32_t word = mum2(slot < 4 ? 4 * c : 4 * c + 1, k2_, k3_);
    const std::uint32_t r8 = (word >> (8 * (slot & 3u))) & 255u;
    const std::uint32_t position = p ^ (r8 << 3) ^ slot;
    const std::uint32_t bits = mum2(512 * c + 2 * (position >> 3) + ((p >> 2) & 1u), k0_, k1_);
    return {position, ((bits >> (8 * (p & 3u) + 7 - slot)) & 1u) != 0};
  }

  std::uint32_t k0_, k1_, k2_, k3_;
};

}  // namespace gradprobe::test
