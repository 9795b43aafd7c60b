// Half and bfloat16 arithmetic with one rounding.
#pragma once
#include "ops.hpp"

namespace standin::ptx {

inline float odd_float(double d) {  // round to odd, so that a later narrowing rounds once
  float f = (float)d;
  if ((double)f == d || d != d || std::isinf(d)) return f;
  u32 b = bitcast<u32>(f);
  if (std::isinf(f)) return bitcast<float>((b & 0x80000000u) | 0x7f7fffffu);
  if (fabs((double)f) > fabs(d)) b--;
  return bitcast<float>(b | 1);
}
struct Half {
  static float ld(u16 x) { return h2f(x); }
  static u16 st(float x) { return f2h(x); }
  static u16 fma(float a, float b, float c) { return f2h(odd_float((double)a * b + c)); }
  static constexpr u16 ONE = 0x3c00, SUBMASK = 0x7c00;
};
struct Bf {
  static float ld(u16 x) { return b2f(x); }
  static u16 st(float x) { return f2b(x); }
  static u16 fma(float a, float b, float c) {
    double p = (double)a * b;
    if (!std::isfinite(p) || !std::isfinite(c)) return f2b((float)(p + c));
    return f2b(odd_float(add_odd(p, c)));
  }
  static constexpr u16 ONE = 0x3f80, SUBMASK = 0x7f80;
};
template <class H>
inline u16 hz(u16 x, u8 fl) {
  return (fl & FF_FTZ) && !(x & H::SUBMASK) ? x & 0x8000 : x;
}
template <class H>
inline u16 hpost(u16 r, u8 fl) {
  r = hz<H>(r, fl);
  if (fl & FF_SAT) {
    float f = H::ld(r);
    if (f != f || f <= 0)
      r = 0;
    else if (f > 1)
      r = H::ONE;
  }
  if (fl & FF_RELU) {
    float f = H::ld(r);
    if (f == f && (r & 0x8000)) r = 0;
  }
  return r;
}
template <class H>
u16 hadd(u16 a, u16 b, const Ins& I) {
  return hpost<H>(H::st(H::ld(hz<H>(a, I.flag)) + H::ld(hz<H>(b, I.flag))), I.flag);
}
template <class H>
u16 hsub(u16 a, u16 b, const Ins& I) {
  return hpost<H>(H::st(H::ld(hz<H>(a, I.flag)) - H::ld(hz<H>(b, I.flag))), I.flag);
}
template <class H>
u16 hmul(u16 a, u16 b, const Ins& I) {
  return hpost<H>(H::st(H::ld(hz<H>(a, I.flag)) * H::ld(hz<H>(b, I.flag))), I.flag);
}
template <class H>
u16 hfma(u16 a, u16 b, u16 c, const Ins& I) {
  return hpost<H>(H::fma(H::ld(hz<H>(a, I.flag)), H::ld(hz<H>(b, I.flag)), H::ld(hz<H>(c, I.flag))), I.flag);
}
// Widening makes every not-a-number a positive one, and xorsign counts its sign: the signs come from the operands.
template <class H>
u16 xorsigned(u16 r, u16 a, u16 b, u8 fl) {
  float f = H::ld(r);
  return (fl & FF_XSA) && f == f ? (u16)((r & 0x7fff) | ((a ^ b) & 0x8000)) : r;
}
template <class H>
u16 hmin(u16 a, u16 b, const Ins& I) {
  return xorsigned<H>(H::st(f32min(H::ld(hz<H>(a, I.flag)), H::ld(hz<H>(b, I.flag)), I.flag & ~FF_FTZ)), a, b, I.flag);
}
template <class H>
u16 hmax(u16 a, u16 b, const Ins& I) {
  return xorsigned<H>(H::st(f32max(H::ld(hz<H>(a, I.flag)), H::ld(hz<H>(b, I.flag)), I.flag & ~FF_FTZ)), a, b, I.flag);
}

}  // namespace standin::ptx
