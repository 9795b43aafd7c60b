// The ways to load a 16-byte vector of a bucket's elements. None of them reads outside of the aligned 16-byte pieces
// in which elements of the bucket lie.
#pragma once

#include <cstdint>

#include "memory.cuh"
#include "stream_memory.cuh"

namespace gradprobe::gate {

// Vectors that lie in the bucket at multiples of 16 bytes.
struct AlignedVectors {
  __device__ __forceinline__ uint4 load(const char* p) const {
    return load_streaming(p);
  }
};

// Vectors at any address: two aligned pieces, shifted. The second piece is the first one of a neighbouring vector, so
// it comes out of the cache. kPartial: the bucket may end before the vector does, or before it begins; what lies behind
// the end reads as zero.
template <bool kPartial>
struct ShiftedVectors {
  std::uint32_t past;  // bytes of the vectors behind a multiple of 16
  const char* end;     // of the bucket

  __device__ __forceinline__ explicit ShiftedVectors(const StreamSource& source, std::uint32_t element_bytes)
      : past(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source.input)) & 15),
        end(source.input + source.count * element_bytes) {}

  __device__ __forceinline__ uint4 load(const char* p) const {
    const long long left = end - p;
    const int valid = kPartial ? static_cast<int>(max(0ll, min(16ll, left))) : 16;
    const uint4 low = load_cached_if(valid > 0, p - past);
    const uint4 high = load_cached_if(valid + past > 16, p - past + 16);
    std::uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (past & 8) {
#pragma unroll
      for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
    }
    if (past & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
    }
    const std::uint32_t bits = 8 * (past & 3);
    uint4 v = make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                         __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
    if constexpr (kPartial) {
      v.x &= first_bytes(valid);
      v.y &= first_bytes(valid - 4);
      v.z &= first_bytes(valid - 8);
      v.w &= first_bytes(valid - 12);
    }
    return v;
  }

 private:
  // A mask of the first `bytes` of a word; less than none is none, more than four are all.
  static __device__ __forceinline__ std::uint32_t first_bytes(int bytes) {
    return bytes >= 4 ? 0xffffffffu : (1u << (8 * max(bytes, 0))) - 1;
  }
};

}  // namespace gradprobe::gate
