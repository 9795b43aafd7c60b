// The other half of link_a_kernels.cu.
typedef int (*Fn)(int, int*);
__device__ int counter = 7;
static __device__ __noinline__ int helper(int x) {
  return x * 2000;
}
__device__ __noinline__ int f_mul(int x, int* p) {
  return x * *p;
}
__device__ __noinline__ int f_sub(int x, int* p) {
  return helper(x) - *p;
}
extern __shared__ int shbuf[64];
__device__ void fill_shared(int v) {
  shbuf[threadIdx.x] = v * 3;
}
__device__ int sum_shared() {
  int s = 0;
  for (int i = 0; i < 64; i++) s += shbuf[i];
  return s;
}
extern __device__ Fn table[4];
extern "C" __global__ void other_kernel(int* out, int k) {
  int v = 5;
  out[threadIdx.x] = table[k](threadIdx.x, &v);
}
