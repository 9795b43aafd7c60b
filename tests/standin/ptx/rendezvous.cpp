// Where threads meet: CTA barriers, warp-wide instructions, and threads that leave both.
#include "runner.hpp"

namespace standin::ptx {
// Instructions of one class may meet, whatever they compute.
int wait_class(u8 s) {
  return s <= W_SHFL_IDX ? 0 : s <= W_BALLOT ? 1 : s <= W_MATCH_ALL ? 2 : s == W_SYNC ? 4 : s == W_ELECT ? 5 : 3;
}

void Runner::bar_result(Warp& w, Frame* fr, const Ins& I, u32 m, const Barrier& b) {
  if (I.sub <= B_ARRIVE) return;
  char *s0 = w.base[0], *s1 = w.base[1];
  w.base[0] = fr->regs;
  w.base[1] = fr->f->consts;
  if (I.sub == B_POPC) {
    u32* d = row<u32>(w, I.o[0]);
    for (u32 q = m; q; q &= q - 1) d[__builtin_ctz(q)] = b.popc;
  } else if (I.o[0] != NONE) {
    bool r = I.sub == B_AND ? b.all : b.any;
    u32& p = predrow(w, I.o[0]);
    p = (p & ~m) | (r ? m : 0);
  }
  w.base[0] = s0;
  w.base[1] = s1;
}

void Runner::release(Cta& c, int id) {
  Barrier& b = c.bars[id];
  for (Warp* w : c.warps)
    for (int i = 0; i < w->ng; i++) {
      Group& g = w->g[i];
      if (g.st != G_BAR || g.bar != id) continue;
      bar_result(*w, g.fr, g.fr->f->code[g.pc], g.mask, b);
      g.st = G_RUN;
      g.pen = false;
      g.pc++;
    }
  b = Barrier();
}

bool Runner::try_wsync(Warp& w, u32 sm, int cls) {
  Group* parts[32];
  int n = 0;
  u32 u = 0;
  for (int i = 0; i < w.ng; i++) {
    Group& g = w.g[i];
    if (g.st == G_WSYNC && g.sm == sm && wait_class(g.fr->f->code[g.pc].sub) == cls) {
      parts[n++] = &g;
      u |= g.mask;
    }
  }
  if (!n || (sm & ~w.dead & ~u)) return false;
  wsync_exec(w, parts, n);
  for (int i = 0; i < n; i++) {
    parts[i]->st = G_RUN;
    parts[i]->pen = false;
    parts[i]->pc++;
  }
  return true;
}

void Runner::kill(Warp& w, u32 m) {
  w.dead |= m;
  Cta& c = *w.cta;
  c.alive -= (u32)__builtin_popcount(m);
  for (size_t i = w.frames.size(); i-- > 0;) {
    Frame* fr = w.frames[i];
    fr->live &= ~m;
    if (!fr->live) drop_frame(w, fr);
  }
  if (w.dead == ~0u) {
    if (--c.warps_alive == 0) c.done = true;
  }
  for (int i = 0; i < w.ng; i++)
    if (w.g[i].st == G_WSYNC) {
      Group& g = w.g[i];
      if (try_wsync(w, g.sm, wait_class(g.fr->f->code[g.pc].sub))) i = -1;
    }
  if (c.alive)
    for (int id = 0; id < 17; id++) {
      Barrier& b = c.bars[id];
      if (b.busy && b.expected <= 0 && complete(c, b)) release(c, id);
    }
}

}  // namespace standin::ptx
