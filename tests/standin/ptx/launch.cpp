// Launches: CTAs in turn, giving the processor away while nothing but waiting happens.
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>

#include "runner.hpp"

namespace standin::ptx {

thread_local SmemPool tl_smem;

namespace {
double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// IEEE arithmetic, whatever the calling thread has set.
struct IeeeArithmetic {
#if defined(__SSE__)
  unsigned csr = _mm_getcsr();
  IeeeArithmetic() {
    _mm_setcsr(0x1f80);
  }
  ~IeeeArithmetic() {
    _mm_setcsr(csr);
  }
#endif
};
}  // namespace

void Runner::start_cta(u64 n) {
  Cta* c;
  if (!cpool.empty()) {
    c = cpool.back();
    cpool.pop_back();
  } else {
    c = new Cta;
    c->smem = nullptr;
    call_.push_back(c);
    c->smem = tl_smem.get();
  }
  c->id[0] = (u32)(n % grid[0]);
  c->id[1] = (u32)(n / grid[0] % grid[1]);
  c->id[2] = (u32)(n / grid[0] / grid[1]);
  u32 threads = block[0] * block[1] * block[2];
  c->alive = threads;
  c->nwarps = c->warps_alive = (threads + 31) / 32;
  c->done = false;
  c->warps.clear();
  for (auto& b : c->bars) b = Barrier();
  for (u32 i = 0; i < c->nwarps; i++) {
    Warp* w;
    if (!wpool.empty()) {
      w = wpool.back();
      wpool.pop_back();
    } else {
      w = new Warp;
      wall.push_back(w);
    }
    w->cta = c;
    w->run = this;
    w->id = (int)i;
    w->frames.clear();
    w->poll = w->progress = w->spin = w->quiet = 0;
    w->ip = nullptr;
    w->npolled = 0;
    memset(w->polled, 0, sizeof w->polled);
    u32 n0 = std::min<u32>(32, threads - i * 32);
    u32 live = n0 == 32 ? ~0u : (1u << n0) - 1;
    w->dead = ~live;
    auto fill = [&](int s, u32 v) {
      for (int l = 0; l < 32; l++) w->sp[s][l] = v;
    };
    for (u32 l = 0; l < 32; l++) {
      u32 t = i * 32 + l;
      w->sp[S_TIDX][l] = t % block[0];
      w->sp[S_TIDY][l] = t / block[0] % block[1];
      w->sp[S_TIDZ][l] = t / block[0] / block[1];
      w->sp[S_LANE][l] = l;
      w->sp[S_LMEQ][l] = 1u << l;
      w->sp[S_LMLT][l] = (1u << l) - 1;
      w->sp[S_LMLE][l] = ((1u << l) - 1) | 1u << l;
      w->sp[S_LMGE][l] = ~((1u << l) - 1);
      w->sp[S_LMGT][l] = ~(((1u << l) - 1) | 1u << l);
    }
    fill(S_WARPID, i);
    fill(S_NWARPID, 64);
    fill(S_NTIDX, block[0]);
    fill(S_NTIDY, block[1]);
    fill(S_NTIDZ, block[2]);
    fill(S_CTAX, c->id[0]);
    fill(S_CTAY, c->id[1]);
    fill(S_CTAZ, c->id[2]);
    fill(S_NCTAX, grid[0]);
    fill(S_NCTAY, grid[1]);
    fill(S_NCTAZ, grid[2]);
    fill(S_SMID, (u32)(n % 132));
    fill(S_NSMID, 132);
    fill(S_DYNSMEM, dyn);
    fill(S_TOTSMEM, dyn + prog->static_end - SH_BASE);
    fill(S_ZERO, 0);
    fill(S_ONE, 1);
    fill(S_ENV1, (u32)((u64)coop >> 32));
    fill(S_ENV2, (u32)(u64)coop);
    fill(S_AGGSMEM, dyn);
    w->base[2] = (char*)w->sp;
    w->base[3] = nullptr;
    Frame* fr = new_frame(*w, kernel, nullptr);
    fr->live = live;
    w->ng = 1;
    w->g[0] = Group{fr, 0, live, G_RUN, false, 0, 0};
    c->warps.push_back(w);
  }
  active.push_back(c);
}

void Runner::go() {
  size_t window = 64;
  u32 idle = 0, passes = 0;
  double limit = 0, t0 = seconds();
  if (const char* e = getenv("STANDIN_PTX_TIMEOUT_S")) limit = atof(e);
  for (;;) {
    while (next < total && active.size() < window) start_cta(next++);
    if (active.empty()) return;
    bool prog_made = false, runnable = false, fin = false;
    for (size_t i = 0; i < active.size(); i++) {
      Cta* c = active[i];
      for (Warp* w : c->warps) {
        bool can = false;
        for (int k = 0; k < w->ng; k++)
          if (w->g[k].st == G_RUN) {
            can = true;
            break;
          }
        if (!can) continue;
        runnable = true;
        if (run_warp(*w)) prog_made = true;
      }
      if (c->done) {
        fin = true;
        finish_cta(c);
        active.erase(active.begin() + i);
        i--;
      }
    }
    if (fin) {
      idle = 0;
      continue;
    }
    if (!runnable) {
      if (next < total) {
        window += 64;
        continue;
      }
      throw Fault("deadlock: every thread waits" + report());
    }
    passes++;
    if (next < total && (!prog_made || passes % 16 == 0)) window += 64;
    if (!prog_made) {
      idle++;
      if (idle < 100)
        sched_yield();
      else
        usleep(idle < 1000 ? 20 : 100);
    } else
      idle = 0;
    if (limit > 0 && seconds() - t0 > limit)
      throw Fault("time limit of " + std::to_string(limit) + " s passed (STANDIN_PTX_TIMEOUT_S)" + report());
  }
}

std::string launch(Program& P, const std::string& name, const Launch& L, Stats* st) {
  std::unique_ptr<Runner> R(new Runner);
  Guard guard;
  Guard* outer = tl_guard;
  IeeeArithmetic arithmetic;
  try {
    Func* f = entry_of(P, name);
    if (!f) return "no kernel named " + name;
    P.ensure(f);
    u64 threads = (u64)L.block[0] * L.block[1] * L.block[2];
    if (!threads || threads > 1024) return "kernel " + name + ": bad block size";
    R->total = (u64)L.grid[0] * L.grid[1] * L.grid[2];
    if (!R->total) return "kernel " + name + ": empty grid";
    if (L.param_bytes < f->param_bytes && f->param_bytes)
      return "kernel " + name + ": " + std::to_string(L.param_bytes) + " parameter bytes given, " +
             std::to_string(f->param_bytes) + " needed";
    if (L.dynamic_shared_bytes > SH_DYN_MAX) return "kernel " + name + ": too much dynamic shared memory";
    R->prog = &P;
    R->kernel = f;
    R->L = &L;
    R->dyn = (u32)L.dynamic_shared_bytes;
    for (int i = 0; i < 3; i++) {
      R->grid[i] = L.grid[i];
      R->block[i] = L.block[i];
    }
    std::vector<char> params((f->param_bytes + 63) / 64 * 64 + 64);
    char* pp = (char*)(((u64)params.data() + 63) & ~63ull);
    if (f->param_bytes) memcpy(pp, L.params, f->param_bytes);
    R->params = pp;
    ((u32*)R->coop)[0] = 64;
    install_handlers();
    if (sigsetjmp(guard.jb, 1) == 0) {
      tl_guard = &guard;
      R->go();
      tl_guard = outer;
      if (st) st->thread_instructions = R->ninst;
      return "";
    }
    tl_guard = outer;
    if (st) st->thread_instructions = R->ninst;
    std::string what = guard.sig == SIGFPE ? "arithmetic signal" : "bad address";
    return what + " " + R->last_where((u64)guard.addr);
  } catch (std::exception& e) {
    tl_guard = outer;
    return e.what();
  }
}

}  // namespace standin::ptx
