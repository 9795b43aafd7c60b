// Moves: width changes, packing and unpacking, predicates, selection.
#include "ops.hpp"

namespace standin::ptx {
namespace {
template <class U, class C>
void slct_type(const std::string& t) {
  reg("slct." + t, u3<([](U a, U b, C c) { return c >= 0 ? a : b; }), U, U, U, C>);
  reg("slct.ftz." + t, u3<([](U a, U b, C c) { return c >= 0 ? a : b; }), U, U, U, C>);
}
}  // namespace

void install_moves() {
  reg("mov.b128", u1<([](unsigned __int128 a) { return a; }), unsigned __int128, unsigned __int128>);
#define PRED2(NAME, EXPR)                                   \
  reg(                                                      \
      NAME, +[](Warp& w, const Ins& I, u32 m) {             \
        u32 a = predrow(w, I.o[1]), b = predrow(w, I.o[2]); \
        u32& d = predrow(w, I.o[0]);                        \
        d = (d & ~m) | ((EXPR)&m);                          \
      })
#define PRED1(NAME, EXPR)                       \
  reg(                                          \
      NAME, +[](Warp& w, const Ins& I, u32 m) { \
        u32 a = predrow(w, I.o[1]);             \
        u32& d = predrow(w, I.o[0]);            \
        d = (d & ~m) | ((EXPR)&m);              \
      })
  PRED2("and.pred", a & b);
  PRED2("or.pred", a | b);
  PRED2("xor.pred", a ^ b);
  PRED1("not.pred", ~a);
  PRED1("mov.pred", a);
  reg(
      "selp.pred", +[](Warp& w, const Ins& I, u32 m) {
        u32 a = predrow(w, I.o[1]), b = predrow(w, I.o[2]), p = predrow(w, I.o[3]);
        if (I.flag & 1) p = ~p;
        u32& d = predrow(w, I.o[0]);
        d = (d & ~m) | (((a & p) | (b & ~p)) & m);
      });
  // width changes inserted by the decoder: rs = register bytes
  reg("mv.2.2", u1<([](u16 a) { return a; }), u16, u16>);
  reg("mv.2.4", u1<([](u32 a) { return (u16)a; }), u16, u32>);
  reg("mv.2.8", u1<([](u64 a) { return (u16)a; }), u16, u64>);
  reg("mv.4.2", u1<([](u16 a) { return (u32)a; }), u32, u16>);
  reg("mv.4.8", u1<([](u64 a) { return (u32)a; }), u32, u64>);
  reg("mv.8.2", u1<([](u16 a) { return (u64)a; }), u64, u16>);
  reg("mv.8.4", u1<([](u32 a) { return (u64)a; }), u64, u32>);
  reg("mvs.4.2", u1<([](i16 a) { return (i32)a; }), i32, i16>);
  reg("mvs.8.2", u1<([](i16 a) { return (i64)a; }), i64, i16>);
  reg("mvs.8.4", u1<([](i32 a) { return (i64)a; }), i64, i32>);
  // pack and unpack: pk.N.es
  reg("pk.2.2", u2<([](u16 a, u16 b) { return (u32)a | (u32)b << 16; }), u32, u16, u16>);
  reg("pk.2.4", u2<([](u32 a, u32 b) { return (u64)a | (u64)b << 32; }), u64, u32, u32>);
  reg(
      "pk.2.8", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        const u64* a = row<u64>(w, I.o[1]);
        const u64* b = row<u64>(w, I.o[2]);
        ACTIVE(u64 x = a[l]; u64 y = b[l]; d[2 * l] = x; d[2 * l + 1] = y);
      });
  reg(
      "pk.4.2", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        const u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]), *c = row<u16>(w, I.o[3]),
                  *e = row<u16>(w, I.o[4]);
        ACTIVE(d[l] = (u64)a[l] | (u64)b[l] << 16 | (u64)c[l] << 32 | (u64)e[l] << 48);
      });
  reg(
      "pk.4.1", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        const u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]), *c = row<u16>(w, I.o[3]),
                  *e = row<u16>(w, I.o[4]);
        ACTIVE(d[l] = (a[l] & 0xffu) | (b[l] & 0xffu) << 8 | (c[l] & 0xffu) << 16 | (u32)(e[l] & 0xffu) << 24);
      });
  reg(
      "pk.2.1", +[](Warp& w, const Ins& I, u32 m) {
        u16* d = row<u16>(w, I.o[0]);
        const u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]);
        ACTIVE(d[l] = (u16)((a[l] & 0xff) | (b[l] & 0xff) << 8));
      });
  reg(
      "pk.4.4", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        const u32 *a = row<u32>(w, I.o[1]), *b = row<u32>(w, I.o[2]), *c = row<u32>(w, I.o[3]),
                  *e = row<u32>(w, I.o[4]);
        ACTIVE(u32 x0 = a[l]; u32 x1 = b[l]; u32 x2 = c[l]; u32 x3 = e[l]; d[4 * l] = x0; d[4 * l + 1] = x1;
               d[4 * l + 2] = x2; d[4 * l + 3] = x3);
      });
  reg(
      "up.2.2", +[](Warp& w, const Ins& I, u32 m) {
        const u32* s = row<u32>(w, I.o[0]);
        u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]);
        LANES(u32 v = s[l]; a[l] = (u16)v; b[l] = (u16)(v >> 16));
      });
  reg(
      "up.2.4", +[](Warp& w, const Ins& I, u32 m) {
        const u64* s = row<u64>(w, I.o[0]);
        u32 *a = row<u32>(w, I.o[1]), *b = row<u32>(w, I.o[2]);
        LANES(u64 v = s[l]; a[l] = (u32)v; b[l] = (u32)(v >> 32));
      });
  reg(
      "up.2.8", +[](Warp& w, const Ins& I, u32 m) {
        const u64* s = row<u64>(w, I.o[0]);
        u64 *a = row<u64>(w, I.o[1]), *b = row<u64>(w, I.o[2]);
        ACTIVE(u64 x = s[2 * l]; u64 y = s[2 * l + 1]; a[l] = x; b[l] = y);
      });
  reg(
      "up.4.2", +[](Warp& w, const Ins& I, u32 m) {
        const u64* s = row<u64>(w, I.o[0]);
        u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]), *c = row<u16>(w, I.o[3]), *e = row<u16>(w, I.o[4]);
        ACTIVE(u64 v = s[l]; a[l] = (u16)v; b[l] = (u16)(v >> 16); c[l] = (u16)(v >> 32); e[l] = (u16)(v >> 48));
      });
  reg(
      "up.4.1", +[](Warp& w, const Ins& I, u32 m) {
        const u32* s = row<u32>(w, I.o[0]);
        u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]), *c = row<u16>(w, I.o[3]), *e = row<u16>(w, I.o[4]);
        ACTIVE(u32 v = s[l]; a[l] = v & 0xff; b[l] = (v >> 8) & 0xff; c[l] = (v >> 16) & 0xff; e[l] = v >> 24);
      });
  reg(
      "up.2.1", +[](Warp& w, const Ins& I, u32 m) {
        const u16* s = row<u16>(w, I.o[0]);
        u16 *a = row<u16>(w, I.o[1]), *b = row<u16>(w, I.o[2]);
        ACTIVE(u16 v = s[l]; a[l] = v & 0xff; b[l] = v >> 8);
      });
  reg(
      "up.4.4", +[](Warp& w, const Ins& I, u32 m) {
        const u32* s = row<u32>(w, I.o[0]);
        u32 *a = row<u32>(w, I.o[1]), *b = row<u32>(w, I.o[2]), *c = row<u32>(w, I.o[3]), *e = row<u32>(w, I.o[4]);
        ACTIVE(u32 x0 = s[4 * l]; u32 x1 = s[4 * l + 1]; u32 x2 = s[4 * l + 2]; u32 x3 = s[4 * l + 3]; a[l] = x0;
               b[l] = x1; c[l] = x2; e[l] = x3);
      });
  slct_type<u16, i32>("16.s32");
  slct_type<u32, i32>("32.s32");
  slct_type<u64, i32>("64.s32");
  slct_type<u16, float>("16.f32");
  slct_type<u32, float>("32.f32");
  slct_type<u64, float>("64.f32");
}

}  // namespace standin::ptx
