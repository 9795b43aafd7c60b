// Kernels to compare the measuring kernels' cost with: the same loads, guard, exact path and norm, but vectors in the
// order of their addresses and no sketch. Whole units of aligned input; one partial result per thread.
#include "kernels/element.cuh"
#include "kernels/memory.cuh"

namespace gradprobe::gate {
namespace {

struct Norm {
  double sum_squares;
  std::uint32_t max_bits;
  std::uint32_t nonfinite;
};

// Element by element in float64, again from memory: a group of four vectors that the guard rejected.
template <typename Element>
__device__ __noinline__ void norm_exactly(const char* vectors, Norm* norm) {
  constexpr std::uint32_t kPerWord = 4 / Element::kBytes;
#pragma unroll 1
  for (int s = 0; s < 4; ++s) {
    uint4 words = load_cached(vectors + s * 16 * kThreads);
#pragma unroll 1
    for (std::uint32_t e = 0; e < Element::kPerVector; ++e) {
      const std::uint32_t bits = Element::magnitude(words.x, e % kPerWord);
      if (e % kPerWord == kPerWord - 1) words = make_uint4(words.y, words.z, words.w, 0);
      if (bits < Element::kInfinity) {
        const double value = Element::decode(bits);
        norm->sum_squares += value * value;
        norm->max_bits = max(norm->max_bits, bits);
      } else {
        ++norm->nonfinite;
      }
    }
  }
}

template <typename Element>
__device__ __forceinline__ void norm_only(const char* input, std::uint64_t units, Norm* norms) {
  Norm* own = norms + blockIdx.x * kThreads + threadIdx.x;
  double sum_squares = 0;
  std::uint32_t max_bits = 0;
  for (std::uint64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const char* begin = input + (unit * 8 * kThreads + threadIdx.x) * 16;
    uint4 vectors[8];
#pragma unroll
    for (int s = 0; s < 8; ++s) vectors[s] = load_streaming(begin + s * 16 * kThreads);
    std::uint32_t slow = 0;
#pragma unroll
    for (int group = 0; group < 8; group += 4) {
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
      max_bits = max(max_bits, maximum.bits());
      float squares[4] = {};
#pragma unroll
      for (int s = group; s < group + 4; ++s) {
        const std::uint32_t words[4] = {vectors[s].x, vectors[s].y, vectors[s].z, vectors[s].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if constexpr (Element::kBytes == 4) {
            const float value = Element::decode(words[j]);
            squares[j] = fmaf(value, value, squares[j]);
          } else {
            const float2 pair = Element::decode_pair(words[j]);
            squares[j] = fmaf(pair.x, pair.x, squares[j]);
            squares[j] = fmaf(pair.y, pair.y, squares[j]);
          }
        }
      }
      sum_squares += static_cast<double>((squares[0] + squares[1]) + (squares[2] + squares[3]));
    }
    if (slow & 1) norm_exactly<Element>(begin, own);
    if (slow & 2) norm_exactly<Element>(begin + 4 * 16 * kThreads, own);
  }
  own->sum_squares += sum_squares;
  own->max_bits = max(own->max_bits, max_bits);
}

}  // namespace
}  // namespace gradprobe::gate

using namespace gradprobe::gate;
#define NORM_ONLY(name, Element)                                  \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)       \
      name(const char* input, std::uint64_t units, Norm* norms) { \
    norm_only<Element>(input, units, norms);                      \
  }
NORM_ONLY(norm_only_f32, F32)
NORM_ONLY(norm_only_f16, F16)
NORM_ONLY(norm_only_bf16, Bf16)
