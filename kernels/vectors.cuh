// The ways to load a 16-byte vector of a bucket's elements. None of them reads outside of the aligned 16-byte pieces
// in which elements of the bucket lie. kPieces: registers that a vector takes while it is loaded, in vectors.
#pragma once

#include <cstdint>

#include "memory.cuh"
#include "stream_memory.cuh"

namespace gradprobe::gate {

// Vectors that lie in the bucket at multiples of 16 bytes.
struct AlignedVectors {
  static constexpr int kPieces = 1;

  __device__ __forceinline__ AlignedVectors(const StreamSource&, std::uint32_t, std::uint32_t) {}
  __device__ __forceinline__ uint4 load(const char* p) const { return load_streaming(p); }
};

// What of a vector lies before the end of its superrow and of the bucket.
struct VectorEnd {
  std::uint32_t end;  // low word of the address

  __device__ __forceinline__ VectorEnd(const StreamSource& source, std::uint32_t superrow,
                                       std::uint32_t element_bytes) {
    const std::uint64_t elements = min(source.count, (std::uint64_t{superrow} + 1) * kSuperrow);
    end = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source.input)) +
          static_cast<std::uint32_t>(elements * element_bytes);
  }
  // Bytes of a vector of the superrow: 0...16.
  __device__ __forceinline__ int valid(const char* p) const {
    return max(0, min(16, static_cast<int>(end - static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(p)))));
  }
  // The vector's first `valid` bytes; the others are zero.
  static __device__ __forceinline__ uint4 cut(const uint4& v, int valid) {
    return make_uint4(v.x & first_bytes(valid), v.y & first_bytes(valid - 4), v.z & first_bytes(valid - 8),
                      v.w & first_bytes(valid - 12));
  }

 private:
  // A mask of the first `bytes` of a word; less than none is none, more than four are all.
  static __device__ __forceinline__ std::uint32_t first_bytes(int bytes) {
    return bytes >= 4 ? 0xffffffffu : (1u << (8 * max(bytes, 0))) - 1;
  }
};

// Vectors at multiples of 16 bytes of the superrow in which the bucket ends.
struct LastVectors {
  static constexpr int kPieces = 2;
  VectorEnd end;

  __device__ __forceinline__ LastVectors(const StreamSource& source, std::uint32_t superrow,
                                         std::uint32_t element_bytes)
      : end(source, superrow, element_bytes) {}
  __device__ __forceinline__ uint4 load(const char* p) const {
    const int valid = end.valid(p);
    return VectorEnd::cut(load_cached_if(valid > 0, p), valid);
  }
};

// Vectors at any address, in two aligned pieces.
class ShiftedPieces {
 public:
  __device__ __forceinline__ explicit ShiftedPieces(const StreamSource& source)
      : past_(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(source.input)) & 15) {}
  // The second piece is the first one of a neighbouring vector, so it comes out of the cache.
  __device__ __forceinline__ uint4 load(const char* p, int valid) const {
    const uint4 low = load_cached_if(valid > 0, p - past_);
    const uint4 high = load_cached_if(valid + static_cast<int>(past_) > 16, p - past_ + 16);
    std::uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (past_ & 8) {
#pragma unroll
      for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
    }
    if (past_ & 4) {
#pragma unroll
      for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
    }
    const std::uint32_t bits = 8 * (past_ & 3);
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }

 private:
  std::uint32_t past_;  // bytes behind a multiple of 16
};

// Vectors that lie in the bucket, at any address.
struct ShiftedVectors {
  static constexpr int kPieces = 2;
  ShiftedPieces pieces;

  __device__ __forceinline__ ShiftedVectors(const StreamSource& source, std::uint32_t, std::uint32_t)
      : pieces(source) {}
  __device__ __forceinline__ uint4 load(const char* p) const { return pieces.load(p, 16); }
};

// Vectors at any address, of any superrow.
struct AnyVectors {
  static constexpr int kPieces = 4;
  ShiftedPieces pieces;
  VectorEnd end;

  __device__ __forceinline__ AnyVectors(const StreamSource& source, std::uint32_t superrow, std::uint32_t element_bytes)
      : pieces(source), end(source, superrow, element_bytes) {}
  __device__ __forceinline__ uint4 load(const char* p) const {
    const int valid = end.valid(p);
    return VectorEnd::cut(pieces.load(p, valid), valid);
  }
};

}  // namespace gradprobe::gate
