// Streaming a bucket's superrows through one thread: loads, the guard, the exact path, norm and sketch.
#pragma once

#include <cstdint>

#include "abi.hpp"
#include "element.cuh"
#include "memory.cuh"
#include "sketch_map.cuh"

namespace gradprobe::gate {

// What a thread gathers where float32 sums can't be trusted or an element is not finite. In shared memory, one for
// each thread: the fast path has no registers to spare for it.
struct ExactSums {
  double sum_squares;
  std::uint32_t max_bits;
  std::uint32_t nan_count;
  std::uint32_t inf_count;
};

template <typename Element>
struct ThreadSums {
  float sketch[Element::kPerVector] = {};
  double sum_squares = 0;
  std::uint32_t max_bits = 0;
  std::uint32_t zero_count = 0;
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

// Float64 sums of one vector whose first element is number `element` of the bucket; returns it with what isn't finite
// set to zero, so that the sketch stays finite.
template <typename Element>
__device__ __noinline__ uint4 measure_exactly(uint4 vector, std::uint64_t element, ExactSums* sums,
                                              unsigned long long* first_nonfinite) {
  std::uint32_t w[4] = {vector.x, vector.y, vector.z, vector.w};
  double sum_squares = 0;
  std::uint32_t max_bits = 0, nan_count = 0, inf_count = 0;
  int first = -1;
#pragma unroll
  for (int e = Element::kPerVector - 1; e >= 0; --e) {
    constexpr int kPerWord = 4 / Element::kBytes;
    std::uint32_t& word = w[e / kPerWord];
    const std::uint32_t bits = Element::magnitude(word, e % kPerWord);
    if (bits >= Element::kInfinity) {
      word = Element::cleared(word, e % kPerWord);
      ++(bits > Element::kInfinity ? nan_count : inf_count);
      first = e;
    } else {
      const double value = Element::decode(bits);
      sum_squares += value * value;
      max_bits = max(max_bits, bits);
    }
  }
  sums->sum_squares += sum_squares;
  sums->max_bits = max(sums->max_bits, max_bits);
  if (first >= 0) {
    sums->nan_count += nan_count;
    sums->inf_count += inf_count;
    const unsigned long long index = element + first;
    // Most threads of an all-NaN bucket find a smaller index here and leave the atomic alone.
    if (index < *static_cast<volatile unsigned long long*>(first_nonfinite)) atomicMin(first_nonfinite, index);
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// One bucket as the threads of a CTA stream it. In shared memory.
struct StreamSource {
  const char* input;
  std::uint64_t count;
  SketchKeys keys;
  bool aligned;  // to 16 bytes
  bool count_zeros;
};

template <typename Element, bool kSketch>
__device__ __forceinline__ void stream_superrows(const StreamSource& source, std::uint32_t begin, std::uint32_t end,
                                                 ThreadSums<Element>& sums, ExactSums* exact,
                                                 unsigned long long* first_nonfinite) {
  constexpr std::uint32_t kSuperrowBytes = kSuperrow * Element::kBytes;
  const std::uint32_t member = threadIdx.x % Element::kTeamThreads;
  const std::uint32_t full = source.aligned ? static_cast<std::uint32_t>(source.count / kSuperrow) : 0;
  for (std::uint32_t c = begin + threadIdx.x / Element::kTeamThreads; c < end; c += Element::kTeams) {
    const char* superrow = source.input + std::uint64_t{c} * kSuperrowBytes;
    const SuperrowMap<Element> map(c, member, source.keys.k2, source.keys.k3);
    uint4 vectors[8];
    if (c < full) {
#pragma unroll
      for (int s = 0; s < 8; ++s) vectors[s] = load_streaming(superrow + map.offset[s]);
    } else {
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        const std::uint64_t element = std::uint64_t{c} * kSuperrow + map.offset[s] / Element::kBytes;
        vectors[s] = load_guarded<Element>(superrow + map.offset[s], static_cast<long long>(source.count - element));
      }
    }
    const SignWords<Element::kBytes> signs(c, member, source.keys.k0, source.keys.k1);
#pragma unroll
    for (int group = 0; group < 8; group += 4) {
      if (source.count_zeros) {
#pragma unroll
        for (int s = group; s < group + 4; ++s) {
          sums.zero_count += Element::zeros(vectors[s].x) + Element::zeros(vectors[s].y) +
                             Element::zeros(vectors[s].z) + Element::zeros(vectors[s].w);
        }
      }
      typename Element::Maximum maximum;
#pragma unroll
      for (int s = group; s < group + 4; ++s) {
        maximum.add(vectors[s].x);
        maximum.add(vectors[s].y);
        maximum.add(vectors[s].z);
        maximum.add(vectors[s].w);
      }
      const bool fast = Element::fast(maximum.bits());
      if (fast) {
        sums.max_bits = max(sums.max_bits, maximum.bits());
      } else {
#pragma unroll
        for (int s = group; s < group + 4; ++s) {
          const std::uint64_t element = std::uint64_t{c} * kSuperrow + map.offset[s] / Element::kBytes;
          vectors[s] = measure_exactly<Element>(vectors[s], element, exact, first_nonfinite);
        }
      }
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
      if (fast) sums.sum_squares += static_cast<double>((squares[0] + squares[1]) + (squares[2] + squares[3]));
    }
  }
}

}  // namespace gradprobe::gate
