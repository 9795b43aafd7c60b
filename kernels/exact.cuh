// The exact path: elements that the fast path leaves alone, because float32 sums can't be trusted with them or because
// they are not finite or must stay out of the sketch.
#pragma once

#include <cstdint>

#include "sketch_map.cuh"
#include "stream_memory.cuh"
#include "vectors.cuh"

namespace gradprobe::gate {

// Takes the first element out of a vector; the next one moves up.
template <typename Element>
__device__ __forceinline__ double take_first(uint4& words, std::uint32_t e) {
  if constexpr (Element::kBytes == 8) {
    const std::uint64_t bits = std::uint64_t{words.y} << 32 | words.x;
    words = make_uint4(words.z, words.w, 0, 0);
    return Element::decode(bits);
  } else {
    constexpr std::uint32_t kBits = 8 * Element::kBytes, kPerWord = 4 / Element::kBytes;
    const std::uint32_t bits = words.x & (0xffffffffu >> (32 - kBits));
    if (e % kPerWord == kPerWord - 1) {
      words = make_uint4(words.y, words.z, words.w, 0);
    } else {
      words.x >>= kBits % 32;
    }
    return Element::decode(bits);
  }
}

// Of the warp. Most elements find a larger one there and leave the atomic alone.
__device__ __forceinline__ void raise_maximum(unsigned long long bits) {
  unsigned long long* maximum = &stream_memory().max_bits[thread_index() / 32];
  if (bits > *const_cast<volatile unsigned long long*>(maximum)) atomicMax(maximum, bits);
}

// Measures, again from memory and element by element in float64, the vectors that the thread loads for some slots of a
// superrow (bit 8 * m + s: slot s of its vector m). What isn't finite is counted. All sums go to
// shared memory, so the caller keeps its registers.
template <typename Element>
__device__ __noinline__ void measure_exactly(std::uint32_t superrow, std::uint32_t slots) {
  StreamMemory& memory = stream_memory();
  const StreamSource& source = memory.source;
  const AnyVectors vectors(source, superrow, Element::kBytes);
  float* sketch = team_sketch<Element>();
#pragma unroll 1
  for (std::uint32_t bit = 0; bit < 8 * Element::kMembers; ++bit) {
    if (!(slots >> bit & 1)) continue;
    const std::uint32_t slot = bit % 8;
    const std::uint32_t member = first_member<Element>() + bit / 8 * kThreads;
    const SuperrowMap<Element> map(superrow, member, source.keys);
    const std::uint32_t r8 = map.r8(static_cast<int>(slot));
    const char* begin = superrow_address<Element>(source, superrow);
    const char* p = map.vector(begin, static_cast<int>(slot), member);
    const auto in_superrow = static_cast<std::uint32_t>(p - begin) / Element::kBytes;
    uint4 words = vectors.load(p);
#pragma unroll 1
    for (std::uint32_t e = 0; e < Element::kPerVector; ++e) {
      const double value = take_first<Element>(words, e);
      const unsigned long long bits = magnitude_bits(value);
      if (bits < kInfinityBits) {
        memory.sum_squares[thread_index()] += value * value;
        raise_maximum(bits);
        if (fabs(value) > kSketchLimit) continue;
        const std::uint32_t position = (in_superrow + e) % kRegisterSketch;
        const std::uint32_t q = position ^ (r8 << 3) ^ slot;
        const float single = static_cast<float>(value);
        sketch[q] += sign_of_element(superrow, slot, position, q, source.keys) ? -single : single;
      } else {
        ++(bits > kInfinityBits ? memory.nan_count : memory.inf_count)[thread_index()];
        const std::uint64_t element = std::uint64_t{superrow} * kSuperrow + in_superrow + e;
        // Most threads of an all-NaN bucket find a smaller index here and leave the atomic alone.
        volatile unsigned long long* first_nonfinite = &memory.first_nonfinite;
        if (element < *first_nonfinite) atomicMin(&memory.first_nonfinite, element);
      }
    }
  }
}

}  // namespace gradprobe::gate
