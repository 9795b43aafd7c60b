// One launch: its CTAs, warps and frames, and how they are scheduled.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>

#include "ir.hpp"

namespace standin::ptx {

// Where a bad address of the kernel that this thread runs continues.
struct Guard {
  sigjmp_buf jb;
  volatile int sig;
  void* volatile addr;
};
extern thread_local Guard* tl_guard;
void install_handlers();

int wait_class(u8 op);
std::string ins_text(Func* f, const Ins& I);
int ins_line(Func* f, const Ins& I);
std::string where(Warp& w, Func* f, const Ins& I, int lane);

constexpr size_t SMEM_SPAN = (size_t)SH_DYN + SH_DYN_MAX;

// memory of finished launches kept for the next ones of the same thread
struct SmemPool {
  std::vector<char*> freel;
  ~SmemPool() {
    for (char* p : freel) munmap(p, SMEM_SPAN);
  }
  char* get() {
    if (!freel.empty()) {
      char* p = freel.back();
      freel.pop_back();
      return p;
    }
    void* p = mmap(nullptr, SMEM_SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw Fault("no memory for shared memory");
    madvise(p, SMEM_SPAN, MADV_NOHUGEPAGE);
    return (char*)p;
  }
  void put(char* p) {
    if (freel.size() < 256)
      freel.push_back(p);
    else
      munmap(p, SMEM_SPAN);
  }
};
extern thread_local SmemPool tl_smem;

struct Runner : Run {
  std::vector<Cta*> active;
  std::vector<Frame*> freef;  // by function id
  std::vector<void*> blocks;  // every frame allocated
  std::vector<Warp*> wpool, wall;
  std::vector<Cta*> cpool, call_;
  u64 total = 0, next = 0;
  Warp* cur = nullptr;

  ~Runner() {
    for (Cta* c : call_) {
      if (c->smem) tl_smem.put(c->smem);
      delete c;
    }
    for (Warp* w : wall) delete w;
    for (void* b : blocks) free(b);
  }

  Frame* new_frame(Warp& w, Func* f, Frame* parent) {
    if ((size_t)f->id >= freef.size()) freef.resize(f->id + 16, nullptr);
    Frame* fr = freef[f->id];
    if (fr)
      freef[f->id] = fr->next_free;
    else {
      size_t h = (sizeof(Frame) + 63) / 64 * 64,
             n = h + f->reg_bytes + 32 * (size_t)f->local_stride + 32 * (size_t)f->param_stride + 64;
      n = (n + 63) / 64 * 64;
      fr = (Frame*)aligned_alloc(64, n);
      if (!fr) throw Fault("out of memory");
      blocks.push_back(fr);
      fr->f = f;
      fr->regs = (char*)fr + h;
      fr->local = fr->regs + f->reg_bytes;
      fr->local = (char*)(((u64)fr->local + 15) & ~15ull);
      fr->param = fr->local + 32 * (size_t)f->local_stride;
      memset(fr->regs, 0, f->reg_bytes);
    }
    fr->parent = parent;
    fr->live = 0;
    fr->depth = parent ? parent->depth + 1 : 0;
    w.frames.push_back(fr);
    return fr;
  }
  void drop_frame(Warp& w, Frame* fr) {
    for (size_t i = 0; i < w.frames.size(); i++)
      if (w.frames[i] == fr) {
        w.frames[i] = w.frames.back();
        w.frames.pop_back();
        break;
      }
    fr->next_free = freef[fr->f->id];
    freef[fr->f->id] = fr;
  }

  void start_cta(u64 n);
  void finish_cta(Cta* c) {
    for (Warp* w : c->warps) wpool.push_back(w);
    c->warps.clear();
    cpool.push_back(c);
  }

  // ---- groups ----
  static int order(const Group& a, const Group& b) {
    if (a.fr == b.fr) return a.pc < b.pc ? -1 : a.pc > b.pc;
    Frame *x = a.fr, *y = b.fr;
    u64 pa = (u64)a.pc * 2, pb = (u64)b.pc * 2;
    int la = __builtin_ctz(a.mask), lb = __builtin_ctz(b.mask);
    auto up = [](Frame*& f, u64& p, int l) {
      p = ((u64)f->retpc[l] - 1) * 2 + 1;
      f = f->parent;
    };
    while (x->depth > y->depth) up(x, pa, la);
    while (y->depth > x->depth) up(y, pb, lb);
    while (x != y) {
      up(x, pa, la);
      up(y, pb, lb);
    }
    return pa < pb ? -1 : pa > pb ? 1 : a.fr < b.fr ? -1 : 1;
  }
  static void remove_group(Warp& w, int i) { w.g[i] = w.g[--w.ng]; }
  static int pick(Warp& w) {
    int best = -1;
    for (int i = 0; i < w.ng; i++)
      if (w.g[i].st == G_RUN && !w.g[i].pen && (best < 0 || order(w.g[i], w.g[best]) < 0)) best = i;
    if (best < 0) return -1;
    for (int i = w.ng - 1; i >= 0; i--) {
      if (i == best) continue;
      Group &a = w.g[best], &b = w.g[i];
      if (b.st == G_RUN && b.fr == a.fr && b.pc == a.pc) {
        a.mask |= b.mask;
        if (best == w.ng - 1) best = i;
        remove_group(w, i);
      }
    }
    return best;
  }
  static u32 next_stop(Warp& w, int ci, u32 pc) {
    u32 s = NONE;
    Frame* fr = w.g[ci].fr;
    for (int i = 0; i < w.ng; i++)
      if (i != ci && w.g[i].st == G_RUN && w.g[i].fr == fr && w.g[i].pc > pc && w.g[i].pc < s) s = w.g[i].pc;
    return s;
  }
  void add_group(Warp& w, Frame* fr, u32 pc, u32 mask) { w.g[w.ng++] = Group{fr, pc, mask, G_RUN, false, 0, 0}; }

  // ---- barriers ----
  static bool complete(Cta& c, const Barrier& b) {
    return b.expected > 0 ? b.warps >= (u32)b.expected : b.threads >= c.alive;
  }
  void bar_result(Warp& w, Frame* fr, const Ins& I, u32 m, const Barrier& b);
  void release(Cta& c, int id);

  // completes a rendezvous of the groups waiting with member mask sm, if all needed lanes are there
  bool try_wsync(Warp& w, u32 sm, int cls);

  void kill(Warp& w, u32 m);

  // ---- built-in functions ----
  void do_printf(Frame* fr, const CallInfo& ci, int l);
  void builtin(Warp& w, Frame* fr, const CallInfo& ci, Func* f, u32 m);

  int run_warp(Warp& w);
  std::string report();
  std::string last_where(u64 addr);
  void go();
};

}  // namespace standin::ptx
