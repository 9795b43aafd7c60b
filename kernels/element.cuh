// What the measuring kernels know of each datatype: its layout in a 16-byte vector, decoding of one element, and the
// form in which the fast path works with it.
#pragma once

#include <cstdint>

#include "abi.hpp"

namespace gradprobe::gate {

template <int kElementBytes>
struct VectorLayout {
  static constexpr int kBytes = kElementBytes;
  static constexpr int kScale = 0;  // the fast path works with 2^kScale times the elements
  static constexpr int kPerVector = 16 / kBytes;
  static constexpr int kRowVectors = static_cast<int>(kRegisterSketch) / kPerVector;
  // Vectors of a row that belong to one thread.
  static constexpr int kMembers = kRowVectors > static_cast<int>(kThreads) ? kRowVectors / static_cast<int>(kThreads)
                                                                           : 1;
  static constexpr int kTeamThreads = kRowVectors / kMembers;               // threads of one superrow
  static constexpr int kTeams = static_cast<int>(kThreads) / kTeamThreads;  // superrows of a unit
  static_assert(kTeams == unit_superrows(kBytes));
};
inline constexpr int kMaxTeams = VectorLayout<1>::kTeams;

// Elements beyond this stay out of the sketch, whose sums so remain finite.
inline constexpr double kSketchLimit = 0x1p100;

// `bits` of the largest |x| let float32 sums of squares of 32 elements neither overflow nor lose to underflow:
// 2^-60 <= max < 2^60, or all are zero. NaN and Inf are outside. `one_exponent`: bits of 2^-126 of the format.
__device__ __forceinline__ bool in_fast_range(std::uint32_t bits, std::uint32_t one_exponent) {
  return bits - (127 - 60) * one_exponent < 120 * one_exponent || bits == 0;
}

// |x| as the bits of a double: they compare as integers, NaN > Inf > finite.
__device__ __forceinline__ unsigned long long magnitude_bits(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x)) & 0x7fffffffffffffffull;
}
inline constexpr unsigned long long kInfinityBits = 0x7ff0000000000000ull;

struct F64 : VectorLayout<8> {
  static constexpr std::uint32_t kLimitHigh = 0x46300000;  // upper word of 2^100

  static __device__ __forceinline__ double decode(std::uint64_t bits) {
    return __longlong_as_double(static_cast<long long>(bits));
  }
};

struct F32 : VectorLayout<4> {
  // Running maximum of |x| as an integer would see it: NaN > Inf > finite.
  struct Maximum {
#if __CUDA_ARCH__ >= 800
    float value = 0;
    __device__ __forceinline__ void add(std::uint32_t word) {
      asm("max.NaN.f32 %0, %0, %1;" : "+f"(value) : "f"(fabsf(__uint_as_float(word))));
    }
    __device__ __forceinline__ std::uint32_t bits() const {
      return __float_as_uint(value);
    }
#else
    std::uint32_t value = 0;
    __device__ __forceinline__ void add(std::uint32_t word) {
      value = max(value, word & 0x7fffffffu);
    }
    __device__ __forceinline__ std::uint32_t bits() const {
      return value;
    }
#endif
  };
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) {
    return in_fast_range(max_bits, 1u << 23);
  }
  static __device__ __forceinline__ double magnitude(std::uint32_t max_bits) {
    return __uint_as_float(max_bits);
  }
  static __device__ __forceinline__ double decode(std::uint32_t bits) {
    return __uint_as_float(bits);
  }
};

// The running maximum of the magnitudes of pairs of 16 bits, as an integer would see it: of float16, NaN > Inf >
// finite. bfloat16 of less than 2^121 are finite as float16 bits, and in the same order; others come out as those bits'
// NaN or Inf, beyond every range that can be asked for.
struct PairMaximum {
#if __CUDA_ARCH__ >= 800
  std::uint32_t pair = 0;
  // From compute capability 8.6 on |x| comes with the maximum, from 9.0 on two steps are one instruction.
  __device__ __forceinline__ void add(std::uint32_t word) {
    asm("{.reg .b32 magnitude; abs.f16x2 magnitude, %1; max.NaN.f16x2 %0, %0, magnitude;}" : "+r"(pair) : "r"(word));
  }
  __device__ __forceinline__ std::uint32_t bits() const {
    return max(pair & 0xffffu, pair >> 16);
  }
#else
  std::uint32_t low = 0, high = 0;
  __device__ __forceinline__ void add(std::uint32_t word) {
    low = max(low, word & 0x7fffu);
    high = max(high, word & 0x7fff0000u);
  }
  __device__ __forceinline__ std::uint32_t bits() const {
    return max(low, high >> 16);
  }
#endif
};

struct Bf16 : VectorLayout<2> {
  using Maximum = PairMaximum;
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) { return in_fast_range(max_bits, 1u << 7); }
  static __device__ __forceinline__ double magnitude(std::uint32_t max_bits) { return __uint_as_float(max_bits << 16); }
  static __device__ __forceinline__ double decode(std::uint32_t bits) { return __uint_as_float(bits << 16); }
  static __device__ __forceinline__ float2 decode_pair(std::uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
};

// float16 arithmetic, for the types that are float16 or become it.
struct HalfPairs {
  static __device__ __forceinline__ float to_float(std::uint32_t bits) {
    float value;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(bits));
    return value;
  }
  static __device__ __forceinline__ float2 decode_pair(std::uint32_t word) {
    float2 pair;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
  }
};

struct F16 : VectorLayout<2>, HalfPairs {
  using Maximum = PairMaximum;
  // Squares of finite values lie between 2^-48 and 2^32: only NaN and Inf leave the fast path.
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) { return max_bits < 0x7c00; }
  static __device__ __forceinline__ double magnitude(std::uint32_t max_bits) { return to_float(max_bits); }
  static __device__ __forceinline__ double decode(std::uint32_t bits) { return to_float(bits); }
};

// OCP FP8 E4M3: no infinities, NaN is S.1111.111. The fast path works with float16 pairs that hold 2^kScale times the
// elements.
struct F8E4m3 : VectorLayout<1>, HalfPairs {
  using Maximum = PairMaximum;
#if __CUDA_ARCH__ >= 890
  static constexpr std::uint32_t kNonfinite = 0x7c00;
  static __device__ __forceinline__ uint2 to_pairs(std::uint32_t word) {
    uint2 pairs;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(pairs.x), "=r"(pairs.y)
        : "r"(word));
    return pairs;
  }
#else
  // The same exponent and fraction bits in float16, whose bias is larger by 8; NaN comes out above all others.
  static constexpr int kScale = -8;
  static constexpr std::uint32_t kNonfinite = 0x7f << 7;
  static __device__ __forceinline__ std::uint32_t spread(std::uint32_t pair) {
    return (pair & 0x80008000u) | (pair >> 1 & 0x3f803f80u);
  }
  static __device__ __forceinline__ uint2 to_pairs(std::uint32_t word) {
    return {spread(__byte_perm(word, 0, 0x1404)), spread(__byte_perm(word, 0, 0x3424))};
  }
#endif
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) {
    return max_bits < kNonfinite;
  }
  static __device__ __forceinline__ double magnitude(std::uint32_t max_bits) {
    return to_float(max_bits) * (kScale ? 0x1p8f : 1.0f);
  }
  static __device__ __forceinline__ double decode(std::uint32_t bits) {
    const float value = to_float((bits & 0x80u) << 8 | (bits & 0x7fu) << 7) * 0x1p8f;
    return (bits & 0x7fu) == 0x7fu ? __uint_as_float(0x7fffffff) : value;
  }
};

// OCP FP8 E5M2: the upper byte of a float16.
struct F8E5m2 : VectorLayout<1>, HalfPairs {
  using Maximum = PairMaximum;
  static __device__ __forceinline__ uint2 to_pairs(std::uint32_t word) {
    return {__byte_perm(word, 0, 0x1404), __byte_perm(word, 0, 0x3424)};
  }
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) { return max_bits < 0x7c00; }
  static __device__ __forceinline__ double magnitude(std::uint32_t max_bits) { return to_float(max_bits); }
  static __device__ __forceinline__ double decode(std::uint32_t bits) { return to_float(bits << 8); }
};

}  // namespace gradprobe::gate
