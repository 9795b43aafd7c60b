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

// What is only measured when it is asked for.
template <typename Element, int kVectors>
__device__ __forceinline__ void measure_extras(const uint4* vectors) {
  StreamMemory& memory = stream_memory();
  if (memory.source.count_zeros) {
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) count += zeros<Element>(vectors[i]);
    memory.zero_count[thread_index()] += count;
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
    memory.words[thread_index()] += sum;
  }
}

// Vectors that a thread loads at a time: what the registers have room for beside the sums. kRange: in stream_range,
// whose loop needs some itself.
template <typename Element, typename Vectors, bool kRange = false>
__device__ constexpr int in_flight() {
  constexpr bool kFewSums = Element::kBytes == 2 || Element::kBytes == 4;
#if __CUDA_ARCH__ >= 1200
  // Fewer are enough for this memory, and the compiler needs more registers.
  constexpr int kVectors = kFewSums ? (Vectors::kPieces == 1 ? 8 : 4) : 2;
#elif __CUDA_ARCH__ >= 1000
  constexpr int kVectors = kFewSums ? 8 : (kRange ? 2 : 4);
#else
  constexpr int kVectors = kFewSums ? 8 : 4;
#endif
  return kVectors > Vectors::kPieces ? kVectors / Vectors::kPieces : 1;
}

// Measures what a thread loads of one superrow.
template <typename Element, bool kSketch, typename Vectors, bool kRange = false>
__device__ __forceinline__ void measure_superrow(std::uint32_t superrow, ThreadSums<Element>& sums) {
  const StreamSource& source = stream_memory().source;
  constexpr int kInFlight = in_flight<Element, Vectors, kRange>();
  const Vectors loader(source, superrow, Element::kBytes);
  const bool extras = source.count_zeros || source.fingerprint;
  SlowSlots slow;
#pragma unroll
  for (int m = 0; m < Element::kMembers; ++m) {
    const std::uint32_t member = first_member<Element>() + m * kThreads;
    const SuperrowMap<Element> map(superrow, member, source.keys);
    const SignWords<Element::kBytes> signs(superrow, member, source.keys);
#pragma unroll
    for (int first = 0; first < 8; first += kInFlight) {
      // Addresses are made for one batch of loads at a time.
      if (m || first) asm volatile("" ::: "memory");
      const char* begin = superrow_address<Element>(source, superrow);
      uint4 vectors[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) vectors[i] = loader.load(map.vector(begin, first + i, member));
      if (extras) measure_extras<Element, kInFlight>(vectors);
      if constexpr (Element::kBytes == 1) {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const uint4 v = vectors[i];
          if (map.swapped(first + i)) vectors[i] = make_uint4(v.z, v.w, v.x, v.y);
        }
      }
      sums.template add<kSketch, kInFlight>(vectors, first, m, signs, slow);
      if (first + kInFlight == 4 && ThreadSums<Element>::kFlushSlots == 4) sums.flush();
    }
  }
  sums.flush();
  // Here, and not in the loop, the vectors' registers are free for the call.
  if (slow.bits) measure_exactly<Element>(superrow, slow.bits);
}

// Adds a thread's sums to those in shared memory. By whole warps.
template <typename Element>
__device__ __forceinline__ void add_to_shared(const ThreadSums<Element>& sums) {
  StreamMemory& memory = stream_memory();
  if constexpr (Element::kBytes != 1) memory.sum_squares[thread_index()] += sums.sum_squares;
#pragma unroll
  for (int m = 0; m < Element::kMembers; ++m) {
    float* sketch = member_sketch<Element>(m);
#pragma unroll
    for (int e = 0; e < Element::kPerVector; ++e) {
      sketch[e] += sums.sketch[m * Element::kPerVector + e] * Element::kUnscale;
    }
  }
  unsigned long long bits = magnitude_bits(sums.magnitude());
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
  __syncwarp();
  if (thread_index() % 32 == 0) memory.max_bits[thread_index() / 32] = max(memory.max_bits[thread_index() / 32], bits);
  __syncwarp();
}

// The superrows of the warp's range, all of them within a bucket that is aligned to 16 bytes.
template <typename Element, bool kSketch>
__device__ __forceinline__ void stream_aligned() {
  const SuperrowRange& range = stream_memory().ranges[thread_index() / 32];
  ThreadSums<Element> sums;
  for (std::uint32_t superrow = range.begin + thread_index() / Element::kTeamThreads; superrow < range.end;
       superrow += Element::kTeams) {
    // What lies in shared memory is read anew for every superrow: in registers it would crowd out the vectors.
    asm volatile("" ::: "memory");
    measure_superrow<Element, kSketch, AlignedVectors>(superrow, sums);
  }
  add_to_shared(sums);
}

// The same for any bucket, and for either half of a sketch of 4096 floats.
template <typename Element, typename Vectors>
__device__ __forceinline__ void stream_range() {
  const StreamMemory& memory = stream_memory();
  const SuperrowRange& range = memory.ranges[thread_index() / 32];
  ThreadSums<Element> sums;
  std::uint32_t turn =
      (range.half == kAllSuperrows ? range.begin : range.begin / 2) + thread_index() / Element::kTeamThreads;
  for (;; turn += Element::kTeams) {
    asm volatile("" ::: "memory");
    std::uint32_t superrow = turn;
    if (range.half != kAllSuperrows) superrow = superrow_of_half(turn, range.half, memory.source.keys);
    if (superrow / 2 * 2 >= range.end) break;
    if (superrow >= range.begin && superrow < range.end) {
      measure_superrow<Element, true, Vectors, true>(superrow, sums);
    }
  }
  add_to_shared(sums);
}

// The superrow behind the warp's range, in which the bucket ends, by the team whose turn it is.
template <typename Element, typename Vectors>
__device__ __forceinline__ void stream_end() {
  const StreamMemory& memory = stream_memory();
  const SuperrowRange& range = memory.ranges[thread_index() / 32];
  if ((range.end - range.begin) % Element::kTeams != thread_index() / Element::kTeamThreads) return;
  const bool all = range.half == kAllSuperrows;
  if (!all && superrow_of_half(range.end / 2, range.half, memory.source.keys) != range.end) return;
  ThreadSums<Element> sums;
  measure_superrow<Element, true, Vectors>(range.end, sums);
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
  memory.sum_squares[thread_index()] = 0;
  memory.words[thread_index()] = 0;
  memory.nan_count[thread_index()] = 0;
  memory.inf_count[thread_index()] = 0;
  memory.zero_count[thread_index()] = 0;
  if (thread_index() % 32 == 0) memory.max_bits[thread_index() / 32] = 0;
  __syncwarp();
  clear_sketch<Element>();
}

// Adds superrows begin...end - 1 of the source, or those of them that belong to `half` (0 or 1) of a sketch of 4096
// floats, to the sums and to the teams' register sketches. Without `sketch` the caller has no use for these; whatever
// they hold then is undefined.
template <typename Element>
__device__ __forceinline__ void stream_superrows(std::uint32_t begin, std::uint32_t end, std::uint32_t half,
                                                 bool sketch) {
  StreamMemory& memory = stream_memory();
  const StreamSource& source = memory.source;
  const std::uint32_t whole = min(end, static_cast<std::uint32_t>(source.count / kSuperrow));
  __syncwarp();
  if (thread_index() % 32 == 0) memory.ranges[thread_index() / 32] = {begin, whole, half};
  __syncwarp();
  asm volatile("" ::: "memory");
  // Nothing but shared memory is in use from here on: the streaming loops need all registers.
  const bool ends_here = begin < end && source.count < std::uint64_t{end} * kSuperrow;
  if (!source.aligned) {
    if (ends_here) stream_end<Element, AnyVectors>();
    stream_range<Element, ShiftedVectors>();
    return;
  }
  if (ends_here) stream_end<Element, LastVectors>();
  if (memory.ranges[thread_index() / 32].half != kAllSuperrows) {
    stream_range<Element, AlignedVectors>();
  } else if (sketch) {
    stream_aligned<Element, true>();
  } else {
    stream_aligned<Element, false>();
  }
}

// A thread's totals; the maximum is its warp's, the first non-finite element is the CTA's to add.
template <typename Element>
__device__ __forceinline__ PartialScalars thread_scalars() {
  const StreamMemory& memory = stream_memory();
  PartialScalars s{};
  s.sum_squares = memory.sum_squares[thread_index()];
  s.max_abs = __longlong_as_double(static_cast<long long>(memory.max_bits[thread_index() / 32]));
  s.nan_count = memory.nan_count[thread_index()];
  s.inf_count = memory.inf_count[thread_index()];
  s.zero_count = memory.zero_count[thread_index()];
  s.first_nonfinite = ~std::uint64_t{0};
  s.words = memory.words[thread_index()];
  s.start_ns = ~std::uint64_t{0};
  return s;
}

}  // namespace gradprobe::gate
