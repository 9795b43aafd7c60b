// The sketch's random map. Definition by element index (all arithmetic modulo 2^32 except products, which are 64 bits;
// k0...k3: two outputs of splitmix64 seeded with the run's key, low word first):
//
//   product(x, ka, kb) = (lo ^ hi ^ kb) * 0xCD9E8D57,  lo and hi: the halves of (x + ka) * 0xD2511F53
//   hash(x, ka, kb)    = halves of product(x, ka, kb), XORed
//
//   element i:   superrow c = i / 16384, row u = (i / 2048) % 8, position p = i % 2048
//   superrow c:  w0 = hash(4c, k2, k3), w1 = hash(4c + 1, k2, k3), rho = top 3 bits of product(4c, k2, k3)
//   slot s = u ^ rho;  r8 = byte s % 4 of (s < 4 ? w0 : w1)
//   register position q = p ^ (r8 << 3) ^ s
//   minus sign:  bit 8 * (p % 4) + 7 - s of hash(512c + 2 * (q / 8) + (p / 4) % 2, k0, k1)
//   sketch of k floats:  q = r * k + m goes to float m ^ (kFold[r] & (k - 1))
//
// A thread owns the register positions of one 16-byte vector, so for each slot it loads the vector whose index is its
// own XOR a few drawn bits: XOR above the vector permutes whole vectors within a row (loads stay coalesced), XOR within
// the vector is a static choice of accumulator.
#pragma once

#include <cstdint>

#include "abi.hpp"

namespace gradprobe::gate {

struct SketchKeys {
  std::uint32_t k0, k1, k2, k3;
};
__device__ __forceinline__ SketchKeys sketch_keys(std::uint64_t run_key) {
  // Two outputs of splitmix64 seeded with the run's key.
  const std::uint64_t a = mix64(run_key), b = mix64(run_key + 0x9E3779B97F4A7C15ull);
  return {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(b >> 32)};
}

// Two keyed multiply-folds of 32 x 32 bits; the second product, whose halves folded are the hash.
__device__ __forceinline__ std::uint64_t hash_product(std::uint32_t x, std::uint32_t ka, std::uint32_t kb) {
  const std::uint64_t m = std::uint64_t{x + ka} * 0xD2511F53u;
  return std::uint64_t{static_cast<std::uint32_t>(m >> 32) ^ static_cast<std::uint32_t>(m) ^ kb} * 0xCD9E8D57u;
}
__device__ __forceinline__ std::uint32_t fold_halves(std::uint64_t m) {
  return static_cast<std::uint32_t>(m >> 32) ^ static_cast<std::uint32_t>(m);
}
__device__ __forceinline__ std::uint32_t hash(std::uint32_t x, std::uint32_t ka, std::uint32_t kb) {
  return fold_halves(hash_product(x, ka, kb));
}

// Where a thread finds its vector in each of a superrow's eight slots, in bytes from the superrow's beginning.
template <typename Element>
struct SuperrowMap {
  static constexpr bool kFour = Element::kBytes == 4;
  static constexpr int kShift = kFour ? 5 : 4;  // r8 << 3 positions, in bytes of vectors of 4 or 8 positions
  static constexpr std::uint32_t kRowBytes = kRegisterSketch * Element::kBytes;

  std::uint32_t low, high;  // the eight r8
  std::uint32_t own;

  __device__ __forceinline__ SuperrowMap(std::uint32_t superrow, std::uint32_t member, std::uint32_t k2,
                                         std::uint32_t k3) {
    const std::uint64_t product = hash_product(4 * superrow, k2, k3);
    low = fold_halves(product);
    high = hash(4 * superrow + 1, k2, k3);
    own = (member * 16) ^ (static_cast<std::uint32_t>(product >> 61) * kRowBytes);
  }
  __device__ __forceinline__ std::uint32_t offset(int slot) const {
    const std::uint32_t word = slot < 4 ? low : high;
    const int right = 8 * (slot & 3) - kShift;
    const std::uint32_t drawn = (right < 0 ? word << -right : word >> right) & (0xffu << kShift);
    return drawn ^ own ^ (slot * kRowBytes + (kFour ? (slot >> 2) << 4 : 0));
  }
};

// Signs of the elements that a thread adds to its accumulators, for all slots of one superrow.
template <int kBytes>
struct SignWords;
template <>
struct SignWords<4> {
  std::uint32_t even, odd;  // for slots 0-3 and 4-7: the upper slots swap neighbouring vectors

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, std::uint32_t k0, std::uint32_t k1)
      : even(hash(superrow * 512 + member, k0, k1)), odd(hash(superrow * 512 + (member ^ 1), k0, k1)) {}
  // `word` holds element `e` of the vector that the thread loaded for slot s.
  __device__ __forceinline__ std::uint32_t apply(std::uint32_t word, int s, int e) const {
    const std::uint32_t h = s < 4 ? even : odd;
    return word ^ (h << (24 - 8 * e + s) & 0x80000000u);
  }
};
template <>
struct SignWords<2> {
  std::uint32_t pairs[4];  // bit 15 - s and bit 31 - s: signs of both elements of a word in slot s

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, std::uint32_t k0,
                                       std::uint32_t k1) {
    const std::uint32_t low = hash(superrow * 512 + 2 * member, k0, k1);
    const std::uint32_t high = hash(superrow * 512 + 2 * member + 1, k0, k1);
    pairs[0] = __byte_perm(low, 0, 0x1404);
    pairs[1] = __byte_perm(low, 0, 0x3424);
    pairs[2] = __byte_perm(high, 0, 0x1404);
    pairs[3] = __byte_perm(high, 0, 0x3424);
  }
  __device__ __forceinline__ std::uint32_t apply(std::uint32_t word, int s, int j) const {
    return word ^ (pairs[j] << s & 0x80008000u);
  }
};

// The sign of one element of the vector that a thread loaded for a slot: true is minus.
template <typename Element>
__device__ __forceinline__ bool sign_of_element(std::uint32_t superrow, std::uint32_t member, std::uint32_t slot,
                                                std::uint32_t e, std::uint32_t k0, std::uint32_t k1) {
  const std::uint32_t word = Element::kBytes == 4 ? member ^ (slot >> 2) : 2 * member + (e >> 2);
  return hash(superrow * 512 + word, k0, k1) >> (8 * (e & 3) + 7 - slot) & 1;
}

// Folding 2048 register positions to k: position r * k + (j ^ kFold[r]) goes to j. Without the XOR, positions p and
// p ^ k would always meet in the same sum, whatever the keys.
__constant__ const std::uint32_t kFold[16] = {0x000, 0xcc1, 0x6ce, 0xfed, 0xaca, 0x35a, 0x9b5, 0xdd7,
                                              0x636, 0x064, 0xfca, 0x09d, 0xf03, 0xaff, 0x63e, 0x005};

}  // namespace gradprobe::gate
