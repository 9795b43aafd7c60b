// The reduction that the measuring kernels are compared with: CUB's sum of squares over a whole buffer, with the tuning
// that CUB has for the device. A library of its own, because CUB launches through the CUDA runtime, which neither the
// plugin nor the other tests need; see cub_norm.hpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cub/device/device_reduce.cuh>
#include <cuda/std/functional>

#include "kernels/abi.hpp"

namespace {

template <typename Element>
struct Square {
  using Sum = float;
  __device__ __forceinline__ float operator()(Element element) const {
    const float value = static_cast<float>(element);
    return value * value;
  }
};
template <>
struct Square<double> {
  using Sum = double;
  __device__ __forceinline__ double operator()(double value) const { return value * value; }
};

template <typename Element>
int sum_of_squares(const void* input, unsigned long long count, void* sum, void* scratch, std::size_t* scratch_bytes,
                   cudaStream_t stream) {
  using Sum = typename Square<Element>::Sum;
  return cub::DeviceReduce::TransformReduce(scratch, *scratch_bytes, static_cast<const Element*>(input),
                                            static_cast<Sum*>(sum), static_cast<long long>(count), cuda::std::plus<>{},
                                            Square<Element>{}, Sum{0}, stream);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int gradprobe_cub_sum_of_squares(unsigned type, const void* input,
                                                                                   unsigned long long count, void* sum,
                                                                                   void* scratch,
                                                                                   std::size_t* scratch_bytes,
                                                                                   cudaStream_t stream) {
  namespace gate = gradprobe::gate;
  switch (type) {
    case gate::kTypeF64:
      return sum_of_squares<double>(input, count, sum, scratch, scratch_bytes, stream);
    case gate::kTypeF32:
      return sum_of_squares<float>(input, count, sum, scratch, scratch_bytes, stream);
    case gate::kTypeF16:
      return sum_of_squares<__half>(input, count, sum, scratch, scratch_bytes, stream);
    case gate::kTypeBf16:
      return sum_of_squares<__nv_bfloat16>(input, count, sum, scratch, scratch_bytes, stream);
    case gate::kTypeF8E4m3:
      return sum_of_squares<__nv_fp8_e4m3>(input, count, sum, scratch, scratch_bytes, stream);
    case gate::kTypeF8E5m2:
      return sum_of_squares<__nv_fp8_e5m2>(input, count, sum, scratch, scratch_bytes, stream);
    default:
      return cudaErrorInvalidValue;
  }
}
