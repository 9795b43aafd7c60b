// Integer arithmetic: add to divide, carries, wide products, packed 16-bit, dot products.
#include "ops.hpp"

namespace standin::ptx {
namespace {
template <class T>
T idiv(T a, T b) {
  if (b == 0) return (T)-1;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return (T)(0 - (std::make_unsigned_t<T>)a);
  return a / b;
}
template <class T>
T irem(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return a % b;
}
template <class T>
void int_type(const std::string& t) {
  using U = std::make_unsigned_t<T>;
  constexpr int W = sizeof(T) * 8;
  reg("add." + t, u2<([](U a, U b) { return (U)(a + b); }), U, U, U>);
  reg("sub." + t, u2<([](U a, U b) { return (U)(a - b); }), U, U, U>);
  reg("mul.lo." + t, u2<([](U a, U b) { return (U)((u64)a * b); }), U, U, U>);
  reg("mul.hi." + t, u2<([](T a, T b) { return hi_mul<T>(a, b); }), T, T, T>);
  reg("mad.lo." + t, u3<([](U a, U b, U c) { return (U)((u64)a * b + c); }), U, U, U, U>);
  reg("mad.hi." + t, u3<([](T a, T b, T c) { return (T)((U)hi_mul<T>(a, b) + (U)c); }), T, T, T, T>);
  reg("div." + t, u2<([](T a, T b) { return idiv<T>(a, b); }), T, T, T>);
  reg("rem." + t, u2<([](T a, T b) { return irem<T>(a, b); }), T, T, T>);
  reg("min." + t, u2<([](T a, T b) { return a < b ? a : b; }), T, T, T>);
  reg("max." + t, u2<([](T a, T b) { return a > b ? a : b; }), T, T, T>);
  reg("sad." + t, u3<([](T a, T b, T c) { return (T)((U)c + (a < b ? (U)b - (U)a : (U)a - (U)b)); }), T, T, T, T>);
  reg("abs." + t, u1<([](T a) { return a < 0 ? (T)(0 - (U)a) : a; }), T, T>);
  reg("neg." + t, u1<([](U a) { return (U)(0 - a); }), U, U>);
  reg("shl." + t, u2<([](U a, u32 b) { return b >= (u32)W ? (U)0 : (U)((u64)a << b); }), U, U, u32>);
  reg("shr." + t, u2<([](T a, u32 b) { return (T)(a >> (b >= (u32)W ? W - 1 : b)); }), T, T, u32>);
  if constexpr (!std::is_signed_v<T>)
    reg("shr." + t, u2<([](U a, u32 b) { return b >= (u32)W ? (U)0 : (U)(a >> b); }), U, U, u32>);
  if constexpr (sizeof(T) <= 4) {
    using Wd = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, i32, u32>,
                                  std::conditional_t<std::is_signed_v<T>, i64, u64>>;
    reg("mul.wide." + t, u2<([](T a, T b) { return (Wd)((Wd)a * (Wd)b); }), Wd, T, T>);
    reg("mad.wide." + t, u3<([](T a, T b, Wd c) {
                              return (Wd)((std::make_unsigned_t<Wd>)((Wd)a * (Wd)b) + (std::make_unsigned_t<Wd>)c);
                            }),
                            Wd, T, T, Wd>);
  }
  if constexpr (sizeof(T) >= 4) {
    reg("bfind." + t, u1<([](T a) {
                           U x = (U)a;
                           if (std::is_signed_v<T> && a < 0) x = (U)~x;
                           return x ? (u32)(W - 1 - std::countl_zero(x)) : ~0u;
                         }),
                         u32, T>);
    reg("bfind.shiftamt." + t, u1<([](T a) {
                                    U x = (U)a;
                                    if (std::is_signed_v<T> && a < 0) x = (U)~x;
                                    return x ? (u32)std::countl_zero(x) : ~0u;
                                  }),
                                  u32, T>);
    reg("bfe." + t, u3<([](T a, u32 b, u32 c) {
                         u32 pos = b & 0xff, len = c & 0xff;
                         if (len == 0) return (T)0;
                         bool sg = std::is_signed_v<T>;
                         U x = (U)a;
                         bool sbit = false;
                         if (sg) {
                           u32 sp = pos + len - 1;
                           if (sp > (u32)W - 1) sp = W - 1;
                           sbit = (x >> sp) & 1;
                         }
                         U r = pos >= (u32)W ? 0 : (U)(x >> pos);
                         u32 have = pos >= (u32)W ? 0 : W - pos;
                         if (have > len) have = len;
                         U msk = have >= (u32)W ? (U) ~(U)0 : (U)(((U)1 << have) - 1);
                         r &= msk;
                         if (sbit) r |= (U)~msk;
                         return (T)r;
                       }),
                       T, T, u32, u32>);
  }
}
}  // namespace

void install_integer() {
  int_type<u16>("u16");
  int_type<i16>("s16");
  int_type<u32>("u32");
  int_type<i32>("s32");
  int_type<u64>("u64");
  int_type<i64>("s64");
  // carry chains: sub bit0 uses carry in, bit1 writes carry out; o[4] carry predicate
#define CARRY(T, S, WIDE)                                                                                       \
  reg(                                                                                                          \
      "add.cc." S, +[](Warp& w, const Ins& I, u32 m) {                                                          \
        T* d = row<T>(w, I.o[0]);                                                                               \
        const T *a = row<T>(w, I.o[1]), *b = row<T>(w, I.o[2]);                                                 \
        u32& cc = predrow(w, I.o[4]);                                                                           \
        u32 out = 0;                                                                                            \
        ACTIVE(WIDE s = (WIDE)a[l] + b[l] + ((I.sub & 1) ? (cc >> l) & 1 : 0); d[l] = (T)s;                     \
               out |= (u32)((s >> (sizeof(T) * 8)) & 1) << l);                                                  \
        if (I.sub & 2) cc = (cc & ~m) | out;                                                                    \
      });                                                                                                       \
  reg(                                                                                                          \
      "sub.cc." S, +[](Warp& w, const Ins& I, u32 m) {                                                          \
        T* d = row<T>(w, I.o[0]);                                                                               \
        const T *a = row<T>(w, I.o[1]), *b = row<T>(w, I.o[2]);                                                 \
        u32& cc = predrow(w, I.o[4]);                                                                           \
        u32 out = 0;                                                                                            \
        ACTIVE(WIDE s = (WIDE)a[l] - b[l] - ((I.sub & 1) ? (cc >> l) & 1 : 0); d[l] = (T)s;                     \
               out |= (u32)((s >> (sizeof(T) * 8)) & 1) << l);                                                  \
        if (I.sub & 2) cc = (cc & ~m) | out;                                                                    \
      });                                                                                                       \
  reg(                                                                                                          \
      "mad.cc." S, +[](Warp& w, const Ins& I, u32 m) {                                                          \
        T* d = row<T>(w, I.o[0]);                                                                               \
        const T *a = row<T>(w, I.o[1]), *b = row<T>(w, I.o[2]), *c = row<T>(w, I.o[3]);                         \
        u32& cc = predrow(w, I.o[4]);                                                                           \
        u32 out = 0;                                                                                            \
        ACTIVE(T p = (I.sub & 4) ? ((I.sub & 8) ? (T)hi_mul<std::make_signed_t<T>>((std::make_signed_t<T>)a[l], \
                                                                                   (std::make_signed_t<T>)b[l]) \
                                                : hi_mul<T>(a[l], b[l]))                                        \
                                 : (T)(a[l] * b[l]);                                                            \
               WIDE s = (WIDE)p + c[l] + ((I.sub & 1) ? (cc >> l) & 1 : 0); d[l] = (T)s;                        \
               out |= (u32)((s >> (sizeof(T) * 8)) & 1) << l);                                                  \
        if (I.sub & 2) cc = (cc & ~m) | out;                                                                    \
      });
  CARRY(u32, "32", u64)
  CARRY(u64, "64", unsigned __int128)
  reg("add.sat.s32", u2<([](i32 a, i32 b) {
                          i64 s = (i64)a + b;
                          return (i32)(s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s);
                        }),
                        i32, i32, i32>);
  reg("sub.sat.s32", u2<([](i32 a, i32 b) {
                          i64 s = (i64)a - b;
                          return (i32)(s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s);
                        }),
                        i32, i32, i32>);
  reg("mad.hi.sat.s32", u3<([](i32 a, i32 b, i32 c) {
                             i64 s = (i64)hi_mul<i32>(a, b) + c;
                             return (i32)(s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s);
                           }),
                           i32, i32, i32, i32>);
  reg("mul24.lo.u32", u2<([](u32 a, u32 b) { return (a & 0xffffff) * (b & 0xffffff); }), u32, u32, u32>);
  reg("mul24.lo.s32", u2<([](i32 a, i32 b) { return (i32)((u32)(a << 8 >> 8) * (u32)(b << 8 >> 8)); }), i32, i32, i32>);
#define PK16(NAME, T, EXPR)                            \
  reg(NAME, u2<([](u32 x, u32 y) {                     \
                 u32 r = 0;                            \
                 for (int i = 0; i < 32; i += 16) {    \
                   T a = (T)(x >> i), b = (T)(y >> i); \
                   r |= (u32)(u16)(EXPR) << i;         \
                 }                                     \
                 return r;                             \
               }),                                     \
               u32, u32, u32>)
  PK16("add.u16x2", u16, a + b);
  PK16("add.s16x2", i16, a + b);
  PK16("min.u16x2", u16, a < b ? a : b);
  PK16("min.s16x2", i16, a < b ? a : b);
  PK16("max.u16x2", u16, a > b ? a : b);
  PK16("max.s16x2", i16, a > b ? a : b);
  reg("dp4a.any", v3<([](u32 a, u32 b, u32 c, const Ins& I) {
                       u32 r = c;
                       for (int i = 0; i < 32; i += 8) {
                         i32 x = (I.sub & 1) ? (i32)(i8)(a >> i) : (i32)(u8)(a >> i),
                             y = (I.sub & 2) ? (i32)(i8)(b >> i) : (i32)(u8)(b >> i);
                         r += (u32)(x * y);
                       }
                       return r;
                     }),
                     u32, u32, u32, u32>);
  reg("dp2a.any", v3<([](u32 a, u32 b, u32 c, const Ins& I) {
                       u32 r = c;
                       for (int i = 0; i < 2; i++) {
                         i32 x = (I.sub & 1) ? (i32)(i16)(a >> (16 * i)) : (i32)(u16)(a >> (16 * i));
                         u32 bb = b >> (8 * i + ((I.sub & 4) ? 16 : 0));
                         i32 y = (I.sub & 2) ? (i32)(i8)bb : (i32)(u8)bb;
                         r += (u32)(x * y);
                       }
                       return r;
                     }),
                     u32, u32, u32, u32>);
}

}  // namespace standin::ptx
