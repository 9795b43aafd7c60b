// Kernels of half_test.cpp: half, bfloat16 and 8-bit formats.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void half_conv(unsigned short* out) {  // 65536 threads
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  __half h = __ushort_as_half((unsigned short)i);
  __nv_bfloat16 b = __ushort_as_bfloat16((unsigned short)i);
  unsigned short* o = out + i * 32;
  float f = __half2float(h), g = __bfloat162float(b);
  ((unsigned*)o)[0] = __float_as_uint(f);
  ((unsigned*)o)[1] = __float_as_uint(g);
  float w = __uint_as_float(i << 16 | ((i * 40503u) & 0xffff));  // a float with every high half
  o[4] = __half_as_ushort(__float2half_rn(w));
  o[5] = __half_as_ushort(__float2half_rz(w));
  o[6] = __half_as_ushort(__float2half_ru(w));
  o[7] = __half_as_ushort(__float2half_rd(w));
  o[8] = __bfloat16_as_ushort(__float2bfloat16_rn(w));
  o[9] = __bfloat16_as_ushort(__float2bfloat16_rz(w));
  o[10] = __bfloat16_as_ushort(__float2bfloat16_ru(w));
  o[11] = __bfloat16_as_ushort(__float2bfloat16_rd(w));
  o[12] = (unsigned short)__half2short_rn(h);
  o[13] = __half2ushort_rz(h);
  ((unsigned*)o)[7] = __half2int_rd(h);
  o[16] = __half_as_ushort(__short2half_rn((short)i));
  o[17] = __half_as_ushort(__ushort2half_rz(i));
  ((unsigned*)o)[9] = __bfloat162int_rn(b);
  o[20] = __bfloat16_as_ushort(__int2bfloat16_rn((int)i * 77777));
  o[21] = __half_as_ushort(__int2half_rn((int)i - 32768));
  o[22] = __half_as_ushort(__double2half((double)w * 1.0000001));
  o[23] = __bfloat16_as_ushort(__double2bfloat16((double)w * 1.0000001));
  o[24] = __half_as_ushort(hrint(h));
  o[25] = __half_as_ushort(hfloor(h));
  __half2 p = __floats2half2_rn(w, -w);
  o[26] = __half_as_ushort(p.x);
  o[27] = __half_as_ushort(p.y);
  __nv_bfloat162 q = __floats2bfloat162_rn(w, -w);
  o[28] = __bfloat16_as_ushort(q.x);
  o[29] = __bfloat16_as_ushort(q.y);
}
#if __CUDA_ARCH__ >= 800  // bfloat16 arithmetic
extern "C" __global__ void half_arith(const unsigned short* x, unsigned short* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned short a = x[3 * i], b = x[3 * i + 1], c = x[3 * i + 2], *o = out + i * 24;
  __half A = __ushort_as_half(a), B = __ushort_as_half(b), C = __ushort_as_half(c);
  o[0] = __half_as_ushort(__hadd(A, B));
  o[1] = __half_as_ushort(__hmul(A, B));
  o[2] = __half_as_ushort(__hfma(A, B, C));
  o[3] = __half_as_ushort(__hsub(A, B));
  o[4] = __half_as_ushort(__hmin(A, B));
  o[5] = __half_as_ushort(__hmax(A, B));
  o[6] = __hlt(A, B) | __heq(A, B) << 1 | __hgeu(A, B) << 2;
  o[7] = __half_as_ushort(__habs(A));
  __half2 P = __halves2half2(A, B), Q = __halves2half2(B, C), R = __hfma2(P, Q, P);
  o[8] = __half_as_ushort(R.x);
  o[9] = __half_as_ushort(R.y);
  R = __hadd2(P, Q);
  o[10] = __half_as_ushort(R.x);
  o[11] = __half_as_ushort(R.y);
  __nv_bfloat16 D = __ushort_as_bfloat16(a), E = __ushort_as_bfloat16(b), F = __ushort_as_bfloat16(c);
  o[12] = __bfloat16_as_ushort(__hadd(D, E));
  o[13] = __bfloat16_as_ushort(__hmul(D, E));
  o[14] = __bfloat16_as_ushort(__hfma(D, E, F));
  o[15] = __bfloat16_as_ushort(__hmax(D, E));
  __nv_bfloat162 S = __halves2bfloat162(D, E), T = __halves2bfloat162(E, F), U = __hfma2(S, T, S);
  o[16] = __bfloat16_as_ushort(U.x);
  o[17] = __bfloat16_as_ushort(U.y);
  U = __hmul2(S, T);
  o[18] = __bfloat16_as_ushort(U.x);
  o[19] = __bfloat16_as_ushort(U.y);
  __half2 m = __hgt2(P, Q);
  o[20] = __half_as_ushort(m.x);
  o[21] = __half_as_ushort(m.y);
  o[22] = __hbeq2(P, P);
  o[23] = __half_as_ushort(__hneg(A));
}
#endif
extern "C" __global__ void fp8_conv(unsigned short* out) {  // 65536 threads
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float w = __uint_as_float(i << 16 | ((i * 40503u) & 0xffff));
  unsigned short* o = out + i * 4;
  o[0] = __nv_cvt_float_to_fp8(w, __NV_SATFINITE, __NV_E4M3);
  o[1] = __nv_cvt_float_to_fp8(w, __NV_SATFINITE, __NV_E5M2);
  o[2] = __half_as_ushort(__half(__nv_cvt_fp8_to_halfraw(i & 0xff, __NV_E4M3)));
  o[3] = __half_as_ushort(__half(__nv_cvt_fp8_to_halfraw(i & 0xff, __NV_E5M2)));
}
extern "C" __global__ void half_atomics(__half2* h, __nv_bfloat162* b, __half* s) {
  atomicAdd(h, __floats2half2_rn(1.f, 0.5f));
  atomicAdd(b, __floats2bfloat162_rn(1.f, 2.f));
  atomicAdd(s, __float2half(1.f));
}
