// The interpreter's loop: one warp's groups of threads, lowest place first, for a while.
#include <string.h>

#include <algorithm>

#include "runner.hpp"

namespace standin::ptx {

enum { VISIT = 8192, GROUP = 2048 };

// Runs one warp for a while. Returns 0 when it only waited.
int Runner::run_warp(Warp& w) {
  int visit = VISIT, gb = GROUP, last = -1;
  Frame* lastf = nullptr;
  bool prog_made = false;
  u64 insts = 0;
  Frame* fr;
  u32 pc, mask, stop;
  int ci;
  const Ins* code;
  w.poll = w.progress = w.spin = w.quiet = 0;
  cur = &w;
repick:
  if (--visit <= 0) goto visit_end;
  ci = pick(w);
  if (ci < 0) {
    for (int i = 0; i < w.ng; i++) w.g[i].pen = false;
    ninst += insts;
    return prog_made || w.progress;
  }
  {
    Group& g = w.g[ci];
    if (ci == last && w.ng > 1 && --gb <= 0) {
      gb = GROUP;
      g.pen = true;
      goto repick;
    }
    if (ci != last || g.fr != lastf) {
      if (last >= 0 && ci != last) {
        prog_made |= w.progress != 0;
        w.poll = w.progress = w.spin = w.quiet = 0;
        gb = GROUP;
      }
      last = ci;
      lastf = g.fr;
    }
    fr = g.fr;
    pc = g.pc;
    mask = g.mask;
    w.frame = fr;
    w.base[0] = fr->regs;
    w.base[1] = fr->f->consts;
    code = fr->f->code.data();
    stop = w.ng > 1 ? next_stop(w, ci, pc) : NONE;
  }
#define SAVE() (w.g[ci].pc = pc, w.g[ci].mask = mask)
  for (;;) {
    if (pc == stop) {
      SAVE();
      goto repick;
    }
    const Ins& I = code[pc];
    w.ip = &I;
    u32 m = mask;
    insts += (u32)__builtin_popcount(mask);
    if (I.guard != NONE) {
      u32 p = predrow(w, I.guard);
      if (I.neg) p = ~p;
      m &= p;
      if (!m) {
        pc++;
        goto tick;
      }
    }
    switch (I.kind) {
      case K_OP:
        I.fn(w, I, m);
        pc++;
        break;
      case K_BRA: {
        bool back = I.target <= pc;
        if (m == mask)
          pc = I.target;
        else {
          // both ways: the group keeps the lower target, the rest waits there
          w.g[ci].mask = m;
          w.g[ci].pc = I.target;
          add_group(w, fr, pc + 1, mask & ~m);
          if (back) goto back_div;
          goto repick;
        }
        if (back) {
          if (w.progress) {
            prog_made = true;
            w.progress = w.poll = w.spin = w.quiet = 0;
          } else if (w.poll) {
            w.poll = 0;
            w.quiet = 0;
            if (++w.spin >= 4) {
              w.spin = 0;
              SAVE();
              w.g[ci].pen = true;
              goto repick;
            }
          } else if (++w.quiet > 64) {
            w.quiet = 0;
            w.spin = 0;
            prog_made = true;
          }
        }
        if (w.ng > 1) {
          SAVE();
          goto repick;
        }
        break;
      back_div:
        if (w.progress) {
          prog_made = true;
          w.progress = w.poll = w.spin = w.quiet = 0;
        } else if (w.poll) {
          w.poll = 0;
          w.quiet = 0;
          if (++w.spin >= 4) {
            w.spin = 0;
            w.g[ci].pen = true;
          }
        }
        goto repick;
      }
      case K_BRX: {
        const auto& tab = fr->f->tables[I.target];
        const u32* idx = row<u32>(w, I.o[1]);
        u32 first = idx[__builtin_ctz(m)];
        u32 s = 0;
        for (u32 q = m; q; q &= q - 1) {
          int l = __builtin_ctz(q);
          if (idx[l] == first) s |= 1u << l;
        }
        if (first >= tab.size()) fault_at(w, __builtin_ctz(m), "branch index out of range");
        if (mask & ~m) add_group(w, fr, pc + 1, mask & ~m);
        if (m & ~s) add_group(w, fr, pc, m & ~s);
        pc = tab[first];
        mask = s;
        if (w.ng > 1) {
          SAVE();
          goto repick;
        }
        break;
      }
      case K_CALL:
      case K_CALLI: {
        const CallInfo& cinfo = fr->f->calls[I.target];
        if (mask & ~m) {
          add_group(w, fr, pc + 1, mask & ~m);
          mask = m;
        }
        Func* cf = cinfo.f;
        if (I.kind == K_CALLI) {
          const u64* t = row<u64>(w, I.o[1]);
          u64 tok = t[__builtin_ctz(m)];
          u32 s = 0;
          for (u32 q = m; q; q &= q - 1) {
            int l = __builtin_ctz(q);
            if (t[l] == tok) s |= 1u << l;
          }
          if (s != m) {
            add_group(w, fr, pc, m & ~s);
            m = mask = s;
          }
          bool known;
          {
            std::lock_guard<std::recursive_mutex> lk(prog->mu);
            known = prog->tokens.count(tok) != 0;
          }
          if (!known) {
            char b[64];
            snprintf(b, sizeof b, "call through 0x%llx, which is not a function", (unsigned long long)tok);
            fault_at(w, __builtin_ctz(m), b);
          }
          cf = (Func*)tok;
        }
        if (!cf->defined) {
          if (cf->builtin) {
            builtin(w, fr, cinfo, cf, m);
            pc++;
            w.progress = 1;
            if (w.ng > 1) {
              SAVE();
              goto repick;
            }
            break;
          }
          Func* again = prog->find_func(nullptr, cf->name);
          if (!again->defined) fault_at(w, __builtin_ctz(m), "call of the undefined function " + cf->name);
          cf = again;
        }
        if (!cf->ready.load(std::memory_order_acquire)) prog->ensure(cf);
        Frame* nf = nullptr;
        for (Frame* x : w.frames)
          if (x->parent == fr && x->f == cf) {
            nf = x;
            break;
          }
        if (!nf) nf = new_frame(w, cf, fr);
        if (nf->depth > 1000) fault_at(w, __builtin_ctz(m), "call stack too deep");
        nf->live |= m;
        size_t na = std::min(cinfo.args.size(), cf->params.size());
        if (cinfo.args.size() != cf->params.size())
          fault_at(w, __builtin_ctz(m),
                   "call with " + std::to_string(cinfo.args.size()) + " arguments of " + cf->name + ", which takes " +
                       std::to_string(cf->params.size()));
        for (u32 q = m; q; q &= q - 1) {
          int l = __builtin_ctz(q);
          nf->retpc[l] = pc + 1;
          const char* s = fr->param + (size_t)l * fr->f->param_stride;
          char* d = nf->param + (size_t)l * cf->param_stride;
          for (size_t i = 0; i < na; i++)
            memcpy(d + cf->params[i].off, s + cinfo.args[i].off, std::min(cf->params[i].size, cinfo.args[i].size));
        }
        w.g[ci].fr = nf;
        fr = nf;
        lastf = nf;
        pc = 0;
        SAVE();
        if (w.ng > 1) goto repick;
        w.frame = fr;
        w.base[0] = fr->regs;
        w.base[1] = cf->consts;
        code = cf->code.data();
        stop = NONE;
        break;
      }
      case K_RET:
        if (fr->depth) {
          if (mask & ~m) {
            add_group(w, fr, pc + 1, mask & ~m);
          }
          Frame* pf = fr->parent;
          Func* cf = fr->f;
          u32 left = m;
          bool firstset = true;
          while (left) {
            u32 rp = fr->retpc[__builtin_ctz(left)], s = 0;
            const CallInfo& cinfo = pf->f->calls[pf->f->code[rp - 1].target];
            size_t nr = std::min(cinfo.rets.size(), cf->rets.size());
            for (u32 q = left; q; q &= q - 1) {
              int l = __builtin_ctz(q);
              if (fr->retpc[l] != rp) continue;
              s |= 1u << l;
              const char* a = fr->param + (size_t)l * cf->param_stride;
              char* d = pf->param + (size_t)l * pf->f->param_stride;
              for (size_t i = 0; i < nr; i++)
                memcpy(d + cinfo.rets[i].off, a + cf->rets[i].off, std::min(cf->rets[i].size, cinfo.rets[i].size));
            }
            left &= ~s;
            if (firstset) {
              w.g[ci].fr = pf;
              w.g[ci].pc = rp;
              w.g[ci].mask = s;
              firstset = false;
            } else
              add_group(w, pf, rp, s);
          }
          fr->live &= ~m;
          if (!fr->live) drop_frame(w, fr);
          lastf = pf;
          if (w.ng > 1) goto repick;
          fr = pf;
          pc = w.g[ci].pc;
          mask = w.g[ci].mask;
          w.frame = fr;
          w.base[0] = fr->regs;
          w.base[1] = fr->f->consts;
          code = fr->f->code.data();
          stop = NONE;
          break;
        }
        [[fallthrough]];
      case K_EXIT: {
        if (mask & ~m) {
          w.g[ci].mask = mask & ~m;
          w.g[ci].pc = pc + 1;
        } else {
          remove_group(w, ci);
          last = -1;
        }
        prog_made = true;
        kill(w, m);
        if (w.dead == ~0u) {
          ninst += insts;
          return 1;
        }
        goto repick;
      }
      case K_BAR: {
        if (mask & ~m) {
          add_group(w, fr, pc + 1, mask & ~m);
          mask = m;
        }
        const u32* ids = row<u32>(w, I.o[1]);
        const u32* cnts = I.o[2] != NONE ? row<u32>(w, I.o[2]) : nullptr;
        int l0 = __builtin_ctz(m);
        u32 id = ids[l0], cnt = cnts ? cnts[l0] : 0, s = 0;
        for (u32 q = m; q; q &= q - 1) {
          int l = __builtin_ctz(q);
          if (ids[l] == id && (!cnts || cnts[l] == cnt)) s |= 1u << l;
        }
        if (s != m) {
          add_group(w, fr, pc, m & ~s);
          mask = m = s;
        }
        if (id > 16) fault_at(w, l0, "barrier number " + std::to_string(id) + " out of range");
        if (cnts && (cnt == 0 || cnt % 32))
          fault_at(w, l0, "barrier thread count " + std::to_string(cnt) + " is not a multiple of the warp size");
        if (!cnts && I.sub == B_ARRIVE) fault_at(w, l0, "bar.arrive without a thread count");
        Cta& c = *w.cta;
        Barrier& b = c.bars[id];
        b.busy = true;
        u32 n = (u32)__builtin_popcount(m);
        b.threads += n;
        b.warps += n;
        u32 lowest = (~w.dead) & (0u - ~w.dead);
        if (m & lowest) b.warps += (u32)__builtin_popcount(w.dead);
        if (cnts) {
          if (b.expected > 0 && b.expected != (int)cnt)
            fault_at(w, l0,
                     "barrier " + std::to_string(id) + " entered with thread count " + std::to_string(cnt) +
                         " while others wait with " + std::to_string(b.expected));
          b.expected = (int)cnt;
        } else if (b.expected == 0)
          b.expected = -1;
        if (I.sub >= B_POPC) {
          u32 p = predrow(w, I.o[3]);
          if (I.flag & 1) p = ~p;
          p &= m;
          b.popc += (u32)__builtin_popcount(p);
          if (p != m) b.all = false;
          if (p) b.any = true;
        }
        prog_made = true;
        w.progress = 1;
        if (b.expected > 0 && b.warps > (u32)b.expected)
          fault_at(w, l0,
                   "barrier " + std::to_string(id) + " got " + std::to_string(b.warps) +
                       " threads, more than its count " + std::to_string(b.expected));
        if (complete(c, b)) {
          if (I.sub != B_ARRIVE) bar_result(w, fr, I, m, b);
          release(c, (int)id);
          pc++;
        } else if (I.sub == B_ARRIVE)
          pc++;
        else {
          SAVE();
          w.g[ci].st = G_BAR;
          w.g[ci].bar = (u16)id;
          goto repick;
        }
        if (w.ng > 1) {
          SAVE();
          goto repick;
        }
        break;
      }
      case K_WSYNC: {
        if (mask & ~m) {
          add_group(w, fr, pc + 1, mask & ~m);
          mask = m;
        }
        u32 mk = m;
        if (I.o[5] != NONE) {
          const u32* ms = row<u32>(w, I.o[5]);
          mk = ms[__builtin_ctz(m)];
          u32 s = 0;
          for (u32 q = m; q; q &= q - 1) {
            int l = __builtin_ctz(q);
            if (ms[l] == mk) s |= 1u << l;
          }
          if (s != m) {
            add_group(w, fr, pc, m & ~s);
            mask = m = s;
          }
          if (m & ~mk) fault_at(w, __builtin_ctz(m & ~mk), "thread is not in the member mask it gives");
        }
        SAVE();
        if (!(mk & ~w.dead & ~m)) {
          Group* g = &w.g[ci];
          wsync_exec(w, &g, 1);
          pc++;
        } else {
          w.g[ci].st = G_WSYNC;
          w.g[ci].sm = mk;
          try_wsync(w, mk, wait_class(I.sub));
          goto repick;
        }
        if (w.ng > 1) {
          SAVE();
          goto repick;
        }
        break;
      }
      case K_SLEEP:
        pc++;
        SAVE();
        w.g[ci].pen = true;
        goto repick;
      default:
        fault_at(w, __builtin_ctz(m), "bad instruction kind");
    }
  tick:
    if (--gb <= 0) {
      gb = GROUP;
      if (w.ng > 1) {
        SAVE();
        w.g[ci].pen = true;
        visit -= GROUP;
        if (visit <= 0) goto visit_end;
        goto repick;
      }
      visit -= GROUP;
      if (visit <= 0) {
        SAVE();
        goto visit_end;
      }
    }
  }
visit_end:
  ninst += insts;
  return 1;
}

}  // namespace standin::ptx
