// The sketch's random map. Definition by element index (all arithmetic modulo 2^32 except products, which are 64 bits;
// k0...k3: two outputs of splitmix64 seeded with the run's key, low word first). It is the same for every datatype:
//
//   product(x, ka, kb) = (lo ^ hi ^ kb) * 0xCD9E8D57,  lo and hi: the halves of (x + ka) * 0xD2511F53
//   hash(x, ka, kb)    = halves of product(x, ka, kb), XORed
//
//   element i:   superrow c = i / 16384, row u = (i / 2048) % 8, position p = i % 2048
//   superrow c:  w0 = hash(4c, k2, k3), w1 = hash(4c + 1, k2, k3), rho = bits 32-34 of product(4c, k2, k3)
//   slot s = u ^ rho;  r8 = byte s % 4 of (s < 4 ? w0 : w1)
//   register position q = p ^ (r8 << 3) ^ s
//   minus sign:  bit 8 * (p % 4) + 7 - s of hash(512c + 2 * (q / 8) + (p / 4) % 2, k0, k1)
//
//   value: the element as float32 (exact for all types but float64, which is rounded to nearest even); elements that
//   are not finite or of |x| > 2^100 are left out
//   sketch of k <= 2048 floats:  q = r * k + m goes to float m ^ (kFold[r] & (k - 1))
//   sketch of 4096 floats:       q goes to float q + 2048 * h, the superrow's half
//                                h = (c % 2) ^ (bit 0 of hash(4 * (c / 2) + 2, k2, k3))
//
// A thread owns the register positions of one 16-byte vector (of float64 elements: two), so for each slot it loads the
// vector whose index is its own XOR a few drawn bits: XOR above the vector permutes whole vectors within a row (loads
// stay coalesced), XOR within the vector is a static choice of accumulator. Eight positions are an octet: r8 permutes
// octets. It is two vectors of float32, four of float64, half a vector of 8-bit elements (where the lowest bit of r8
// swaps the vector's halves).
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

// The superrow of pair 2 * pair, 2 * pair + 1 whose positions are in half `half` of a sketch of 4096 floats.
__device__ __forceinline__ std::uint32_t superrow_of_half(std::uint32_t pair, std::uint32_t half,
                                                          const SketchKeys& keys) {
  return 2 * pair + ((half ^ hash(4 * pair + 2, keys.k2, keys.k3)) & 1);
}

// Where a thread finds its vector in each of a superrow's eight slots. `member`: index of its vector in a row.
template <typename Element>
struct SuperrowMap {
  static constexpr std::uint32_t kOctetBytes = 8 * Element::kBytes;
  static constexpr int kOctetVectors = Element::kBytes / 2;  // 0: a vector holds two octets

  std::uint32_t low, high;  // the eight r8
  std::uint32_t own;        // octet and row, XOR rho

  __device__ __forceinline__ SuperrowMap(std::uint32_t superrow, std::uint32_t member, const SketchKeys& keys) {
    const std::uint64_t product = hash_product(4 * superrow, keys.k2, keys.k3);
    low = fold_halves(product);
    high = hash(4 * superrow + 1, keys.k2, keys.k3);
    const std::uint32_t octet = kOctetVectors ? member / max(kOctetVectors, 1) : 2 * member;
    own = octet ^ ((static_cast<std::uint32_t>(product >> 32) & 7) << 8);
  }
  __device__ __forceinline__ std::uint32_t r8(int slot) const { return byte_of(low, high, slot); }
  // The vector of 8-bit elements has its halves swapped.
  __device__ __forceinline__ bool swapped(int slot) const { return (slot < 4 ? low : high) >> (8 * (slot & 3)) & 1; }
  // `begin`: of the superrow.
  __device__ __forceinline__ const char* vector(const char* begin, int slot, std::uint32_t member) const {
    // Masked before the byte is taken out: once for four slots.
    constexpr std::uint32_t kMask = Element::kBytes == 1 ? 0xfefefefeu : 0xffffffffu;
    std::uint32_t octet = byte_of(low & kMask, high & kMask, slot) ^ own ^ (slot << 8);
    const char* first = begin;
    if constexpr (Element::kBytes == 4) first += 16 * ((member ^ (slot >> 2)) & 1);
    if constexpr (Element::kBytes == 8) first += 16 * ((member ^ (slot >> 1)) & 3);
    asm("" : "+r"(octet), "+l"(first));  // else the address is not one multiply-add
    return first + std::uint64_t{octet} * kOctetBytes;
  }

 private:
  static __device__ __forceinline__ std::uint32_t byte_of(std::uint32_t low, std::uint32_t high, int slot) {
    return __byte_perm(slot < 4 ? low : high, 0, 0x4440 + (slot & 3));
  }
};

// Signs of the elements that a thread adds to its accumulators, for all slots of one superrow: element e (of word j,
// byte or half b) of the vector that it loads for slot s, halves of a vector of 8-bit elements put in order.
template <int kBytes>
struct SignWords;
template <>
struct SignWords<8> {
  std::uint32_t even, odd;  // for slots 0-3 and 4-7: these bits of the slot choose among the octet's vectors

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, const SketchKeys& keys) {
    even = hash(superrow * 512 + member / 2, keys.k0, keys.k1);
    odd = hash(superrow * 512 + (member / 2 ^ 1), keys.k0, keys.k1);
    if (member & 1) {
      even = __byte_perm(even, 0, 0x1032);
      odd = __byte_perm(odd, 0, 0x1032);
    }
  }
  __device__ __forceinline__ std::uint32_t minus(int s, int e) const {
    const std::uint32_t h = s < 4 ? even : odd;
    return h << (24 - 8 * (2 * (s >> 1 & 1) + e) + s) & 0x80000000u;
  }
};
template <>
struct SignWords<4> {
  std::uint32_t even, odd;  // for slots 0-3, shifted down by 4, and 4-7: the upper slots swap neighbouring vectors

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, const SketchKeys& keys)
      : even(hash(superrow * 512 + member, keys.k0, keys.k1) >> 4),
        odd(hash(superrow * 512 + (member ^ 1), keys.k0, keys.k1)) {
    asm("" : "+r"(even), "+r"(odd));  // else a word is folded anew for each bit
  }
  // Adds the element with its sign. Predicates cost fewer instructions than a sign bit brought into place: seven of
  // them come out of a word at once.
  __device__ __forceinline__ void add(float& sum, float value, int s, int e) const {
    const std::uint32_t h = s < 4 ? even : odd;
    asm("{.reg .pred minus; .reg .b32 bit; and.b32 bit, %1, %2; setp.ne.u32 minus, bit, 0;"
        "@minus sub.f32 %0, %0, %3; @!minus add.f32 %0, %0, %3;}"
        : "+f"(sum)
        : "r"(h), "r"(1u << (8 * e + 3 - (s & 3))), "f"(value));
  }
};
template <>
struct SignWords<2> {
  std::uint32_t pairs[4];  // bit 15 - s and bit 31 - s: signs of both elements of a word in slot s

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, const SketchKeys& keys) {
    const std::uint32_t low = hash(superrow * 512 + 2 * member, keys.k0, keys.k1);
    const std::uint32_t high = hash(superrow * 512 + 2 * member + 1, keys.k0, keys.k1);
    pairs[0] = __byte_perm(low, 0, 0x1404);
    pairs[1] = __byte_perm(low, 0, 0x3424);
    pairs[2] = __byte_perm(high, 0, 0x1404);
    pairs[3] = __byte_perm(high, 0, 0x3424);
  }
  __device__ __forceinline__ std::uint32_t apply(std::uint32_t word, int s, int j) const {
    return word ^ (pairs[j] << s & 0x80008000u);
  }
};
template <>
struct SignWords<1> {
  std::uint32_t words[4];

  __device__ __forceinline__ SignWords(std::uint32_t superrow, std::uint32_t member, const SketchKeys& keys) {
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) words[j] = hash(superrow * 512 + 4 * member + j, keys.k0, keys.k1);
  }
  __device__ __forceinline__ std::uint32_t apply(std::uint32_t word, int s, int j) const {
    return word ^ (words[j] << s & 0x80808080u);
  }
};

// The sign of the element at position p of slot s's row whose register position is q: true is minus.
__device__ __forceinline__ bool sign_of_element(std::uint32_t superrow, std::uint32_t slot, std::uint32_t p,
                                                std::uint32_t q, const SketchKeys& keys) {
  const std::uint32_t word = superrow * 512 + 2 * (q / 8) + (p / 4) % 2;
  return hash(word, keys.k0, keys.k1) >> (8 * (p % 4) + 7 - slot) & 1;
}

// Folding 2048 register positions to k: position r * k + (j ^ kFold[r]) goes to j. Without the XOR, positions p and
// p ^ k would always meet in the same sum, whatever the keys.
__constant__ const std::uint32_t kFold[16] = {0x000, 0xcc1, 0x6ce, 0xfed, 0xaca, 0x35a, 0x9b5, 0xdd7,
                                              0x636, 0x064, 0xfca, 0x09d, 0xf03, 0xaff, 0x63e, 0x005};

}  // namespace gradprobe::gate
