// Half and bfloat16 instructions, single and packed.
#include <math.h>

#include "half.hpp"

namespace standin::ptx {
namespace {
template <class H>
u16 hneg(u16 a, const Ins& I) {
  return hz<H>(a, I.flag) ^ 0x8000;
}
template <class H>
u16 habs(u16 a, const Ins& I) {
  return hz<H>(a, I.flag) & 0x7fff;
}
template <class H>
u16 hex2(u16 a, const Ins& I) {
  return hpost<H>(H::st(exp2f(H::ld(hz<H>(a, I.flag)))), I.flag);
}
template <class H>
u16 htanh(u16 a, const Ins& I) {
  return H::st(tanhf(H::ld(hz<H>(a, I.flag))));
}
template <auto F>
constexpr auto x2_1 = [](u32 a, const Ins& I) { return (u32)F((u16)a, I) | (u32)F((u16)(a >> 16), I) << 16; };
template <auto F>
constexpr auto x2_2 = [](u32 a, u32 b, const Ins& I) {
  return (u32)F((u16)a, (u16)b, I) | (u32)F((u16)(a >> 16), (u16)(b >> 16), I) << 16;
};
template <auto F>
constexpr auto x2_3 = [](u32 a, u32 b, u32 c, const Ins& I) {
  return (u32)F((u16)a, (u16)b, (u16)c, I) | (u32)F((u16)(a >> 16), (u16)(b >> 16), (u16)(c >> 16), I) << 16;
};
template <class H>
void half_type(const std::string& t) {
  reg("add." + t, v2<hadd<H>, u16, u16, u16>);
  reg("add." + t + "x2", v2<x2_2<hadd<H>>, u32, u32, u32>);
  reg("sub." + t, v2<hsub<H>, u16, u16, u16>);
  reg("sub." + t + "x2", v2<x2_2<hsub<H>>, u32, u32, u32>);
  reg("mul." + t, v2<hmul<H>, u16, u16, u16>);
  reg("mul." + t + "x2", v2<x2_2<hmul<H>>, u32, u32, u32>);
  reg("fma." + t, v3<hfma<H>, u16, u16, u16, u16>);
  reg("fma." + t + "x2", v3<x2_3<hfma<H>>, u32, u32, u32, u32>);
  reg("min." + t, v2<hmin<H>, u16, u16, u16>);
  reg("min." + t + "x2", v2<x2_2<hmin<H>>, u32, u32, u32>);
  reg("max." + t, v2<hmax<H>, u16, u16, u16>);
  reg("max." + t + "x2", v2<x2_2<hmax<H>>, u32, u32, u32>);
  reg("neg." + t, v1<hneg<H>, u16, u16>);
  reg("neg." + t + "x2", v1<x2_1<hneg<H>>, u32, u32>);
  reg("abs." + t, v1<habs<H>, u16, u16>);
  reg("abs." + t + "x2", v1<x2_1<habs<H>>, u32, u32>);
  reg("ex2." + t, v1<hex2<H>, u16, u16>);
  reg("ex2." + t + "x2", v1<x2_1<hex2<H>>, u32, u32>);
  reg("tanh." + t, v1<htanh<H>, u16, u16>);
  reg("tanh." + t + "x2", v1<x2_1<htanh<H>>, u32, u32>);
}

}  // namespace

void install_half() {
  half_type<Half>("f16");
  half_type<Bf>("bf16");
}

}  // namespace standin::ptx
