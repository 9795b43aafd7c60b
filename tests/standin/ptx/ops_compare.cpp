// Comparisons: setp and set.
#include "ops.hpp"

namespace standin::ptx {
namespace {
inline u32 mask_of(const u8* t) {
#if defined(__AVX2__)
  return (u32)_mm256_movemask_epi8(_mm256_load_si256((const __m256i*)t));
#else
  u32 r = 0;
  for (int l = 0; l < 32; l++) r |= (u32)(t[l] >> 7) << l;
  return r;
#endif
}
inline void put_pred(Warp& w, const Ins& I, u32 m, u32 r, u32 rn) {
  u32 q = rn;
  if (I.o[4] != NONE) {
    u32 c = predrow(w, I.o[4]);
    if (I.flag & 0x80) c = ~c;
    if (I.sub == 1) {
      r &= c;
      q &= c;
    } else if (I.sub == 2) {
      r |= c;
      q |= c;
    } else if (I.sub == 3) {
      r ^= c;
      q ^= c;
    }
  }
  if (I.o[0] != NONE) {
    u32& p = predrow(w, I.o[0]);
    p = (p & ~m) | (r & m);
  }
  if (I.o[3] != NONE) {
    u32& p = predrow(w, I.o[3]);
    p = (p & ~m) | (q & m);
  }
}
template <auto C, class T>
void setp(Warp& w, const Ins& I, u32 m) {
  const T* a = row<T>(w, I.o[1]);
  const T* b = row<T>(w, I.o[2]);
  alignas(32) u8 t[32];
  for (int l = 0; l < 32; l++) t[l] = C(a[l], b[l]) ? 0xff : 0;
  u32 r = mask_of(t);
  put_pred(w, I, m, r, ~r);
}
template <auto C, class T, class D, bool FL>
void setd(Warp& w, const Ins& I, u32 m) {
  const T* a = row<T>(w, I.o[1]);
  const T* b = row<T>(w, I.o[2]);
  D* d = row<D>(w, I.o[0]);
  u32 c = 0;
  if (I.o[4] != NONE) {
    c = predrow(w, I.o[4]);
    if (I.flag & 0x80) c = ~c;
  }
  D one = FL ? (sizeof(D) == 4 ? (D)0x3f800000u : (D)(I.aux2 ? 0x3f80 : 0x3c00)) : (D) ~(D)0;
  ACTIVE(bool r = C(a[l], b[l]); bool cc = (c >> l) & 1; if (I.o[4] != NONE) r = I.sub == 1   ? (r && cc)
                                                                                 : I.sub == 2 ? (r || cc)
                                                                                              : (r != cc);
         d[l] = r ? one : (D)0);
}
struct H16 {
  u16 v;
};
struct B16 {
  u16 v;
};
struct FZ {
  float v;
};
inline float val(float x) {
  return x;
}
inline double val(double x) {
  return x;
}
inline float val(H16 x) {
  return h2f(x.v);
}
inline float val(B16 x) {
  return b2f(x.v);
}
inline float val(FZ x) {
  return ftz(x.v);
}
template <class T>
T val(T x) requires std::is_integral_v<T> {
  return x;
}
template <auto C, class H, int MODE>
void cmp_x2(Warp& w, const Ins& I, u32 m) {  // MODE 0 setp, 1 set to u32, 2 set to f16x2/bf16x2
  const u32* a = row<u32>(w, I.o[1]);
  const u32* b = row<u32>(w, I.o[2]);
  u32 lo = 0, hi = 0;
  ACTIVE(bool x = C(H{(u16)a[l]}, H{(u16)b[l]}); bool y = C(H{(u16)(a[l] >> 16)}, H{(u16)(b[l] >> 16)});
         lo |= (u32)x << l; hi |= (u32)y << l);
  if constexpr (MODE == 0)
    put_pred(w, I, m, lo, hi);
  else {
    if (I.o[4] != NONE) {
      u32 c = predrow(w, I.o[4]);
      if (I.flag & 0x80) c = ~c;
      if (I.sub == 1) {
        lo &= c;
        hi &= c;
      } else if (I.sub == 2) {
        lo |= c;
        hi |= c;
      } else {
        lo ^= c;
        hi ^= c;
      }
    }
    u32* d = row<u32>(w, I.o[0]);
    u32 one = MODE == 1 ? 0xffff : I.aux2 ? 0x3f80 : 0x3c00;
    ACTIVE(d[l] = ((lo >> l) & 1 ? one : 0) | ((hi >> l) & 1 ? one << 16 : 0));
  }
}
template <auto C>
void cmp_int(const std::string& c) {
  reg("setp." + c + ".u16", setp<C, u16>);
  reg("setp." + c + ".s16", setp<C, i16>);
  reg("setp." + c + ".u32", setp<C, u32>);
  reg("setp." + c + ".s32", setp<C, i32>);
  reg("setp." + c + ".u64", setp<C, u64>);
  reg("setp." + c + ".s64", setp<C, i64>);
  reg("set." + c + ".i.u32", setd<C, u32, u32, false>);
  reg("set." + c + ".i.s32", setd<C, i32, u32, false>);
  reg("set." + c + ".i.u64", setd<C, u64, u32, false>);
  reg("set." + c + ".i.s64", setd<C, i64, u32, false>);
  reg("set." + c + ".i.u16", setd<C, u16, u32, false>);
  reg("set." + c + ".i.s16", setd<C, i16, u32, false>);
  reg("set." + c + ".f.u32", setd<C, u32, u32, true>);
  reg("set." + c + ".f.s32", setd<C, i32, u32, true>);
  reg("set." + c + ".f.u64", setd<C, u64, u32, true>);
  reg("set." + c + ".f.s64", setd<C, i64, u32, true>);
}
template <auto C>
void cmp_flt(const std::string& c) {
  reg("setp." + c + ".f32", setp<C, float>);
  reg("setp." + c + ".ftz.f32", setp<C, FZ>);
  reg("setp." + c + ".f64", setp<C, double>);
  reg("setp." + c + ".f16", setp<C, H16>);
  reg("setp." + c + ".bf16", setp<C, B16>);
  reg("setp." + c + ".f16x2", cmp_x2<C, H16, 0>);
  reg("setp." + c + ".bf16x2", cmp_x2<C, B16, 0>);
  reg("set." + c + ".i.f32", setd<C, float, u32, false>);
  reg("set." + c + ".i.ftz.f32", setd<C, FZ, u32, false>);
  reg("set." + c + ".i.f64", setd<C, double, u32, false>);
  reg("set." + c + ".f.f32", setd<C, float, u32, true>);
  reg("set." + c + ".f.ftz.f32", setd<C, FZ, u32, true>);
  reg("set." + c + ".f.f64", setd<C, double, u32, true>);
  reg("set." + c + ".i.f16", setd<C, H16, u32, false>);
  reg("set." + c + ".i.bf16", setd<C, B16, u32, false>);
  reg("set." + c + ".f.f16", setd<C, H16, u32, true>);
  reg("set." + c + ".f.bf16", setd<C, B16, u32, true>);
  reg("set." + c + ".i16.f16", setd<C, H16, u16, false>);
  reg("set." + c + ".i16.bf16", setd<C, B16, u16, false>);
  reg("set." + c + ".h.f16", setd<C, H16, u16, true>);
  reg("set." + c + ".h.bf16", setd<C, B16, u16, true>);
  reg("set." + c + ".i.f16x2", cmp_x2<C, H16, 1>);
  reg("set." + c + ".i.bf16x2", cmp_x2<C, B16, 1>);
  reg("set." + c + ".h.f16x2", cmp_x2<C, H16, 2>);
  reg("set." + c + ".h.bf16x2", cmp_x2<C, B16, 2>);
}
#define CMP(EXPR)                      \
  [](auto xa, auto xb) {               \
    [[maybe_unused]] auto a = val(xa); \
    [[maybe_unused]] auto b = val(xb); \
    return (EXPR);                     \
  }

}  // namespace

void install_compare() {
  cmp_int<CMP(a == b)>("eq");
  cmp_int<CMP(a != b)>("ne");
  cmp_int<CMP(a < b)>("lt");
  cmp_int<CMP(a <= b)>("le");
  cmp_int<CMP(a > b)>("gt");
  cmp_int<CMP(a >= b)>("ge");
  cmp_flt<CMP(a == b)>("eq");
  cmp_flt<CMP(a < b || a > b)>("ne");
  cmp_flt<CMP(a < b)>("lt");
  cmp_flt<CMP(a <= b)>("le");
  cmp_flt<CMP(a > b)>("gt");
  cmp_flt<CMP(a >= b)>("ge");
  cmp_flt<CMP(!(a < b || a > b))>("equ");
  cmp_flt<CMP(a != b)>("neu");
  cmp_flt<CMP(!(a >= b))>("ltu");
  cmp_flt<CMP(!(a > b))>("leu");
  cmp_flt<CMP(!(a <= b))>("gtu");
  cmp_flt<CMP(!(a < b))>("geu");
  cmp_flt<CMP(a == a && b == b)>("num");
  cmp_flt<CMP(a != a || b != b)>("nan");
}

}  // namespace standin::ptx
