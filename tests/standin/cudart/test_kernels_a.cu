// Kernels of the runtime's tests that need the device code of test_kernels_b.cu.
#include "case_support.cuh"

namespace standin::cudart::cases {

__device__ int scaled(int x);
__device__ int counter = 5;

using Function = int (*)(int);
__device__ __noinline__ int plus_one(int x) {
  return x + 1;
}
__device__ Function table[2] = {plus_one, scaled};

__global__ void fill(int* out, int first) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  out[i] = first + i;
}
__global__ void add_to(int* p, int n) {
  atomicAdd(p, n);
}
__global__ void twice_plus(int* p, int n) {
  *p = *p * 2 + n;
}
__global__ void call_other_file(int* out) {
  out[threadIdx.x] = scaled(static_cast<int>(threadIdx.x));
}
__global__ void call_by_table(const int* which, int* out) {
  out[threadIdx.x] = table[which[threadIdx.x]](static_cast<int>(threadIdx.x));
}
}  // namespace standin::cudart::cases
