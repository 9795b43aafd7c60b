// Faults of kernels: signals of bad addresses, places in the text, reports.
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "runner.hpp"

namespace standin::ptx {

thread_local Guard* tl_guard = nullptr;

namespace {
struct sigaction old_segv, old_bus, old_fpe;

void on_signal(int sig, siginfo_t* si, void* uc) {
  if (tl_guard) {
    tl_guard->sig = sig;
    tl_guard->addr = si->si_addr;
    siglongjmp(tl_guard->jb, 1);
  }
  struct sigaction* o = sig == SIGSEGV ? &old_segv : sig == SIGBUS ? &old_bus : &old_fpe;
  if (o->sa_flags & SA_SIGINFO) {
    if (o->sa_sigaction) {
      o->sa_sigaction(sig, si, uc);
      return;
    }
  } else if (o->sa_handler == SIG_IGN)
    return;
  else if (o->sa_handler != SIG_DFL && o->sa_handler) {
    o->sa_handler(sig);
    return;
  }
  signal(sig, SIG_DFL);
  raise(sig);
}
std::mutex sig_mu;
}  // namespace

void install_handlers() {
  std::lock_guard<std::mutex> lk(sig_mu);
  struct {
    int s;
    struct sigaction* o;
  } t[] = {{SIGSEGV, &old_segv}, {SIGBUS, &old_bus}, {SIGFPE, &old_fpe}};
  for (auto& x : t) {
    struct sigaction cur;
    sigaction(x.s, nullptr, &cur);
    if ((cur.sa_flags & SA_SIGINFO) && cur.sa_sigaction == on_signal) continue;
    *x.o = cur;
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_sigaction = on_signal;
    a.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&a.sa_mask);
    sigaction(x.s, &a, nullptr);
  }
}

std::string ins_text(Func* f, const Ins& I) {
  if (!f->mod) return "";
  const std::string& t = f->mod->text;
  size_t s = I.src, n = t.find(';', s);
  if (n == std::string::npos) n = std::min(t.size(), s + 80);
  std::string r;
  bool sp = false;
  for (size_t i = s; i <= n && i < t.size() && r.size() < 200; i++) {
    char c = t[i];
    if (isspace((unsigned char)c)) {
      sp = !r.empty();
      continue;
    }
    if (sp) {
      r += ' ';
      sp = false;
    }
    r += c;
  }
  return r;
}
int ins_line(Func* f, const Ins& I) {
  return f->mod ? 1 + (int)std::count(f->mod->text.begin(),
                                      f->mod->text.begin() + std::min<size_t>(I.src, f->mod->text.size()), '\n')
                : 0;
}

std::string where(Warp& w, Func* f, const Ins& I, int lane) {
  char b[256];
  Run& R = *w.run;
  u32 t = (u32)w.id * 32 + lane;
  snprintf(b, sizeof b, "block (%u,%u,%u) thread (%u,%u,%u) of ", w.cta->id[0], w.cta->id[1], w.cta->id[2],
           t % R.block[0], t / R.block[0] % R.block[1], t / R.block[0] / R.block[1]);
  std::string s = b;
  s += "kernel " + R.kernel->name + ": `" + ins_text(f, I) + "`";
  snprintf(b, sizeof b, " (%s%sline %d of module %d)",
           f != R.kernel ? ("function " + f->name.substr(0, 150) + ", ").c_str() : "", "", ins_line(f, I),
           f->mod ? f->mod->index : -1);
  return s + b;
}

void fault_at(Warp& w, int lane, const std::string& what) {
  throw Fault(what + " at " + where(w, w.frame->f, *w.ip, lane));
}

std::string Runner::report() {
  std::string s;
  int n = 0;
  for (Cta* c : active) {
    for (Warp* w : c->warps)
      for (int i = 0; i < w->ng; i++) {
        Group& g = w->g[i];
        if (w->dead == ~0u) continue;
        if (n++ >= 40) {
          s += "\n  ...";
          return s;
        }
        char b[160];
        snprintf(b, sizeof b, "\n  block %u,%u,%u warp %d mask %08x %s ", c->id[0], c->id[1], c->id[2], w->id, g.mask,
                 g.st == G_RUN   ? "runs"
                 : g.st == G_BAR ? "waits at barrier"
                                 : "waits for its warp");
        s += b;
        if (g.st == G_BAR) {
          Barrier& q = c->bars[g.bar];
          s += std::to_string(g.bar) + " (" + std::to_string(q.warps) + " of " +
               (q.expected > 0 ? std::to_string(q.expected) : "all") + ") ";
        }
        s += "at `" + ins_text(g.fr->f, g.fr->f->code[g.pc]) + "` (" +
             (g.fr->f != kernel ? g.fr->f->name.substr(0, 80) + " " : "") + "line " +
             std::to_string(ins_line(g.fr->f, g.fr->f->code[g.pc])) + ")";
      }
  }
  return s;
}

std::string Runner::last_where(u64 addr) {
  Warp& w = *cur;
  const Ins& I = *w.ip;
  int lane = -1;
  u64 at = addr;
  Group* g = nullptr;
  for (int i = 0; i < w.ng; i++)
    if (w.g[i].fr == w.frame) g = &w.g[i];
  u32 m = g ? g->mask : ~w.dead;
  if (I.guard != NONE) {
    u32 p = predrow(w, I.guard);
    m &= I.neg ? ~p : p;
  }
  if (I.ak == AK_G && I.o[1] != NONE) {
    // A whole warp's access may be one of the processor's: the lane is the last one whose element begins at or before
    // the reported address.
    const u64* a = row<u64>(w, I.o[1]);
    u64 nearest = 64;
    for (int l = 0; l < 32; l++) {
      if (!((m >> l) & 1)) continue;
      u64 x = a[l] + I.imm;
      if (addr && addr - x < nearest) {
        nearest = addr - x;
        lane = l;
      }
      // the processor gives no address for one outside the 47 bits of user space
      if (!addr && lane < 0 && (x < 64 || x >> 47)) {
        lane = l;
        at = x;
      }
    }
  }
  if (lane < 0) lane = g ? __builtin_ctz(g->mask) : 0;
  char b[40];
  snprintf(b, sizeof b, "0x%llx at ", (unsigned long long)at);
  return b + where(w, w.frame->f, I, lane);
}

}  // namespace standin::ptx
