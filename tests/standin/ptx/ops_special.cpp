// Fences, clocks, traps.
#include <time.h>

#include "ops.hpp"

namespace standin::ptx {
namespace {
u64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}
u64 ticks() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000ull + t.tv_nsec;
}

}  // namespace

void install_special() {
  reg(
      "fence", +[](Warp&, const Ins&, u32) { std::atomic_thread_fence(std::memory_order_seq_cst); });
  reg(
      "nop", +[](Warp&, const Ins&, u32) {});
  reg(
      "activemask", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        ACTIVE(d[l] = m);
      });
  reg(
      "clock32", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        u32 t = (u32)ticks();
        w.poll = 1;
        ACTIVE(d[l] = t);
      });
  reg(
      "clockhi", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        u32 t = (u32)(ticks() >> 32);
        ACTIVE(d[l] = t);
      });
  reg(
      "clock64", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        u64 t = ticks();
        w.poll = 1;
        ACTIVE(d[l] = t);
      });
  reg(
      "gtimer", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        u64 t = now_ns();
        w.poll = 1;
        ACTIVE(d[l] = t);
      });
  reg(
      "gtimerlo", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        u32 t = (u32)now_ns();
        w.poll = 1;
        ACTIVE(d[l] = t);
      });
  reg(
      "gtimerhi", +[](Warp& w, const Ins& I, u32 m) {
        u32* d = row<u32>(w, I.o[0]);
        u32 t = (u32)(now_ns() >> 32);
        ACTIVE(d[l] = t);
      });
  reg(
      "trap", +[](Warp& w, const Ins&, u32 m) { fault_at(w, __builtin_ctz(m), "trap"); });
  reg(
      "fault", +[](Warp& w, const Ins& I, u32 m) { fault_at(w, __builtin_ctz(m), w.frame->f->notes[I.imm]); });
}

}  // namespace standin::ptx
