// For the instruction handlers: loops over a warp's lanes, rows of registers, registration by key.
#pragma once
#include "ir.hpp"

namespace standin::ptx {

// The whole warp as one vectorised loop, else lane by lane. Lanes that have left the kernel may be written to.
#define LANES(...)                                        \
  do {                                                    \
    if ((m | w.dead) == ~0u) {                            \
      _Pragma("GCC ivdep") for (int l = 0; l < 32; l++) { \
        __VA_ARGS__;                                      \
      }                                                   \
    } else {                                              \
      for (u32 mm_ = m; mm_; mm_ &= mm_ - 1) {            \
        int l = __builtin_ctz(mm_);                       \
        __VA_ARGS__;                                      \
      }                                                   \
    }                                                     \
  } while (0)
// Lane by lane in any case.
#define ACTIVE(...)                        \
  for (u32 mm_ = m; mm_; mm_ &= mm_ - 1) { \
    int l = __builtin_ctz(mm_);            \
    __VA_ARGS__;                           \
  }

// Handlers are found by key ("add.f32"); each install function registers the ones of its file.
void reg(const std::string& key, Handler h);
void install_bits();
void install_compare();
void install_convert();
void install_float();
void install_half();
void install_integer();
void install_memory();
void install_moves();
void install_atomics();
void install_special();

template <auto F, class D, class A>
void u1(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  LANES(d[l] = (D)F(a[l]));
}
template <auto F, class D, class A, class B>
void u2(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  const B* b = row<B>(w, I.o[2]);
  LANES(d[l] = (D)F(a[l], b[l]));
}
template <auto F, class D, class A, class B, class C>
void u3(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  const B* b = row<B>(w, I.o[2]);
  const C* c = row<C>(w, I.o[3]);
  LANES(d[l] = (D)F(a[l], b[l], c[l]));
}
// with the instruction (immediates, flags)
template <auto F, class D, class A>
void v1(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  LANES(d[l] = (D)F(a[l], I));
}
template <auto F, class D, class A, class B>
void v2(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  const B* b = row<B>(w, I.o[2]);
  LANES(d[l] = (D)F(a[l], b[l], I));
}
template <auto F, class D, class A, class B, class C>
void v3(Warp& w, const Ins& I, u32 m) {
  D* d = row<D>(w, I.o[0]);
  const A* a = row<A>(w, I.o[1]);
  const B* b = row<B>(w, I.o[2]);
  const C* c = row<C>(w, I.o[3]);
  LANES(d[l] = (D)F(a[l], b[l], c[l], I));
}

// One lane's element of a row of the given width, and bits of a predicate.
inline u64 get_el(const char* p, int sz, int l) {
  return sz == 2 ? ((const u16*)p)[l] : sz == 4 ? ((const u32*)p)[l] : ((const u64*)p)[l];
}
inline void put_el(char* p, int sz, int l, u64 v) {
  if (sz == 2)
    ((u16*)p)[l] = (u16)v;
  else if (sz == 4)
    ((u32*)p)[l] = (u32)v;
  else
    ((u64*)p)[l] = v;
}
inline void put_mask(Warp& w, u32 op, u32 m, u32 value) {
  u32& p = predrow(w, op);
  p = (p & ~m) | (value & m);
}

// Flags of floating-point instructions, applied before and after.
inline float satf(float x) {
  return x != x ? 0.f : x < 0.f ? 0.f : x > 1.f ? 1.f : x == 0.f ? 0.f : x;
}
inline double satd(double x) {
  return x != x ? 0. : x < 0. ? 0. : x > 1. ? 1. : x == 0. ? 0. : x;
}
inline float post(float r, u8 fl) {
  r = canon(r);
  if (fl & FF_FTZ) r = ftz(r);
  if (fl & FF_SAT) r = satf(r);
  return r;
}
inline float pre(float r, u8 fl) {
  return (fl & FF_FTZ) ? ftz(r) : r;
}
inline float f32min(float a, float b, u8 fl) {
  a = pre(a, fl);
  b = pre(b, fl);
  bool sx = (fl & FF_XSA) && (std::signbit(a) != std::signbit(b));
  if (fl & FF_XSA) {
    a = fabsf(a);
    b = fabsf(b);
  }
  if (a != a || b != b) {
    if ((fl & FF_NAN) || (a != a && b != b)) return bitcast<float>(0x7fffffffu);
    float r = a != a ? b : a;
    return sx ? -r : r;
  }
  float r = a < b ? a : b < a ? b : std::signbit(a) ? a : b;
  return sx ? -r : r;
}
inline float f32max(float a, float b, u8 fl) {
  a = pre(a, fl);
  b = pre(b, fl);
  bool sx = (fl & FF_XSA) && (std::signbit(a) != std::signbit(b));
  if (fl & FF_XSA) {
    a = fabsf(a);
    b = fabsf(b);
  }
  if (a != a || b != b) {
    if ((fl & FF_NAN) || (a != a && b != b)) return bitcast<float>(0x7fffffffu);
    float r = a != a ? b : a;
    return sx ? -r : r;
  }
  float r = a > b ? a : b > a ? b : std::signbit(a) ? b : a;
  return sx ? -r : r;
}
inline double f64min(double a, double b) {
  if (a != a) return b;
  if (b != b) return a;
  return a < b ? a : b < a ? b : std::signbit(a) ? a : b;
}
inline double f64max(double a, double b) {
  if (a != a) return b;
  if (b != b) return a;
  return a > b ? a : b > a ? b : std::signbit(a) ? b : a;
}

template <class T>
T hi_mul(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    if constexpr (std::is_signed_v<T>)
      return (T)(((__int128)a * b) >> 64);
    else
      return (T)(((unsigned __int128)a * b) >> 64);
  } else if constexpr (std::is_signed_v<T>)
    return (T)(((i64)a * b) >> (sizeof(T) * 8));
  else
    return (T)(((u64)a * b) >> (sizeof(T) * 8));
}

u64 cvt_value(u64 v, u8 from, u8 to, u8 rounding, bool integral, u8 flags);

}  // namespace standin::ptx
