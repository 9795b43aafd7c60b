// The fast path: what a thread adds up of a few vectors whose elements are all finite and in a range in which float32
// sums can be trusted.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "sketch_map.cuh"
#include "stream_memory.cuh"

namespace gradprobe::gate {

// A thread's sums, in registers. add() takes the vectors of slots first...first + kVectors - 1 of the thread's vector
// `member` of a row and returns those that it has not added because they are not for the fast path: bit i is the vector
// of slot first + i. flush() is called after each superrow.
template <typename Element, int kElementBytes = Element::kBytes>
struct ThreadSums;

template <typename Element>
struct ThreadSums<Element, 8> {
  float sketch[Element::kMembers * Element::kPerVector] = {};
  double sum_squares = 0;
  unsigned long long max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ std::uint32_t add(const uint4* vectors, int first, int member, const SignWords<8>& signs) {
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) high = max(high, max(vectors[i].y & 0x7fffffffu, vectors[i].w & 0x7fffffffu));
    if (high >= Element::kLimitHigh) return (1u << kVectors) - 1;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int s = first + i;
      const std::uint64_t words[2] = {std::uint64_t{vectors[i].y} << 32 | vectors[i].x,
                                      std::uint64_t{vectors[i].w} << 32 | vectors[i].z};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const double value = Element::decode(words[e]);
        max_bits = max(max_bits, magnitude_bits(value));
        sum_squares = fma(value, value, sum_squares);
        if constexpr (kSketch) {
          const std::uint32_t single = __float_as_uint(__double2float_rn(value));
          sketch[Element::kPerVector * member + (e ^ (s & 1))] += __uint_as_float(single ^ signs.minus(s, e));
        }
      }
    }
    return 0;
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::decode(max_bits);
  }
};

// The largest element of `kVectors` vectors.
template <typename Element, int kVectors>
__device__ __forceinline__ std::uint32_t largest(const uint4* vectors) {
  typename Element::Maximum maximum;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    maximum.add(vectors[i].x);
    maximum.add(vectors[i].y);
    maximum.add(vectors[i].z);
    maximum.add(vectors[i].w);
  }
  return maximum.bits();
}
__device__ __forceinline__ double sum_of(const float (&x)[4]) {
  return static_cast<double>((x[0] + x[1]) + (x[2] + x[3]));
}

template <typename Element>
struct ThreadSums<Element, 4> {
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ std::uint32_t add(const uint4* vectors, int first, int, const SignWords<4>& signs) {
    const std::uint32_t bits = largest<Element, kVectors>(vectors);
    if (!Element::fast(bits)) return (1u << kVectors) - 1;
    max_bits = max(max_bits, bits);
    float squares[4] = {};
    // In this order the predicates of a byte of the signs are drawn together.
#pragma unroll
    for (int group = 0; group < kVectors; group += 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = group; i < min(group + 4, kVectors); ++i) {
          const uint4& v = vectors[i];
          const float value = __uint_as_float(e < 2 ? e == 0 ? v.x : v.y : e == 2 ? v.z : v.w);
          const int s = first + i;
          if constexpr (kSketch) signs.add(sketch[e ^ (s & 3)], value, s, e);
          squares[e] = fmaf(value, value, squares[e]);
        }
      }
    }
    sum_squares += sum_of(squares);
    return 0;
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(max_bits);
  }
};

template <typename Element>
struct ThreadSums<Element, 2> {
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ std::uint32_t add(const uint4* vectors, int first, int, const SignWords<2>& signs) {
    const std::uint32_t bits = largest<Element, kVectors>(vectors);
    if (!Element::fast(bits)) return (1u << kVectors) - 1;
    max_bits = max(max_bits, bits);
#pragma unroll
    for (int group = 0; group < kVectors; group += 4) {
      float squares[4] = {};
#pragma unroll
      for (int i = group; i < min(group + 4, kVectors); ++i) {
        const std::uint32_t words[4] = {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w};
        const int s = first + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = Element::decode_pair(kSketch ? signs.apply(words[j], s, j) : words[j]);
          if constexpr (kSketch) {
            sketch[(2 * j) ^ s] += pair.x;
            sketch[(2 * j + 1) ^ s] += pair.y;
          }
          squares[j] = fmaf(pair.x, pair.x, squares[j]);
          squares[j] = fmaf(pair.y, pair.y, squares[j]);
        }
      }
      sum_squares += sum_of(squares);
    }
    return 0;
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(max_bits);
  }
};

template <typename Element>
struct ThreadSums<Element, 1> {
  float sketch[Element::kPerVector] = {};
  float squares[2] = {};
  typename Element::Maximum maximum;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ std::uint32_t add(const uint4* vectors, int first, int, const SignWords<1>& signs) {
    // Vectors whose elements are held as pairs at a time.
    constexpr int kGroup = kVectors < 2 ? kVectors : 2;
    std::uint32_t slow = 0;
#pragma unroll
    for (int group = 0; group < kVectors; group += kGroup) {
      if (!add_group<kSketch, kGroup>(vectors + group, first + group, signs)) slow |= ((1u << kGroup) - 1) << group;
    }
    return slow;
  }
  __device__ __forceinline__ void flush() {
    constexpr double kUnscale = Element::kScale ? 0x1p16 : 1;
    double& sum_squares = stream_memory().sum_squares[thread_index()];
    sum_squares = fma(static_cast<double>(squares[0] + squares[1]), kUnscale, sum_squares);
#pragma unroll
    for (float& square : squares) square = 0;
  }
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(maximum.bits());
  }

 private:
  template <bool kSketch, int kGroup>
  __device__ __forceinline__ bool add_group(const uint4* vectors, int first, const SignWords<1>& signs) {
    uint2 pairs[4 * kGroup];
    typename Element::Maximum grown = maximum;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const std::uint32_t words[4] = {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 pair = Element::to_pairs(kSketch ? signs.apply(words[j], first + i, j) : words[j]);
        grown.add(pair.x);
        grown.add(pair.y);
        pairs[4 * i + j] = pair;
      }
    }
    if (!Element::fast(grown.bits())) return false;
    maximum = grown;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int s = first + i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 low = Element::decode_pair(pairs[4 * i + j].x), high = Element::decode_pair(pairs[4 * i + j].y);
        if constexpr (kSketch) {
          sketch[(4 * j) ^ s] += low.x;
          sketch[(4 * j + 1) ^ s] += low.y;
          sketch[(4 * j + 2) ^ s] += high.x;
          sketch[(4 * j + 3) ^ s] += high.y;
        }
        squares[0] = fmaf(low.x, low.x, squares[0]);
        squares[1] = fmaf(low.y, low.y, squares[1]);
        squares[0] = fmaf(high.x, high.x, squares[0]);
        squares[1] = fmaf(high.y, high.y, squares[1]);
      }
    }
    return true;
  }
};

// Elements of a word of the bucket that are zero; of float64, of both words.
template <typename Element>
__device__ __forceinline__ std::uint32_t zeros(const uint4& v) {
  if constexpr (Element::kBytes == 8) {
    return ((v.x | v.y << 1) == 0) + ((v.z | v.w << 1) == 0);
  } else {
    constexpr auto in_word = [](std::uint32_t word) -> std::uint32_t {
      if constexpr (Element::kBytes == 4) return (word << 1) == 0;
      constexpr std::uint32_t kMagnitude = Element::kBytes == 2 ? 0x7fff7fffu : 0x7f7f7f7fu;
      return __popc(~((word & kMagnitude) + kMagnitude) & ~kMagnitude);
    };
    return in_word(v.x) + in_word(v.y) + in_word(v.z) + in_word(v.w);
  }
}

}  // namespace gradprobe::gate
