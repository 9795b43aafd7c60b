// Kernels of fault_test.cpp: each goes wrong in its own way.
#include <cassert>
typedef unsigned long long ull;
extern "C" __global__ void assert_it(int x) {
  assert(x < 3 && "message");
}
extern "C" __global__ void bad_access(int* p) {
  p[threadIdx.x == 5 ? 1ull << 45 : 0] = 1;
}
extern "C" __global__ void misalign(char* p) {
  *(int*)(p + 1) = 3;
}
extern "C" __global__ void deadlock() {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
}
extern "C" __global__ void spin(volatile int* flag) {
  while (*flag == 0) {
  }
}
extern "C" __global__ void beyond_shared(int first) {
  extern __shared__ int s[];
  s[first + threadIdx.x] = 1;
}
extern "C" __global__ void store_row(int* p) {
  p[threadIdx.x] = 1;
}
extern "C" __global__ void load_row(const int* p, int* out) {
  out[threadIdx.x] = p[threadIdx.x];
}
