// Warp-wide operations over one or more groups of lanes that met: shuffles, votes, matches, reductions.
#include <algorithm>

#include "ops.hpp"

namespace standin::ptx {

// shfl: o[0] d, o[1] a, o[2] b, o[3] c, o[4] pred out. vote: o[0] d, o[1] pred (flag bit0 negates).
// match: o[0] d, o[1] a (sub), n = bytes, o[4] pred. redux: o[0] d, o[1] a.
void wsync_exec(Warp& w, Group** parts, int n) {
  char* save0 = w.base[0];
  char* save1 = w.base[1];
  auto bind = [&](Group* g) -> const Ins& {
    w.base[0] = g->fr->regs;
    w.base[1] = g->fr->f->consts;
    return g->fr->f->code[g->pc];
  };
  u8 op = parts[0]->fr->f->code[parts[0]->pc].sub;
  u32 all = 0;
  for (int i = 0; i < n; i++) all |= parts[i]->mask;
  if (op <= W_SHFL_IDX) {
    alignas(64) u32 v[32];
    if (n == 1) {
      const Ins& I = bind(parts[0]);
      memcpy(v, row<u32>(w, I.o[1]), 128);
    } else
      for (int i = 0; i < n; i++) {
        const Ins& I = bind(parts[i]);
        const u32* a = row<u32>(w, I.o[1]);
        for (u32 q = parts[i]->mask; q; q &= q - 1) {
          int l = __builtin_ctz(q);
          v[l] = a[l];
        }
      }
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32* d = row<u32>(w, I.o[0]);
      const u32 *b = row<u32>(w, I.o[2]), *c = row<u32>(w, I.o[3]);
      u32 pr = 0, m = parts[i]->mask;
      for (u32 q = m; q; q &= q - 1) {
        int l = __builtin_ctz(q);
        int bv = b[l] & 31, cv = c[l] & 31, sm = (c[l] >> 8) & 31, maxl = (l & sm) | (cv & ~sm), minl = l & sm, j;
        bool p;
        switch (I.sub) {
          case W_SHFL_UP:
            j = l - bv;
            p = j >= maxl;
            break;
          case W_SHFL_DOWN:
            j = l + bv;
            p = j <= maxl;
            break;
          case W_SHFL_BFLY:
            j = l ^ bv;
            p = j <= maxl;
            break;
          default:
            j = minl | (bv & ~sm);
            p = j <= maxl;
            break;
        }
        if (!p) j = l;
        d[l] = ((all >> j) & 1) ? v[j] : v[l];
        pr |= (u32)p << l;
      }
      if (I.o[4] != NONE) {
        u32& p = predrow(w, I.o[4]);
        p = (p & ~m) | (pr & m);
      }
    }
  } else if (op <= W_BALLOT) {
    u32 t = 0;
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32 p = predrow(w, I.o[1]);
      if (I.flag & 1) p = ~p;
      t |= p & parts[i]->mask;
    }
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32 m = parts[i]->mask;
      if (I.sub == W_BALLOT) {
        u32* d = row<u32>(w, I.o[0]);
        for (u32 q = m; q; q &= q - 1) d[__builtin_ctz(q)] = t;
      } else {
        bool r = I.sub == W_VOTE_ALL ? t == all : I.sub == W_VOTE_ANY ? t != 0 : (t == all || t == 0);
        u32& p = predrow(w, I.o[0]);
        p = (p & ~m) | (r ? m : 0);
      }
    }
  } else if (op <= W_MATCH_ALL) {
    u64 v[32];
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      for (u32 q = parts[i]->mask; q; q &= q - 1) {
        int l = __builtin_ctz(q);
        v[l] = I.n == 8 ? row<u64>(w, I.o[1])[l] : row<u32>(w, I.o[1])[l];
      }
    }
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32 m = parts[i]->mask, pr = 0;
      for (u32 q = m; q; q &= q - 1) {
        int l = __builtin_ctz(q);
        u32 same = 0;
        for (u32 z = all; z; z &= z - 1) {
          int k = __builtin_ctz(z);
          if (v[k] == v[l]) same |= 1u << k;
        }
        if (I.sub == W_MATCH_ANY)
          row<u32>(w, I.o[0])[l] = same;
        else {
          bool eq = same == all;
          if (I.o[0] != NONE) row<u32>(w, I.o[0])[l] = eq ? all : 0;
          pr |= (u32)eq << l;
        }
      }
      if (I.o[4] != NONE) {
        u32& p = predrow(w, I.o[4]);
        p = (p & ~m) | (pr & m);
      }
    }
  } else if (op == W_ELECT) {
    u32 lead = __builtin_ctz(all);
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32 m = parts[i]->mask;
      if (I.o[0] != NONE)
        for (u32 q = m; q; q &= q - 1) row<u32>(w, I.o[0])[__builtin_ctz(q)] = lead;
      u32& p = predrow(w, I.o[4]);
      p = (p & ~m) | ((1u << lead) & m);
    }
  } else if (op != W_SYNC) {
    bool first = true;
    u32 r = 0;
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      const u32* a = row<u32>(w, I.o[1]);
      for (u32 q = parts[i]->mask; q; q &= q - 1) {
        u32 x = a[__builtin_ctz(q)];
        if ((op == W_FMIN || op == W_FMAX) && (I.flag & FF_XSA)) x &= 0x7fffffff;
        if (first) {
          r = x;
          first = false;
          continue;
        }
        switch (op) {
          case W_ADD:
            r += x;
            break;
          case W_AND:
            r &= x;
            break;
          case W_OR:
            r |= x;
            break;
          case W_XOR:
            r ^= x;
            break;
          case W_MIN:
            r = std::min(r, x);
            break;
          case W_MAX:
            r = std::max(r, x);
            break;
          case W_MINS:
            r = (u32)std::min((i32)r, (i32)x);
            break;
          case W_MAXS:
            r = (u32)std::max((i32)r, (i32)x);
            break;
          case W_FMIN:
            r = bitcast<u32>(f32min(bitcast<float>(r), bitcast<float>(x), I.flag & FF_NAN));
            break;
          case W_FMAX:
            r = bitcast<u32>(f32max(bitcast<float>(r), bitcast<float>(x), I.flag & FF_NAN));
            break;
        }
      }
    }
    for (int i = 0; i < n; i++) {
      const Ins& I = bind(parts[i]);
      u32* d = row<u32>(w, I.o[0]);
      for (u32 q = parts[i]->mask; q; q &= q - 1) d[__builtin_ctz(q)] = r;
    }
  }
  w.base[0] = save0;
  w.base[1] = save1;
}

}  // namespace standin::ptx
