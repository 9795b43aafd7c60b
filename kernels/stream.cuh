// Streaming a bucket's superrows through the threads of a CTA: norm, counts, fingerprint and sketch.
#pragma once

#include <cstdint>

#include "abi.hpp"
#include "accumulate.cuh"
#include "element.cuh"
#include "exact.cuh"
#include "sketch_map.cuh"
#include "stream_memory.cuh"
#include "vectors.cuh"

namespace gradprobe::gate {

inline constexpr std::uint32_t kAllSuperrows = 2;  // instead of a half

// A range of superrows, or those of one half of it, that the teams of a CTA take in turns.
struct SuperrowTurns {
  std::uint32_t begin, end, half;

  __device__ __forceinline__ std::uint32_t first() const {
    return half == kAllSuperrows ? begin : begin / 2;
  }
  __device__ __forceinline__ std::uint32_t last() const {
    return half == kAllSuperrows ? end : (end + 1) / 2;
  }
  // False: the turn's superrow is not in the range.
  __device__ __forceinline__ bool superrow(std::uint32_t turn, const SketchKeys& keys, std::uint32_t& superrow) const {
    superrow = turn;
    if (half == kAllSuperrows) return true;
    superrow = superrow_of_half(turn, half, keys);
    return superrow >= begin && superrow < end;
  }
};

// What is only measured when it is asked for.
template <typename Element, int kVectors>
__device__ __forceinline__ void measure_extras(const uint4* vectors) {
  StreamMemory& memory = stream_memory();
  if (memory.source.count_zeros) {
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) count += zeros<Element>(vectors[i]);
    memory.zero_count[threadIdx.x] += count;
  }
  if (memory.source.fingerprint) {
    std::uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sum += vectors[i].x;
      sum += vectors[i].y;
      sum += vectors[i].z;
      sum += vectors[i].w;
    }
    memory.words[threadIdx.x] += sum;
  }
}

// Measures what a thread loads of one superrow, kInFlight vectors at a time.
template <typename Element, bool kSketch, int kInFlight, typename Vectors>
__device__ __forceinline__ void measure_superrow(std::uint32_t superrow, const Vectors& loader,
                                                 ThreadSums<Element>& sums) {
  using Sums = ThreadSums<Element>;
  const StreamSource& source = stream_memory().source;
  std::uint32_t slow = 0;
#pragma unroll
  for (int m = 0; m < Element::kMembers; ++m) {
    const std::uint32_t member = first_member<Element>() + m * kThreads;
    const SuperrowMap<Element> map(source.input, superrow, member, source.keys);
    const SignWords<Element::kBytes> signs(superrow, member, source.keys);
#pragma unroll
    for (int first = 0; first < 8; first += kInFlight) {
      uint4 vectors[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) vectors[i] = loader.load(map.vector(first + i, member));
      if (source.count_zeros || source.fingerprint) measure_extras<Element, kInFlight>(vectors);
      if constexpr (Element::kBytes == 1) {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const uint4 v = vectors[i];
          if (map.swapped(first + i)) vectors[i] = make_uint4(v.z, v.w, v.x, v.y);
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; i += Sums::kGroup) {
        if (!sums.template add<kSketch>(vectors + i, first + i, m, signs)) {
          slow |= ((1u << Sums::kGroup) - 1) << (8 * m + first + i);
        }
      }
    }
  }
  sums.flush();
  // Here, and not in the loop, the vectors' registers are free for the call.
  if (slow) sums.sum_squares += measure_exactly<Element>(superrow, slow);
}

// Adds a thread's sums to those in shared memory. By whole warps.
template <typename Element>
__device__ __forceinline__ void add_to_shared(const ThreadSums<Element>& sums) {
  StreamMemory& memory = stream_memory();
  memory.sum_squares[threadIdx.x] += sums.sum_squares;
  // The fast path's elements are 2^kScale times the bucket's.
  constexpr float kUnscale = Element::kScale ? 0x1p8f : 1.0f;
#pragma unroll
  for (int m = 0; m < Element::kMembers; ++m) {
    float* sketch = member_sketch<Element>(m);
#pragma unroll
    for (int e = 0; e < Element::kPerVector; ++e) sketch[e] += kUnscale * sums.sketch[m * Element::kPerVector + e];
  }
  unsigned long long bits = magnitude_bits(sums.magnitude());
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
  if (threadIdx.x % 32 == 0) memory.max_bits[threadIdx.x / 32] = max(memory.max_bits[threadIdx.x / 32], bits);
}

// Whole superrows of a bucket that isn't aligned to 16 bytes.
template <typename Element>
__device__ __noinline__ void stream_unaligned(SuperrowTurns turns) {
  const StreamSource& source = stream_memory().source;
  const ShiftedVectors<false> vectors(source, Element::kBytes);
  ThreadSums<Element> sums;
  const std::uint32_t last = turns.last();
  for (std::uint32_t turn = turns.first() + threadIdx.x / Element::kTeamThreads; turn < last; turn += Element::kTeams) {
    asm volatile("" ::: "memory");
    std::uint32_t superrow;
    if (turns.superrow(turn, source.keys, superrow)) measure_superrow<Element, true, 4>(superrow, vectors, sums);
  }
  add_to_shared(sums);
}

// The superrow in which a bucket ends, by one team.
template <typename Element>
__device__ __noinline__ void stream_end(std::uint32_t superrow) {
  ThreadSums<Element> sums;
  measure_superrow<Element, true, 4>(superrow, ShiftedVectors<true>(stream_memory().source, Element::kBytes), sums);
  add_to_shared(sums);
}

// The threads' sums and register sketches to zero. By all threads of the CTA, as all that follows.
template <typename Element>
__device__ __forceinline__ void clear_sketch() {
#pragma unroll
  for (int m = 0; m < Element::kMembers; ++m) {
#pragma unroll
    for (int e = 0; e < Element::kPerVector; ++e) member_sketch<Element>(m)[e] = 0;
  }
}
template <typename Element>
__device__ __forceinline__ void clear_sums() {
  StreamMemory& memory = stream_memory();
  memory.sum_squares[threadIdx.x] = 0;
  memory.words[threadIdx.x] = 0;
  memory.nan_count[threadIdx.x] = 0;
  memory.inf_count[threadIdx.x] = 0;
  memory.zero_count[threadIdx.x] = 0;
  if (threadIdx.x % 32 == 0) memory.max_bits[threadIdx.x / 32] = 0;
  __syncwarp();
  clear_sketch<Element>();
}

// Adds superrows begin...end - 1 of the source, or those of them that belong to `half` (0 or 1) of a sketch of 4096
// floats, to the sums and to the teams' register sketches.
template <typename Element, bool kSketch>
__device__ __forceinline__ void stream_superrows(std::uint32_t begin, std::uint32_t end, std::uint32_t half) {
  const StreamSource& source = stream_memory().source;
  const std::uint32_t whole = min(end, static_cast<std::uint32_t>(source.count / kSuperrow));
  const SuperrowTurns turns{begin, whole, half};
  if (source.aligned) {
    ThreadSums<Element> sums;
    const std::uint32_t last = turns.last();
    for (std::uint32_t turn = turns.first() + threadIdx.x / Element::kTeamThreads; turn < last;
         turn += Element::kTeams) {
      // The source is read anew for every superrow: in registers it would crowd out the vectors.
      asm volatile("" ::: "memory");
      std::uint32_t superrow;
      if (!turns.superrow(turn, source.keys, superrow)) continue;
      measure_superrow<Element, kSketch, Element::kBytes == 1 ? 4 : 8>(superrow, AlignedVectors{}, sums);
    }
    add_to_shared(sums);
  } else {
    stream_unaligned<Element>(turns);
  }
  if (whole == end) return;
  // The team whose turn it is.
  if ((whole - begin) % Element::kTeams != threadIdx.x / Element::kTeamThreads) return;
  if (half != kAllSuperrows && superrow_of_half(whole / 2, half, source.keys) != whole) return;
  stream_end<Element>(whole);
}

// A thread's totals; the maximum is its warp's, the first non-finite element is the CTA's to add.
template <typename Element>
__device__ __forceinline__ PartialScalars thread_scalars() {
  const StreamMemory& memory = stream_memory();
  PartialScalars s{};
  s.sum_squares = memory.sum_squares[threadIdx.x];
  s.max_abs = __longlong_as_double(static_cast<long long>(memory.max_bits[threadIdx.x / 32]));
  s.nan_count = memory.nan_count[threadIdx.x];
  s.inf_count = memory.inf_count[threadIdx.x];
  s.zero_count = memory.zero_count[threadIdx.x];
  s.first_nonfinite = ~std::uint64_t{0};
  s.words = memory.words[threadIdx.x];
  s.start_ns = ~std::uint64_t{0};
  return s;
}

}  // namespace gradprobe::gate
