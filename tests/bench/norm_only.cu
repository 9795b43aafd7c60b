// Kernels to compare the cost of the measuring kernels with: the same loads, guard and norm (the fast path's own code
// without a sketch), but vectors in the order of their addresses, no permutation, no counts, one partial result a
// thread. Whole pieces of aligned input only.
#include "kernels/stream.cuh"

namespace gradprobe::gate {

constexpr int kVectors = 8;
constexpr int kPieceBytes = 16 * kVectors * static_cast<int>(kThreads);

struct Norm {
  double sum_squares;
  double max_abs;
  std::uint32_t nonfinite;
};

// Element by element in float64, again from memory: vectors that are not for the fast path.
template <typename Element>
__device__ __noinline__ void add_exactly(const char* first, std::uint32_t vectors, Norm* norm) {
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    if (!(vectors >> i & 1)) continue;
    uint4 words = load_streaming(first + i * 16 * kThreads);
#pragma unroll 1
    for (std::uint32_t e = 0; e < Element::kPerVector; ++e) {
      const double value = take_first<Element>(words, e);
      if (magnitude_bits(value) < kInfinityBits) {
        norm->sum_squares += value * value;
        norm->max_abs = fmax(norm->max_abs, fabs(value));
      } else {
        ++norm->nonfinite;
      }
    }
  }
}

template <typename Element>
__device__ __forceinline__ void norm_only(const char* input, std::uint64_t pieces, Norm* norms) {
  Norm* norm = norms + blockIdx.x * kThreads + threadIdx.x;
  constexpr int kInFlight = in_flight<Element, AlignedVectors>();
  const SignWords<Element::kBytes> no_signs(0, 0, SketchKeys{});
  ThreadSums<Element> sums;
  stream_memory().sum_squares[threadIdx.x] = 0;
  for (std::uint64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const char* first = input + piece * kPieceBytes + threadIdx.x * 16;
    SlowSlots slow;
#pragma unroll
    for (int batch = 0; batch < kVectors; batch += kInFlight) {
      uint4 vectors[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) vectors[i] = load_streaming(first + (batch + i) * 16 * kThreads);
      sums.template add<false, kInFlight>(vectors, batch, 0, no_signs, slow);
    }
    sums.flush();
    if (slow.bits) add_exactly<Element>(first, slow.bits, norm);
  }
  if constexpr (Element::kBytes == 1) {
    norm->sum_squares += stream_memory().sum_squares[threadIdx.x];
  } else {
    norm->sum_squares += sums.sum_squares;
  }
  norm->max_abs = fmax(norm->max_abs, sums.magnitude());
}

}  // namespace gradprobe::gate

using gradprobe::gate::Norm;
#define NORM_ONLY(name, Element)                                                \
  extern "C" __global__ void __launch_bounds__(gradprobe::gate::kThreads, 2)    \
      name(const char* input, std::uint64_t pieces, Norm* norms) {              \
    gradprobe::gate::norm_only<gradprobe::gate::Element>(input, pieces, norms); \
  }

NORM_ONLY(norm_only_f64, F64)
NORM_ONLY(norm_only_f32, F32)
NORM_ONLY(norm_only_f16, F16)
NORM_ONLY(norm_only_bf16, Bf16)
NORM_ONLY(norm_only_f8e4m3, F8E4m3)
NORM_ONLY(norm_only_f8e5m2, F8E5m2)
