// Kernels of link_test.cpp: two separately compiled modules with a table of functions of both, shared data and globals.
typedef int (*Fn)(int, int*);
extern __device__ int f_mul(int, int*);
extern __device__ int f_sub(int, int*);
__device__ __noinline__ int f_add(int x, int* p) {
  return x + *p;
}
static __device__ __noinline__ int helper(int x) {
  return x * 1000;
}
__device__ __noinline__ int f_help(int x, int* p) {
  return helper(x) + *p;
}
__device__ Fn table[4] = {f_add, f_mul, f_sub, f_help};
extern __device__ int counter;
__shared__ int shbuf[64];
extern __device__ void fill_shared(int v);
extern __device__ int sum_shared();
extern "C" __global__ void by_table(const int* which, int* out, int* p) {
  int t = threadIdx.x;
  out[t] = table[which[t]](t, p);
  atomicAdd(&counter, 1);
}
extern "C" __global__ void by_shared(int* out) {
  fill_shared(threadIdx.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    out[0] = sum_shared();
    out[1] = shbuf[5];
  }
}
