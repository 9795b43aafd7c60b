// Kernels of math_test.cpp: integer and floating-point arithmetic.
#include <climits>
#include <cstdint>
typedef unsigned long long ull;
extern "C" __global__ void int_ops(const int* a, const int* b, long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = a[i], y = b[i];
  unsigned ux = x, uy = y;
  long long X = (long long)x * 1000003 + y, Y = (long long)y * 77777 - x;
  ull UX = X, UY = Y;
  long long* o = out + i * 32;
  o[0] = y ? (x == INT_MIN && y == -1 ? 0 : x / y) : 0;
  o[1] = y ? (x == INT_MIN && y == -1 ? 0 : x % y) : 0;
  o[2] = uy ? ux / uy : 0;
  o[3] = uy ? ux % uy : 0;
  o[4] = __mulhi(x, y);
  o[5] = __umulhi(ux, uy);
  o[6] = __mul64hi(X, Y);
  o[7] = __umul64hi(UX, UY);
  o[8] = Y ? X / Y : 0;
  o[9] = UY ? UX % UY : 0;
  o[10] = __clz(x);
  o[11] = __popc(x);
  o[12] = __brev(x);
  o[13] = __ffs(x);
  o[14] = __clzll(X);
  o[15] = __popcll(X);
  o[16] = __brevll(X);
  o[17] = __ffsll(X);
  o[18] = __byte_perm(x, y, 0x5140);
  o[19] = __funnelshift_l(x, y, y & 63);
  o[20] = __funnelshift_r(x, y, x & 63);
  o[21] = __funnelshift_lc(x, y, y & 63);
  o[22] = __sad(x, y, 5u);
  o[23] = __dp4a(x, y, 7);
  o[24] = __dp4a(ux, uy, 7u);
  o[25] = (x & y) ^ (~x | (y >> 3));
  o[26] = (X >> (y & 63)) + (long long)(UX >> (x & 63));
  o[27] = (signed char)x * (short)y;
  o[28] = min(x, y) + max(ux, uy);
  o[29] = abs(x);
  o[30] = __hadd(x, y);
  o[31] = __viaddmin_s32(x, y, 17);
}
extern "C" __global__ void add128(const ull* a, const ull* b, ull* c) {
  ull l, h;
  asm("add.cc.u64 %0, %2, %4; addc.u64 %1, %3, %5;" : "=l"(l), "=l"(h) : "l"(a[0]), "l"(a[1]), "l"(b[0]), "l"(b[1]));
  c[0] = l;
  c[1] = h;
  asm("sub.cc.u64 %0, %2, %4; subc.u64 %1, %3, %5;" : "=l"(l), "=l"(h) : "l"(a[0]), "l"(a[1]), "l"(b[0]), "l"(b[1]));
  c[2] = l;
  c[3] = h;
  unsigned __int128 x = (unsigned __int128)a[1] << 64 | a[0], y = (unsigned __int128)b[1] << 64 | b[0], z = x * y;
  c[4] = (ull)z;
  c[5] = (ull)(z >> 64);
}
extern "C" __global__ void float_ops(const float* a, const float* b, const float* c, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i], z = c[i], *o = out + i * 32;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = fmaf(x, y, z);
  o[3] = x / y;
  o[4] = sqrtf(x);
  o[5] = 1.0f / x;
  o[6] = __fadd_rz(x, y);
  o[7] = __fadd_ru(x, y);
  o[8] = __fadd_rd(x, y);
  o[9] = __fmul_rz(x, y);
  o[10] = __fmaf_ru(x, y, z);
  o[11] = __fdiv_rd(x, y);
  o[12] = __fsqrt_rz(x);
  o[13] = fminf(x, y);
  o[14] = fmaxf(x, y);
  o[15] = floorf(x);
  o[16] = rintf(x);
  o[17] = truncf(x);
  o[18] = ceilf(x);
  o[19] = (float)(int)x;
  o[20] = __int_as_float(__float2int_rn(x));
  o[21] = __int_as_float(__float2uint_ru(x));
  o[22] = (float)__float2ll_rz(x);
  o[23] = __saturatef(x);
  o[24] = (float)((double)x * (double)y);
  o[25] = __double2float_rz((double)x * y);
  o[26] = expf(x * 0.01f);
  o[27] = sinf(x * 0.01f);
  o[28] = x < y ? 1 : x == y ? 2 : 3;
  o[29] = isnan(x) ? 1 : 0;
  o[30] = __fsub_rn(x, y);
  o[31] = logf(fabsf(x));
}
extern "C" __global__ void double_ops(const double* a, const double* b, const double* c, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double x = a[i], y = b[i], z = c[i], *o = out + i * 16;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = fma(x, y, z);
  o[3] = x / y;
  o[4] = sqrt(x);
  o[5] = exp(x * 0.01);
  o[6] = (double)(long long)x;
  o[7] = floor(x);
  o[8] = fmin(x, y);
  o[9] = (double)(ull)fabs(x);
  o[10] = __dadd_ru(x, y);
  o[11] = __ddiv_rz(x, y);
  o[12] = sin(x);
  o[13] = (double)(float)x;
  o[14] = log(fabs(x) + 1);
  o[15] = pow(fabs(x), 0.3);
}
extern "C" __global__ void ftz_ops(const float* a, const float* b, float* out) {
  int i = threadIdx.x;
  float r;
  asm("add.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a[i]), "f"(b[i]));
  out[i * 4] = r;
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a[i]), "f"(b[i]));
  out[i * 4 + 1] = r;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a[i]), "f"(b[i]));
  out[i * 4 + 2] = r;
  int p;
  asm("{.reg .pred p; setp.eq.ftz.f32 p, %1, 0f00000000; selp.s32 %0, 1, 0, p;}" : "=r"(p) : "f"(a[i]));
  out[i * 4 + 3] = p;
}
