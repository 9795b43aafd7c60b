// Single and double precision arithmetic.
#include <fenv.h>
#include <math.h>

#include "ops.hpp"

namespace standin::ptx {
namespace {
// Runs a handler under the rounding mode of its instruction.
class RoundScope {
 public:
  explicit RoundScope(u8 r) {
    constexpr int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
    fesetround(modes[r]);
    asm volatile("" ::: "memory");
  }
  ~RoundScope() {
    asm volatile("" ::: "memory");
    fesetround(FE_TONEAREST);
  }
};
template <Handler H>
void rounded(Warp& w, const Ins& I, u32 m) {
  if (I.aux == RN) return H(w, I, m);
  RoundScope r(I.aux);
  H(w, I, m);
}

template <bool Z>
inline float z(float x) {
  if constexpr (Z)
    return ftz(x);
  else
    return x;
}
template <bool Z>
void f32_fast(const std::string& k) {
  reg("add." + k, u2<([](float a, float b) { return z<Z>(canon(z<Z>(a) + z<Z>(b))); }), float, float, float>);
  reg("sub." + k, u2<([](float a, float b) { return z<Z>(canon(z<Z>(a) - z<Z>(b))); }), float, float, float>);
  reg("mul." + k, u2<([](float a, float b) { return z<Z>(canon(z<Z>(a) * z<Z>(b))); }), float, float, float>);
  reg("fma." + k, u3<([](float a, float b, float c) { return z<Z>(canon(__builtin_fmaf(z<Z>(a), z<Z>(b), z<Z>(c)))); }),
                     float, float, float, float>);
}
#define F32U(NAME, EXPR)                             \
  reg(NAME, v1<([](float a0, const Ins& I) {         \
                 float a = pre(a0, I.flag);          \
                 return post((float)(EXPR), I.flag); \
               }),                                   \
               float, float>)
#define F32B(NAME, EXPR)                                                 \
  reg(NAME, rounded<v2<([](float a0, float b0, const Ins& I) {           \
                         float a = pre(a0, I.flag), b = pre(b0, I.flag); \
                         return post((float)(EXPR), I.flag);             \
                       }),                                               \
                       float, float, float>>)
#define F64B(NAME, EXPR)                                         \
  reg(NAME, rounded<v2<([](double a, double b, const Ins& I) {   \
                         double r = (EXPR);                      \
                         return (I.flag & FF_SAT) ? satd(r) : r; \
                       }),                                       \
                       double, double, double>>)

}  // namespace

void install_float() {
  f32_fast<false>("f32");
  f32_fast<true>("ftz.f32");
  F32B("addx.f32", a + b);
  F32B("subx.f32", a - b);
  F32B("mulx.f32", a * b);
  F32B("divx.f32", a / b);
  reg("fmax.f32", rounded<v3<([](float a, float b, float c, const Ins& I) {
                               return post(__builtin_fmaf(pre(a, I.flag), pre(b, I.flag), pre(c, I.flag)), I.flag);
                             }),
                             float, float, float, float>>);
  reg("div.f32", u2<([](float a, float b) { return canon(a / b); }), float, float, float>);
  reg("add.f64", u2<([](double a, double b) { return a + b; }), double, double, double>);
  reg("sub.f64", u2<([](double a, double b) { return a - b; }), double, double, double>);
  reg("mul.f64", u2<([](double a, double b) { return a * b; }), double, double, double>);
  reg("div.f64", u2<([](double a, double b) { return a / b; }), double, double, double>);
  reg("fma.f64",
      u3<([](double a, double b, double c) { return __builtin_fma(a, b, c); }), double, double, double, double>);
  F64B("addx.f64", a + b);
  F64B("subx.f64", a - b);
  F64B("mulx.f64", a * b);
  F64B("divx.f64", a / b);
  reg("fmax.f64", rounded<v3<([](double a, double b, double c, const Ins&) { return __builtin_fma(a, b, c); }), double,
                             double, double, double>>);
  reg("min.f32", v2<([](float a, float b, const Ins& I) { return f32min(a, b, I.flag); }), float, float, float>);
  reg("max.f32", v2<([](float a, float b, const Ins& I) { return f32max(a, b, I.flag); }), float, float, float>);
  reg("min.f64", u2<([](double a, double b) { return f64min(a, b); }), double, double, double>);
  reg("max.f64", u2<([](double a, double b) { return f64max(a, b); }), double, double, double>);
  reg("abs.f32", v1<([](u32 a, const Ins& I) {
                      u32 x = a & 0x7fffffffu;
                      return (I.flag & FF_FTZ) && !(x & 0x7f800000) ? 0u : x;
                    }),
                    u32, u32>);
  reg("neg.f32", v1<([](u32 a, const Ins& I) {
                      u32 x = a ^ 0x80000000u;
                      return (I.flag & FF_FTZ) && !(x & 0x7f800000) ? x & 0x80000000u : x;
                    }),
                    u32, u32>);
  reg("abs.f64", u1<([](u64 a) { return a & 0x7fffffffffffffffull; }), u64, u64>);
  reg("neg.f64", u1<([](u64 a) { return a ^ 0x8000000000000000ull; }), u64, u64>);
  F32U("ex2.f32", exp2f(a));
  F32U("lg2.f32", log2f(a));
  F32U("sin.f32", sinf(a));
  F32U("cos.f32", cosf(a));
  F32U("tanh.f32", tanhf(a));
  F32U("rsqrt.f32", (float)(1.0 / sqrt((double)a)));
  reg("rcp.f32",
      rounded<v1<([](float a, const Ins& I) { return post(1.0f / pre(a, I.flag), I.flag); }), float, float>>);
  reg("sqrt.f32",
      rounded<v1<([](float a, const Ins& I) { return post(__builtin_sqrtf(pre(a, I.flag)), I.flag); }), float, float>>);
  reg("rcp.f64", rounded<v1<([](double a, const Ins&) { return 1.0 / a; }), double, double>>);
  reg("sqrt.f64", rounded<v1<([](double a, const Ins&) { return __builtin_sqrt(a); }), double, double>>);
  reg("rsqrt.f64", u1<([](double a) { return 1.0 / sqrt(a); }), double, double>);
  reg("copysign.f32", u2<([](u32 a, u32 b) { return (b & 0x7fffffffu) | (a & 0x80000000u); }), u32, u32, u32>);
  reg("copysign.f64",
      u2<([](u64 a, u64 b) { return (b & 0x7fffffffffffffffull) | (a & 0x8000000000000000ull); }), u64, u64, u64>);
  // testp: sub 0 finite 1 infinite 2 number 3 notanumber 4 normal 5 subnormal
  auto tp = [](int c, u8 k) {
    switch (k) {
      case 0:
        return c == FP_NORMAL || c == FP_SUBNORMAL || c == FP_ZERO;
      case 1:
        return c == FP_INFINITE;
      case 2:
        return c != FP_NAN;
      case 3:
        return c == FP_NAN;
      case 4:
        return c == FP_NORMAL;
      default:
        return c == FP_SUBNORMAL;
    }
  };
  static auto tps = tp;
  reg(
      "testp.f32", +[](Warp& w, const Ins& I, u32 m) {
        const float* a = row<float>(w, I.o[1]);
        u32 r = 0;
        ACTIVE(r |= (u32)tps(std::fpclassify(a[l]), I.sub) << l);
        u32& p = predrow(w, I.o[0]);
        p = (p & ~m) | (r & m);
      });
  reg(
      "testp.f64", +[](Warp& w, const Ins& I, u32 m) {
        const double* a = row<double>(w, I.o[1]);
        u32 r = 0;
        ACTIVE(r |= (u32)tps(std::fpclassify(a[l]), I.sub) << l);
        u32& p = predrow(w, I.o[0]);
        p = (p & ~m) | (r & m);
      });
  // packed single precision pairs
  reg("add.f32x2",
      v2<([](u64 a, u64 b, const Ins& I) {
           float x = post(pre(bitcast<float>((u32)a), I.flag) + pre(bitcast<float>((u32)b), I.flag), I.flag),
                 y = post(pre(bitcast<float>((u32)(a >> 32)), I.flag) + pre(bitcast<float>((u32)(b >> 32)), I.flag),
                          I.flag);
           return (u64)bitcast<u32>(x) | (u64)bitcast<u32>(y) << 32;
         }),
         u64, u64, u64>);
  reg("mul.f32x2",
      v2<([](u64 a, u64 b, const Ins& I) {
           float x = post(pre(bitcast<float>((u32)a), I.flag) * pre(bitcast<float>((u32)b), I.flag), I.flag),
                 y = post(pre(bitcast<float>((u32)(a >> 32)), I.flag) * pre(bitcast<float>((u32)(b >> 32)), I.flag),
                          I.flag);
           return (u64)bitcast<u32>(x) | (u64)bitcast<u32>(y) << 32;
         }),
         u64, u64, u64>);
  reg("fma.f32x2",
      v3<([](u64 a, u64 b, u64 c, const Ins& I) {
           float x = post(__builtin_fmaf(pre(bitcast<float>((u32)a), I.flag), pre(bitcast<float>((u32)b), I.flag),
                                         pre(bitcast<float>((u32)c), I.flag)),
                          I.flag),
                 y = post(__builtin_fmaf(pre(bitcast<float>((u32)(a >> 32)), I.flag),
                                         pre(bitcast<float>((u32)(b >> 32)), I.flag),
                                         pre(bitcast<float>((u32)(c >> 32)), I.flag)),
                          I.flag);
           return (u64)bitcast<u32>(x) | (u64)bitcast<u32>(y) << 32;
         }),
         u64, u64, u64, u64>);
}

}  // namespace standin::ptx
