// Conversions between number formats.
#include <math.h>

#include "ops.hpp"

namespace standin::ptx {
namespace {
const Fmt& fmt_of(u8 t) {
  switch (t) {
    case T_F16:
      return F16;
    case T_BF16:
      return BF16;
    case T_F32:
      return F32;
    case T_F64:
      return F64;
    case T_E4M3:
      return E4M3;
    default:
      return E5M2;
  }
}
bool is_float(u8 t) {
  return t >= T_F16;
}
double to_double(u64 v, u8 t) {
  switch (t) {
    case T_F16:
      return h2f((u16)v);
    case T_BF16:
      return b2f((u16)v);
    case T_F32:
    case T_TF32:
      return bitcast<float>((u32)v);
    case T_F64:
      return bitcast<double>(v);
    default:
      return decode_small((u32)v, fmt_of(t));
  }
}
u64 int_range(u8 t, bool hi) {  // clamp limits as 64-bit patterns
  switch (t) {
    case T_U8:
      return hi ? 0xff : 0;
    case T_S8:
      return hi ? 0x7f : (u64)-0x80;
    case T_U16:
      return hi ? 0xffff : 0;
    case T_S16:
      return hi ? 0x7fff : (u64)-0x8000ll;
    case T_U32:
      return hi ? 0xffffffffu : 0;
    case T_S32:
      return hi ? 0x7fffffff : (u64)-0x80000000ll;
    case T_U64:
      return hi ? ~0ull : 0;
    default:
      return hi ? 0x7fffffffffffffffull : 0x8000000000000000ull;
  }
}
double round_int(double v, u8 r) {
  switch (r) {
    case RN:
      return nearbyint(v);
    case RZ:
      return trunc(v);
    case RM:
      return floor(v);
    default:
      return ceil(v);
  }
}
}  // namespace

// aux2: bits 0-2 rounding, bit 3: round to an integral value
u64 cvt_value(u64 v, u8 st, u8 dt, u8 rnd, bool integral, u8 fl) {
  if (!is_float(st)) {
    bool sg = st & 1;
    i64 sv = 0;
    u64 uv = 0;
    switch (st) {
      case T_U8:
        uv = (u8)v;
        break;
      case T_S8:
        sv = (i8)v;
        break;
      case T_U16:
        uv = (u16)v;
        break;
      case T_S16:
        sv = (i16)v;
        break;
      case T_U32:
        uv = (u32)v;
        break;
      case T_S32:
        sv = (i32)v;
        break;
      case T_U64:
        uv = v;
        break;
      case T_S64:
        sv = (i64)v;
        break;
    }
    if (!is_float(dt)) {
      __int128 x = sg ? (__int128)sv : (__int128)uv;
      if (fl & FF_SAT) {
        __int128 lo = (dt & 1) ? (__int128)(i64)int_range(dt, false) : 0, hi = (__int128)int_range(dt, true);
        if (x < lo) x = lo;
        if (x > hi) x = hi;
      }
      switch (dt) {
        case T_U8:
          return (u8)x;
        case T_S8:
          return (u64)(i64)(i8)x;
        case T_U16:
          return (u16)x;
        case T_S16:
          return (u64)(i64)(i16)x;
        case T_U32:
          return (u32)x;
        case T_S32:
          return (u64)(i64)(i32)x;
        default:
          return (u64)x;
      }
    }
    bool neg = sg && sv < 0;
    u64 mag = sg ? (neg ? 0 - (u64)sv : (u64)sv) : uv;
    u64 r = encode(neg, mag, 0, fmt_of(dt), (Round)rnd, false);
    if (fl & FF_SAT) {
      double d = to_double(r, dt);
      r = encode_double(satd(d), fmt_of(dt), RN);
    }
    return r;
  }
  double d = to_double(v, st);
  if ((fl & FF_FTZ) && st == T_F32 && fabs(d) < 0x1p-126) d = std::signbit(d) ? -0.0 : 0.0;
  if (!is_float(dt)) {
    if (d != d)
      return (st == T_F64 || dt == T_U64 || dt == T_S64) ? (dt <= T_S8    ? 0x80
                                                            : dt <= T_S16 ? 0x8000
                                                            : dt <= T_S32 ? 0x80000000ull
                                                                          : 0x8000000000000000ull)
                                                         : 0;
    d = round_int(d, rnd);
    bool sg = dt & 1;
    double lo = sg ? (double)(i64)int_range(dt, false) : 0.0;
    if (d <= lo) return int_range(dt, false);
    double hi = dt == T_U64 ? 0x1p64 : dt == T_S64 ? 0x1p63 : (double)int_range(dt, true) + 1;
    if (d >= hi) return int_range(dt, true);
    return sg ? (u64)(i64)d : (u64)d;
  }
  if (integral) d = round_int(d, rnd);
  if (dt == T_TF32) {
    u32 b = (u32)encode_double(d, F32, RZ);
    if (d != d) return 0x7fffffff;
    if (!std::isinf(d)) {
      u32 low = b & 0x1fff;
      b &= ~0x1fffu;
      if (rnd == RNA ? low >= 0x1000 : rnd == RN ? (low > 0x1000 || (low == 0x1000 && (b & 0x2000))) : false)
        b += 0x2000;
    }
    if ((fl & FF_RELU) && (b >> 31)) b = 0;
    return b;
  }
  u64 r;
  if (dt == T_F64)
    r = d != d ? canonical_nan(F64) : bitcast<u64>(d);
  else
    r = encode_double(d, fmt_of(dt), integral ? RN : (Round)rnd, fl & FF_SATFIN);
  if (fl & FF_SAT) r = encode_double(satd(to_double(r, dt)), fmt_of(dt), RN);
  if ((fl & FF_RELU) && d == d && (d < 0 || std::signbit(d))) r = 0;
  if ((fl & FF_FTZ) && dt == T_F32 && !(r & 0x7f800000)) r &= 0x80000000u;
  return r;
}

namespace {
int cvt_row(u8 t) {
  return t <= T_S16 || t == T_F16 || t == T_BF16 || t == T_E4M3 || t == T_E5M2 ? 2
         : (t == T_U64 || t == T_S64 || t == T_F64)                            ? 8
                                                                               : 4;
}
void cvt_any(Warp& w, const Ins& I, u32 m) {
  char* d = row<char>(w, I.o[0]);
  const char* a = row<char>(w, I.o[1]);
  int ds = cvt_row(I.aux), as = cvt_row(I.sub);
  ACTIVE(put_el(d, ds, l, cvt_value(get_el(a, as, l), I.sub, I.aux, I.aux2 & 7, I.aux2 & 8, I.flag)));
}
// two f32 (or f64-free) sources into one packed register: high half from a, low half from b
void cvt_pack2(Warp& w, const Ins& I, u32 m) {
  const u32* a = row<u32>(w, I.o[1]);
  const u32* b = row<u32>(w, I.o[2]);
  int bits = (I.aux == T_E4M3 || I.aux == T_E5M2) ? 8 : 16;
  char* d = row<char>(w, I.o[0]);
  ACTIVE(u64 h = cvt_value(a[l], T_F32, I.aux, I.aux2 & 7, false, I.flag);
         u64 lo = cvt_value(b[l], T_F32, I.aux, I.aux2 & 7, false, I.flag);
         put_el(d, bits == 8 ? 2 : 4, l, (h << bits) | lo));
}
void cvt_x2(Warp& w, const Ins& I, u32 m) {  // packed pair to packed pair
  const char* a = row<char>(w, I.o[1]);
  char* d = row<char>(w, I.o[0]);
  bool s8 = I.sub >= T_E4M3 && I.sub <= T_E5M2, d8 = I.aux >= T_E4M3 && I.aux <= T_E5M2;
  int sb = s8 ? 8 : 16, db = d8 ? 8 : 16;
  ACTIVE(u64 v = get_el(a, s8 ? 2 : 4, l); u64 sm = (1u << sb) - 1;
         u64 h = cvt_value((v >> sb) & sm, I.sub, I.aux, I.aux2 & 7, false, I.flag);
         u64 lo = cvt_value(v & sm, I.sub, I.aux, I.aux2 & 7, false, I.flag); put_el(d, d8 ? 2 : 4, l, (h << db) | lo));
}
template <class S, class D>
constexpr auto icvt = [](auto a) { return (D)(S)a; };
template <class T>
struct RowOf {
  using type = T;
};
template <>
struct RowOf<u8> {
  using type = u16;
};
template <>
struct RowOf<i8> {
  using type = i16;
};
template <class S, class D>
void cvt_ii(const std::string& s, const std::string& d) {
  using RS = std::make_unsigned_t<typename RowOf<S>::type>;
  using RD = typename RowOf<D>::type;
  reg("cvt." + d + "." + s, u1<([](RS a) { return (RD)(D)(S)a; }), RD, RS>);
}
template <class S>
void cvt_i(const std::string& s) {
  cvt_ii<S, u8>(s, "u8");
  cvt_ii<S, i8>(s, "s8");
  cvt_ii<S, u16>(s, "u16");
  cvt_ii<S, i16>(s, "s16");
  cvt_ii<S, u32>(s, "u32");
  cvt_ii<S, i32>(s, "s32");
  cvt_ii<S, u64>(s, "u64");
  cvt_ii<S, i64>(s, "s64");
}

}  // namespace

void install_convert() {
  cvt_i<u8>("u8");
  cvt_i<i8>("s8");
  cvt_i<u16>("u16");
  cvt_i<i16>("s16");
  cvt_i<u32>("u32");
  cvt_i<i32>("s32");
  cvt_i<u64>("u64");
  cvt_i<i64>("s64");
  reg("cvt.any", cvt_any);
  reg("cvt.pack2", cvt_pack2);
  reg("cvt.x2", cvt_x2);
  reg("cvtf.f32.s32", u1<([](i32 a) { return (float)a; }), float, i32>);
  reg("cvtf.f32.u32", u1<([](u32 a) { return (float)a; }), float, u32>);
  reg("cvtf.f64.s32", u1<([](i32 a) { return (double)a; }), double, i32>);
  reg("cvtf.f64.u32", u1<([](u32 a) { return (double)a; }), double, u32>);
  reg("cvtf.f64.f32", u1<([](float a) { return (double)a; }), double, float>);
  reg("cvtf.f32.f64", u1<([](double a) { return canon((float)a); }), float, double>);
  reg("cvtf.s32.f32",
      u1<([](float a) { return a != a         ? 0
                               : a >= 0x1p31f ? INT32_MAX
                               : a < -0x1p31f ? INT32_MIN
                                              : (i32)a; }), i32,
         float>);
  reg("cvtf.f32.f16", u1<([](u16 a) { return h2f(a); }), float, u16>);
  reg("cvtf.f16.f32", u1<([](float a) { return f2h(a); }), u16, float>);
  reg("cvtf.f32.bf16", u1<([](u16 a) { return canon(b2f(a)); }), float, u16>);
  reg("cvtf.bf16.f32", u1<([](float a) { return f2b(a); }), u16, float>);
  reg("cvtf.f16x2.f32", u2<([](float a, float b) { return (u32)f2h(a) << 16 | f2h(b); }), u32, float, float>);
  reg("cvtf.bf16x2.f32", u2<([](float a, float b) { return (u32)f2b(a) << 16 | f2b(b); }), u32, float, float>);
  // cvt.pack.sat.{u16,s16,u8,s8,...}.s32 (with the optional third source): aux dest type, o[3] c or NONE
  reg(
      "cvt.pack", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        const i32 *a = row<i32>(w, I.o[1]), *b = row<i32>(w, I.o[2]);
        const u32* c = I.o[3] == NONE ? nullptr : row<u32>(w, I.o[3]);
        ACTIVE(u32 x = (u32)cvt_value((u32)a[l], T_S32, I.aux, RZ, false, FF_SAT);
               u32 y = (u32)cvt_value((u32)b[l], T_S32, I.aux, RZ, false, FF_SAT);
               if (I.aux >= T_U16) d[l] = (x & 0xffff) << 16 | (y & 0xffff);
               else d[l] = (c ? c[l] << 16 : 0) | (x & 0xff) << 8 | (y & 0xff));
      });
}

}  // namespace standin::ptx
