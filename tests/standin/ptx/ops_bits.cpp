// Bit operations: logic, shifts of pairs, permutations, fields.
#include "ops.hpp"

namespace standin::ptx {
namespace {
template <class U>
void bit_type(const std::string& t) {
  constexpr int W = sizeof(U) * 8;
  reg("and." + t, u2<([](U a, U b) { return (U)(a & b); }), U, U, U>);
  reg("or." + t, u2<([](U a, U b) { return (U)(a | b); }), U, U, U>);
  reg("xor." + t, u2<([](U a, U b) { return (U)(a ^ b); }), U, U, U>);
  reg("not." + t, u1<([](U a) { return (U)~a; }), U, U>);
  reg("cnot." + t, u1<([](U a) { return (U)(a == 0); }), U, U>);
  reg("mov." + t, u1<([](U a) { return a; }), U, U>);
  if constexpr (W >= 32) {
    reg("popc." + t, u1<([](U a) { return (u32)std::popcount(a); }), u32, U>);
    reg("clz." + t, u1<([](U a) { return (u32)std::countl_zero(a); }), u32, U>);
    reg("brev." + t, u1<([](U a) {
                          U r = 0;
                          for (int i = 0; i < W; i++) r |= (U)((a >> i) & 1) << (W - 1 - i);
                          return r;
                        }),
                        U, U>);
    reg(
        "bfi." + t, +[](Warp& w, const Ins& I, u32 m) {
          U* d = row<U>(w, I.o[0]);
          const U* a = row<U>(w, I.o[1]);
          const U* b = row<U>(w, I.o[2]);
          const u32* c = row<u32>(w, I.o[3]);
          const u32* e = row<u32>(w, I.o[4]);
          ACTIVE(u32 pos = c[l] & 0xff; u32 len = e[l] & 0xff; U r = b[l]; if (len && pos < (u32)W) {
            U msk = len >= (u32)W ? (U) ~(U)0 : (U)(((U)1 << len) - 1);
            msk = (U)(msk << pos);
            r = (U)((r & ~msk) | ((U)(a[l] << pos) & msk));
          } d[l] = r);
        });
  }
  // selp: d, a, b, p
  reg(
      "selp." + t, +[](Warp& w, const Ins& I, u32 m) {
        U* d = row<U>(w, I.o[0]);
        const U* a = row<U>(w, I.o[1]);
        const U* b = row<U>(w, I.o[2]);
        u32 p = predrow(w, I.o[3]);
        if (I.flag & 1) p = ~p;
        if ((m | w.dead) == ~0u) {
          alignas(64) U t[32];
          for (int l = 0; l < 32; l++) t[l] = (U)0 - (U)((p >> l) & 1);
          for (int l = 0; l < 32; l++) d[l] = (U)((a[l] & t[l]) | (b[l] & ~t[l]));
        } else
          ACTIVE(d[l] = (p >> l) & 1 ? a[l] : b[l]);
      });
}
u32 prmt_byte(u64 ab, u32 s) {
  u32 v = (u32)(ab >> (8 * (s & 7))) & 0xff;
  if (s & 8) v = (v & 0x80) ? 0xff : 0;
  return v;
}

}  // namespace

void install_bits() {
  bit_type<u16>("b16");
  bit_type<u32>("b32");
  bit_type<u64>("b64");
  reg("fns.b32", u3<([](u32 mask, u32 base, i32 off) {
                      u32 r = ~0u;
                      if (off == 0) {
                        if (base < 32 && ((mask >> base) & 1)) r = base;
                      } else {
                        int pos = (int)base, step = off > 0 ? 1 : -1, left = off > 0 ? off : -off;
                        for (; pos >= 0 && pos < 32; pos += step)
                          if ((mask >> pos) & 1) {
                            if (--left == 0) {
                              r = pos;
                              break;
                            }
                          }
                      }
                      return r;
                    }),
                    u32, u32, u32, i32>);
  reg("bmsk.clamp.b32", u2<([](u32 a, u32 b) {
                             u32 p = a & 0xff;
                             p = a > 31 ? 32 : a;
                             u32 n = b > 32 ? 32 : b;
                             u64 x = ((1ull << n) - 1) << p;
                             return (u32)x;
                           }),
                           u32, u32, u32>);
  reg("bmsk.wrap.b32", u2<([](u32 a, u32 b) {
                            u32 p = a & 31, n = b & 31;
                            u64 x = ((1ull << n) - 1) << p;
                            return (u32)x;
                          }),
                          u32, u32, u32>);
  reg("szext.clamp.u32",
      u2<([](u32 a, u32 b) { return b >= 32  ? a
                                    : b == 0 ? 0u
                                             : a & ((1u << b) - 1); }), u32, u32, u32>);
  reg("szext.wrap.u32", u2<([](u32 a, u32 b) {
                             b &= 31;
                             return b == 0 ? 0u : a & ((1u << b) - 1);
                           }),
                           u32, u32, u32>);
  reg("szext.clamp.s32",
      u2<([](i32 a, u32 b) { return b >= 32  ? a
                                    : b == 0 ? 0
                                             : (i32)((u32)a << (32 - b)) >> (32 - b); }), i32, i32,
         u32>);
  reg("szext.wrap.s32", u2<([](i32 a, u32 b) {
                             b &= 31;
                             return b == 0 ? 0 : (i32)((u32)a << (32 - b)) >> (32 - b);
                           }),
                           i32, i32, u32>);
  reg(
      "lop3.b32", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        const u32 *a = row<u32>(w, I.o[1]), *b = row<u32>(w, I.o[2]), *c = row<u32>(w, I.o[3]);
        u32 t = (u32)I.imm, k[8];
        for (int i = 0; i < 8; i++) k[i] = (t >> i) & 1 ? ~0u : 0;
        LANES(u32 x = a[l], y = b[l], v = c[l];
              d[l] = (k[0] & ~x & ~y & ~v) | (k[1] & ~x & ~y & v) | (k[2] & ~x & y & ~v) | (k[3] & ~x & y & v) |
                     (k[4] & x & ~y & ~v) | (k[5] & x & ~y & v) | (k[6] & x & y & ~v) | (k[7] & x & y & v));
      });
  reg(
      "lop3.bool", +[](Warp& w, const Ins& I, u32 m) {  // o[4] pred out, o[5] pred in, sub 1 or / 2 and
        u32* d = I.o[0] == NONE ? nullptr : row<u32>(w, I.o[0]);
        const u32 *a = row<u32>(w, I.o[1]), *b = row<u32>(w, I.o[2]), *c = row<u32>(w, I.o[3]);
        u32 t = (u32)I.imm, r = 0;
        ACTIVE(u32 v = 0; for (int i = 0; i < 8; i++) if ((t >> i) & 1) v |=
                          ((i & 4) ? a[l] : ~a[l]) & ((i & 2) ? b[l] : ~b[l]) & ((i & 1) ? c[l] : ~c[l]);
               if (d) d[l] = v; r |= (u32)(v != 0) << l);
        u32 q = predrow(w, I.o[5]);
        if (I.flag & 1) q = ~q;
        r = I.sub == 1 ? (r | q) : (r & q);
        u32& p = predrow(w, I.o[4]);
        p = (p & ~m) | (r & m);
      });
  reg("prmt.b32", u3<([](u32 a, u32 b, u32 c) {
                       u64 ab = (u64)b << 32 | a;
                       return prmt_byte(ab, c & 15) | prmt_byte(ab, (c >> 4) & 15) << 8 |
                              prmt_byte(ab, (c >> 8) & 15) << 16 | prmt_byte(ab, (c >> 12) & 15) << 24;
                     }),
                     u32, u32, u32, u32>);
  static constexpr u8 pm[6][4][4] = {{{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}},
                                     {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}},
                                     {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}},
                                     {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}},
                                     {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}},
                                     {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}};
  reg("prmt.mode", v3<([](u32 a, u32 b, u32 c, const Ins& I) {
                        u64 ab = (u64)b << 32 | a;
                        u32 r = 0;
                        for (int i = 0; i < 4; i++) r |= prmt_byte(ab, pm[I.sub][c & 3][i]) << (8 * i);
                        return r;
                      }),
                      u32, u32, u32, u32>);
  reg("shf.l.clamp.b32", u3<([](u32 a, u32 b, u32 c) {
                              u32 n = c > 32 ? 32 : c;
                              return (u32)((((u64)b << 32 | a) << n) >> 32);
                            }),
                            u32, u32, u32, u32>);
  reg("shf.l.wrap.b32", u3<([](u32 a, u32 b, u32 c) {
                             u32 n = c & 31;
                             return (u32)((((u64)b << 32 | a) << n) >> 32);
                           }),
                           u32, u32, u32, u32>);
  reg("shf.r.clamp.b32", u3<([](u32 a, u32 b, u32 c) {
                              u32 n = c > 32 ? 32 : c;
                              return (u32)(((u64)b << 32 | a) >> n);
                            }),
                            u32, u32, u32, u32>);
  reg("shf.r.wrap.b32", u3<([](u32 a, u32 b, u32 c) {
                             u32 n = c & 31;
                             return (u32)(((u64)b << 32 | a) >> n);
                           }),
                           u32, u32, u32, u32>);
}

}  // namespace standin::ptx
