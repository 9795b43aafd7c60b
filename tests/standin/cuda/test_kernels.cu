// Kernels of the driver's tests.
#include <cstdint>

__device__ float knob = 3;
__constant__ int table[4] = {10, 20, 30, 40};

extern "C" __global__ void fill(float* out, float first, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = first + static_cast<float>(i);
}
extern "C" __global__ void read_knob(float* out) {
  *out = knob;
}
extern "C" __global__ void read_table(int* out) {
  out[threadIdx.x] = table[threadIdx.x];
}
extern "C" __global__ void add(int* p, int n) {
  atomicAdd(p, n);
}
// Order is visible: the result depends on which of two such launches ran first.
extern "C" __global__ void twice_plus(int* p, int n) {
  *p = *p * 2 + n;
}
extern "C" __global__ void wait_for(const volatile int* flag, volatile int* seen) {
  *seen = 1;
  while (*flag == 0) {
  }
  *seen = 2;
}
extern "C" __global__ void timer(uint64_t* out, uint64_t ns) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < ns);
  out[0] = start;
  out[1] = now;
}
extern "C" __global__ void block_sum(const float* x, float* out, int n) {
  extern __shared__ float part[];
  float v = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) v += x[i];
  part[threadIdx.x] = v;
  __syncthreads();
  for (unsigned w = blockDim.x / 2; w; w >>= 1) {
    if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = part[0];
}
extern "C" __global__ void bad_address(int* p) {
  *p = 1;
}
