// The fast path: what a thread adds up of a few vectors whose elements are all finite and in a range in which float32
// sums can be trusted.
#pragma once

#include <cstdint>

#include "element.cuh"
#include "sketch_map.cuh"
#include "stream_memory.cuh"

namespace gradprobe::gate {

// Slots of a superrow whose vectors are not for the fast path: bit 8 * m + s is slot s of the thread's vector m of a
// row.
struct SlowSlots {
  std::uint32_t bits;

  // Opaque, or the compiler carries every group's part in a register of its own.
  __device__ __forceinline__ SlowSlots() { asm volatile("mov.b32 %0, 0;" : "=r"(bits)); }
  template <int kSlots>
  __device__ __forceinline__ void add(int first) {
    asm volatile("or.b32 %0, %0, %1;" : "+r"(bits) : "r"(((1u << kSlots) - 1) << first));
  }
};

// A thread's sums, in registers. add() takes the vectors of slots first...first + kVectors - 1 of the thread's vector
// `member` of a row; those that are not for the fast path it doesn't add, but notes. flush() is called after every
// kFlushSlots slots of a superrow.
template <typename Element, int kElementBytes = Element::kBytes>
struct ThreadSums;

template <typename Element>
struct ThreadSums<Element, 8> {
  static constexpr int kFlushSlots = 8;
  float sketch[Element::kMembers * Element::kPerVector] = {};
  double sum_squares = 0;
  unsigned long long max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ void add(const uint4* vectors, int first, int member, const SignWords<8>& signs,
                                      SlowSlots& slow) {
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) high = max(high, max(vectors[i].y & 0x7fffffffu, vectors[i].w & 0x7fffffffu));
    if (high >= Element::kLimitHigh) return slow.add<kVectors>(8 * member + first);
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
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::decode(max_bits);
  }
};

// a += x, b += y and a += x * x, b += y * y: one instruction each where two floats can be added together.
__device__ __forceinline__ void add_pair(float& a, float& b, float x, float y) {
#if __CUDA_ARCH__ >= 1000
  asm("{.reg .b64 s, v; mov.b64 s, {%0, %1}; mov.b64 v, {%2, %3}; add.rn.f32x2 s, s, v; mov.b64 {%0, %1}, s;}"
      : "+f"(a), "+f"(b)
      : "f"(x), "f"(y));
#else
  a += x;
  b += y;
#endif
}
__device__ __forceinline__ void add_squares(float& a, float& b, float x, float y) {
#if __CUDA_ARCH__ >= 1000
  asm("{.reg .b64 s, v; mov.b64 s, {%0, %1}; mov.b64 v, {%2, %3}; fma.rn.f32x2 s, v, v, s; mov.b64 {%0, %1}, s;}"
      : "+f"(a), "+f"(b)
      : "f"(x), "f"(y));
#else
  a = fmaf(x, x, a);
  b = fmaf(y, y, b);
#endif
}

// A pair of a vector of slot s in the order of its register positions.
__device__ __forceinline__ float2 in_order(const float2& pair, int s) {
  return s & 1 ? make_float2(pair.y, pair.x) : pair;
}

// The largest element of `kVectors` vectors.
template <typename Element, int kVectors>
__device__ __forceinline__ typename Element::Maximum largest(const uint4* vectors) {
  typename Element::Maximum maximum;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    maximum.add(vectors[i].x);
    maximum.add(vectors[i].y);
    maximum.add(vectors[i].z);
    maximum.add(vectors[i].w);
  }
  return maximum;
}
__device__ __forceinline__ double sum_of(const float (&x)[4]) {
  return static_cast<double>((x[0] + x[1]) + (x[2] + x[3]));
}

template <typename Element>
struct ThreadSums<Element, 4> {
  static constexpr int kFlushSlots = 8;
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ void add(const uint4* vectors, int first, int, const SignWords<4>& signs,
                                      SlowSlots& slow) {
    const typename Element::Maximum maximum = largest<Element, kVectors>(vectors);
    if (!Element::fast(maximum)) return slow.add<kVectors>(first);
    max_bits = max(max_bits, maximum.bits());
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
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(max_bits);
  }
};

template <typename Element>
struct ThreadSums<Element, 2> {
  static constexpr int kFlushSlots = 8;
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ void add(const uint4* vectors, int first, int, const SignWords<2>& signs,
                                      SlowSlots& slow) {
    const typename Element::Maximum maximum = largest<Element, kVectors>(vectors);
    if (!Element::fast(maximum)) return slow.add<kVectors>(first);
    max_bits = max(max_bits, maximum.bits());
#pragma unroll
    for (int group = 0; group < kVectors; group += 4) {
      float squares[4] = {};
#pragma unroll
      for (int i = group; i < min(group + 4, kVectors); ++i) {
        const std::uint32_t words[4] = {vectors[i].x, vectors[i].y, vectors[i].z, vectors[i].w};
        const int s = first + i;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = in_order(Element::decode_pair(kSketch ? signs.apply(words[j], s, j) : words[j]), s);
          const int q = (2 * j) ^ (s & 6);
          if constexpr (kSketch) add_pair(sketch[q], sketch[q + 1], pair.x, pair.y);
          add_squares(squares[2 * (j % 2)], squares[2 * (j % 2) + 1], pair.x, pair.y);
        }
      }
      sum_squares += sum_of(squares);
    }
  }
  __device__ __forceinline__ void flush() {}
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(max_bits);
  }
};

template <typename Element>
struct ThreadSums<Element, 1> {
  float sketch[Element::kPerVector] = {};
#if __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
  static constexpr int kSquares = 2;  // adding in pairs leaves no registers for more
#else
  static constexpr int kSquares = 4;
#endif
  static constexpr int kFlushSlots = 2 * kSquares;  // 32 squares to a float32 sum
  float squares[kSquares] = {};
  typename Element::Maximum maximum;

  template <bool kSketch, int kVectors>
  __device__ __forceinline__ void add(const uint4* vectors, int first, int, const SignWords<1>& signs,
                                      SlowSlots& slow) {
    // Vectors whose elements are held as pairs at a time.
    constexpr int kGroup = kVectors < 2 ? kVectors : 2;
#pragma unroll
    for (int group = 0; group < kVectors; group += kGroup) {
      add_group<kSketch, kGroup>(vectors + group, first + group, signs, slow);
    }
  }
  __device__ __forceinline__ void flush() {
    constexpr double kUnscale = double{Element::kUnscale} * Element::kUnscale;
    double& sum_squares = stream_memory().sum_squares[thread_index()];
    float sum = squares[0] + squares[1];
    if constexpr (kSquares == 4) sum += squares[2] + squares[3];
    sum_squares = fma(static_cast<double>(sum), kUnscale, sum_squares);
#pragma unroll
    for (float& square : squares) square = 0;
  }
  __device__ __forceinline__ double magnitude() const {
    return Element::magnitude(maximum.bits());
  }

 private:
  template <bool kSketch, int kGroup>
  __device__ __forceinline__ void add_group(const uint4* vectors, int first, const SignWords<1>& signs,
                                            SlowSlots& slow) {
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
    if (!Element::fast(grown)) return slow.add<kGroup>(first);
    maximum = grown;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int s = first + i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 low = in_order(Element::decode_pair(pairs[4 * i + j].x), s);
        const float2 high = in_order(Element::decode_pair(pairs[4 * i + j].y), s);
        const int q = (4 * j) ^ (s & 4), ql = q + (s & 2), qh = q + 2 - (s & 2);
        if constexpr (kSketch) {
          add_pair(sketch[ql], sketch[ql + 1], low.x, low.y);
          add_pair(sketch[qh], sketch[qh + 1], high.x, high.y);
        }
        add_squares(squares[0], squares[1], low.x, low.y);
        add_squares(squares[kSquares - 2], squares[kSquares - 1], high.x, high.y);
      }
    }
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
