// The other half of the runtime's device code: what kernels of test_kernels_a.cu call, and kernels that use its
// variable.
#include "case_support.cuh"

namespace standin::cudart::cases {

__device__ int scale_factor = 3;
__device__ __noinline__ int scaled(int x) {
  return x * scale_factor;
}
__global__ void count() {
  atomicAdd(&counter, 1);
}
__global__ void block_sums(const int* in, int* out) {
  extern __shared__ int part[];
  part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned width = blockDim.x / 2; width; width >>= 1) {
    if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
}  // namespace standin::cudart::cases
