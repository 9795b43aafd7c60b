// Streaming a bucket's superrows through one thread: loads, the guard, the exact path, norm and sketch.
#pragma once

#include <cstdint>

#include "abi.hpp"
#include "element.cuh"
#include "memory.cuh"
#include "sketch_map.cuh"

namespace gradprobe::gate {

// What a thread gathers off the fast path: where float32 sums can't be trusted or an element is not finite, and zeros
// when they are counted. In shared memory, one for each thread: the fast path has no registers to spare for it.
struct SideSums {
  double sum_squares;
  std::uint32_t max_bits;
  std::uint32_t nan_count;
  std::uint32_t inf_count;
  std::uint32_t zero_count;
};

// One bucket as the threads of a CTA stream it.
struct StreamSource {
  const char* input;
  std::uint64_t count;
  SketchKeys keys;
  bool aligned;  // to 16 bytes
  bool count_zeros;
};

struct StreamMemory {
  float sketch[kMaxTeams * kRegisterSketch];  // register sketches of the teams; kPerVector floats belong to a thread
  StreamSource source;
  unsigned long long first_nonfinite;
  SideSums side[kThreads];
};
// The CTA's own. A function's shared variable has one address, so nothing need be passed to the functions that aren't
// inlined.
__device__ __forceinline__ StreamMemory& stream_memory() {
  __shared__ StreamMemory memory;
  return memory;
}

template <typename Element>
struct ThreadSums {
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;
};

// A vector at the end of the bucket or at an address that isn't a multiple of 16. `left` elements of the bucket remain
// at p (possibly none or fewer): what lies behind them reads as zero and is not touched, except within the aligned 16
// bytes in which elements of the bucket lie. Not inlined, or it would break up the fast path's batch of loads.
template <typename Element>
__device__ __noinline__ uint4 load_guarded(const char* p, long long left) {
  if (left >= Element::kPerVector) {
    const std::uint32_t past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(p)) & 15;
    const char* aligned = p - past;
    const uint4 low = load_cached(aligned);
    if (past == 0) return low;
    const uint4 high = load_cached(aligned + 16);
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
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
  std::uint32_t w[4] = {};
#pragma unroll
  for (int e = 0; e < Element::kPerVector; ++e) {
    if (e < left) {
      if constexpr (Element::kBytes == 4) {
        w[e] = reinterpret_cast<const std::uint32_t*>(p)[e];
      } else {
        w[e / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(p)[e]} << (16 * (e % 2));
      }
    }
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Measures, again from memory and element by element in float64, the vectors that the thread loads for slots 0-3
// (groups & 1) and 4-7 (groups & 2) of a superrow. What isn't finite is counted and left out of the sketch, which stays
// finite. Sums go to shared memory, so the caller keeps its registers.
template <typename Element>
__device__ __noinline__ void measure_exactly(std::uint32_t superrow, std::uint32_t groups) {
  constexpr std::uint32_t kPerWord = 4 / Element::kBytes;
  StreamMemory& memory = stream_memory();
  SideSums& sums = memory.side[threadIdx.x];
  float* sketch = memory.sketch + threadIdx.x * Element::kPerVector;
  const SketchKeys keys = memory.source.keys;
  const std::uint32_t member = threadIdx.x % Element::kTeamThreads;
  const SuperrowMap<Element> map(superrow, member, keys.k2, keys.k3);
#pragma unroll 1
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    if (!(groups >> (slot / 4) & 1)) continue;
    const std::uint64_t element =
        std::uint64_t{superrow} * kSuperrow + map.offset(static_cast<int>(slot)) / Element::kBytes;
    uint4 words = load_guarded<Element>(memory.source.input + element * Element::kBytes,
                                        static_cast<long long>(memory.source.count - element));
#pragma unroll 1
    for (std::uint32_t e = 0; e < Element::kPerVector; ++e) {
      const std::uint32_t bits = Element::magnitude(words.x, e % kPerWord);
      const bool negative = Element::negative(words.x, e % kPerWord);
      if (e % kPerWord == kPerWord - 1) words = make_uint4(words.y, words.z, words.w, 0);
      if (bits < Element::kInfinity) {
        const float value = Element::decode(bits);
        sums.sum_squares += static_cast<double>(value) * value;
        sums.max_bits = max(sums.max_bits, bits);
        const bool flip = sign_of_element<Element>(superrow, member, slot, e, keys.k0, keys.k1) != negative;
        sketch[e ^ (slot % Element::kPerVector)] += flip ? -value : value;
      } else {
        ++(bits > Element::kInfinity ? sums.nan_count : sums.inf_count);
        // Most threads of an all-NaN bucket find a smaller index here and leave the atomic alone.
        volatile unsigned long long* first_nonfinite = &memory.first_nonfinite;
        if (element + e < *first_nonfinite) atomicMin(&memory.first_nonfinite, element + e);
      }
    }
  }
}

// Measures what a thread loads of one superrow. kWhole: all of it lies in the bucket, at a multiple of 16 bytes.
template <typename Element, bool kSketch, bool kWhole>
__device__ __forceinline__ void measure_superrow(std::uint32_t superrow, ThreadSums<Element>& sums) {
  const StreamSource& source = stream_memory().source;
  const std::uint32_t member = threadIdx.x % Element::kTeamThreads;
  const SuperrowMap<Element> map(superrow, member, source.keys.k2, source.keys.k3);
  const char* begin = source.input + std::uint64_t{superrow} * kSuperrow * Element::kBytes;
  uint4 vectors[8];
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    if constexpr (kWhole) {
      vectors[s] = load_streaming(begin + map.offset(s));
    } else {
      const std::uint64_t element = std::uint64_t{superrow} * kSuperrow + map.offset(s) / Element::kBytes;
      vectors[s] = load_guarded<Element>(begin + map.offset(s), static_cast<long long>(source.count - element));
    }
  }
  std::uint32_t slow = 0;
  const SignWords<Element::kBytes> signs(superrow, member, source.keys.k0, source.keys.k1);
#pragma unroll
  for (int group = 0; group < 8; group += 4) {
    if (source.count_zeros) {
      std::uint32_t zeros = 0;
#pragma unroll
      for (int s = group; s < group + 4; ++s) {
        zeros += Element::zeros(vectors[s].x) + Element::zeros(vectors[s].y) + Element::zeros(vectors[s].z) +
                 Element::zeros(vectors[s].w);
      }
      stream_memory().side[threadIdx.x].zero_count += zeros;
    }
    typename Element::Maximum maximum;
#pragma unroll
    for (int s = group; s < group + 4; ++s) {
      maximum.add(vectors[s].x);
      maximum.add(vectors[s].y);
      maximum.add(vectors[s].z);
      maximum.add(vectors[s].w);
    }
    if (!Element::fast(maximum.bits())) {
      slow |= 1u << (group / 4);
      continue;
    }
    sums.max_bits = max(sums.max_bits, maximum.bits());
    float squares[4] = {};
#pragma unroll
    for (int s = group; s < group + 4; ++s) {
      const std::uint32_t words[4] = {vectors[s].x, vectors[s].y, vectors[s].z, vectors[s].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t word = kSketch ? signs.apply(words[j], s, j) : words[j];
        if constexpr (Element::kBytes == 4) {
          const float value = Element::decode(word);
          if (kSketch) sums.sketch[j ^ (s & 3)] += value;
          squares[j] = fmaf(value, value, squares[j]);
        } else {
          const float2 pair = Element::decode_pair(word);
          if (kSketch) {
            sums.sketch[(2 * j) ^ s] += pair.x;
            sums.sketch[(2 * j + 1) ^ s] += pair.y;
          }
          squares[j] = fmaf(pair.x, pair.x, squares[j]);
          squares[j] = fmaf(pair.y, pair.y, squares[j]);
        }
      }
    }
    sums.sum_squares += static_cast<double>((squares[0] + squares[1]) + (squares[2] + squares[3]));
  }
  // Here, and not in the loop, the vectors' registers are free for the call.
  if (slow) measure_exactly<Element>(superrow, slow);
}

// Adds the thread's sums to those in shared memory.
template <typename Element>
__device__ __forceinline__ void add_to_shared(const ThreadSums<Element>& sums) {
  StreamMemory& memory = stream_memory();
  SideSums& side = memory.side[threadIdx.x];
  side.sum_squares += sums.sum_squares;
  side.max_bits = max(side.max_bits, sums.max_bits);
#pragma unroll
  for (int i = 0; i < Element::kPerVector; ++i) {
    memory.sketch[threadIdx.x * Element::kPerVector + i] += sums.sketch[i];
  }
}

// A superrow at the end of a bucket, or of a bucket that isn't aligned to 16 bytes.
template <typename Element>
__device__ __noinline__ void measure_guarded(std::uint32_t superrow) {
  ThreadSums<Element> sums;
  measure_superrow<Element, true, false>(superrow, sums);
  add_to_shared(sums);
}

// Superrows begin...end - 1, one for each team of the CTA at a time; the sums go to shared memory.
template <typename Element, bool kSketch>
__device__ __forceinline__ void stream_superrows(std::uint32_t begin, std::uint32_t end) {
  const StreamSource& source = stream_memory().source;
  const std::uint32_t whole = source.aligned ? min(end, static_cast<std::uint32_t>(source.count / kSuperrow)) : 0;
  std::uint32_t superrow = begin + threadIdx.x / Element::kTeamThreads;
  ThreadSums<Element> sums;
  for (; superrow < whole; superrow += Element::kTeams) {
    // The source is read anew for every superrow: in registers it would crowd out the vectors.
    asm volatile("" ::: "memory");
    measure_superrow<Element, kSketch, true>(superrow, sums);
  }
  add_to_shared(sums);
  for (; superrow < end; superrow += Element::kTeams) measure_guarded<Element>(superrow);
}

}  // namespace gradprobe::gate
