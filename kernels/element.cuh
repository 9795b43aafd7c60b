// What the measuring kernels know of f32, bf16 and f16: the layout in a 16-byte vector, the running maximum that
// guards the fast path, and decoding to float32 (exact for all three).
#pragma once

#include <cstdint>

#include "abi.hpp"

namespace gradprobe::gate {

template <int kElementBytes>
struct VectorLayout {
  static constexpr int kBytes = kElementBytes;
  static constexpr int kPerVector = 16 / kBytes;
  static constexpr int kTeamThreads = static_cast<int>(kRegisterSketch) / kPerVector;  // threads of one superrow
  static constexpr int kTeams = static_cast<int>(kThreads) / kTeamThreads;             // superrows of a unit
};
inline constexpr int kMaxTeams = VectorLayout<2>::kTeams;
static_assert(unit_elements(4) == VectorLayout<4>::kTeams * kSuperrow);
static_assert(unit_elements(2) == VectorLayout<2>::kTeams * kSuperrow);

// `bits` of the largest |x| let float32 sums of squares of a few elements neither overflow nor lose to underflow:
// 2^-40 <= max <= 2^50, or all are zero. NaN and Inf are outside. `one_exponent`: bits of 2^-126 of the format.
__device__ __forceinline__ bool in_fast_range(std::uint32_t bits, std::uint32_t one_exponent) {
  return bits - (127 - 40) * one_exponent <= 90 * one_exponent || bits == 0;
}

struct F32 : VectorLayout<4> {
  static constexpr std::uint32_t kInfinity = 0x7f800000;

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

  static __device__ __forceinline__ std::uint32_t magnitude(std::uint32_t word, int) {
    return word & 0x7fffffffu;
  }
  static __device__ __forceinline__ bool negative(std::uint32_t word, int) {
    return word >> 31;
  }
  static __device__ __forceinline__ float decode(std::uint32_t bits) {
    return __uint_as_float(bits);
  }
  static __device__ __forceinline__ std::uint32_t zeros(std::uint32_t word) {
    return (word << 1) == 0;
  }
};

// Two elements in a word, the first in its low half.
template <typename Self>
struct Half : VectorLayout<2> {
  struct Maximum {
#if __CUDA_ARCH__ >= 800
    std::uint32_t pair = 0;  // signs undefined
    __device__ __forceinline__ void add(std::uint32_t word) {
      Self::propagate_maximum(pair, word);
    }
    __device__ __forceinline__ std::uint32_t bits() const {
      return max(pair & 0x7fffu, pair >> 16 & 0x7fffu);
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
  static __device__ __forceinline__ std::uint32_t magnitude(std::uint32_t word, int half) {
    return word >> (16 * half) & 0x7fffu;
  }
  static __device__ __forceinline__ bool negative(std::uint32_t word, int half) {
    return word >> (16 * half + 15) & 1;
  }
  static __device__ __forceinline__ std::uint32_t zeros(std::uint32_t word) {
    return __popc(~((word & 0x7fff7fffu) + 0x7fff7fffu) & 0x80008000u);
  }
};

struct Bf16 : Half<Bf16> {
  static constexpr std::uint32_t kInfinity = 0x7f80;
  // The instruction that takes |x| itself came with sm_86.
  static __device__ __forceinline__ void propagate_maximum(std::uint32_t& pair, std::uint32_t word) {
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(word));
#elif __CUDA_ARCH__ >= 800
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(word & 0x7fff7fffu));
#endif
  }
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) {
    return in_fast_range(max_bits, 1u << 7);
  }
  static __device__ __forceinline__ float decode(std::uint32_t bits) {
    return __uint_as_float(bits << 16);
  }
  static __device__ __forceinline__ float2 decode_pair(std::uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  }
};

struct F16 : Half<F16> {
  static constexpr std::uint32_t kInfinity = 0x7c00;
  static __device__ __forceinline__ void propagate_maximum(std::uint32_t& pair, std::uint32_t word) {
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(word));
#elif __CUDA_ARCH__ >= 800
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(word & 0x7fff7fffu));
#endif
  }
  // Squares of finite values lie between 2^-48 and 2^32: only NaN and Inf leave the fast path.
  static __device__ __forceinline__ bool fast(std::uint32_t max_bits) {
    return max_bits < kInfinity;
  }
  static __device__ __forceinline__ float decode(std::uint32_t bits) {
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

}  // namespace gradprobe::gate
