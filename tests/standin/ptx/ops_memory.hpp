// Addresses of a memory instruction's lanes, and what memory accesses tell the scheduler.
#pragma once
#include "ops.hpp"

namespace standin::ptx {

[[noreturn]] void misaligned(Warp& w, int lane, u64 address, int bytes);
void check_shared(Warp& w, const u64* offsets, u32 m, u32 bytes);
inline void addresses(Warp& w, const Ins& I, u32 m, u64* A, u32 bytes) {
  i64 im = I.imm;
  switch (I.ak) {
    case AK_G: {
      const u64* a = row<u64>(w, I.o[1]);
      for (int l = 0; l < 32; l++) A[l] = a[l] + im;
      break;
    }
    case AK_G32: {
      const u32* a = row<u32>(w, I.o[1]);
      for (int l = 0; l < 32; l++) A[l] = (u64)a[l] + im;
      break;
    }
    case AK_S32: {
      const u32* a = row<u32>(w, I.o[1]);
      for (int l = 0; l < 32; l++) A[l] = (u32)(a[l] + (u32)im);
      goto shared;
    }
    case AK_S64: {
      const u64* a = row<u64>(w, I.o[1]);
      for (int l = 0; l < 32; l++) A[l] = a[l] + im;
      goto shared;
    }
    case AK_SC:
      for (int l = 0; l < 32; l++) A[l] = im;
    shared:
      check_shared(w, A, m, bytes);
      for (int l = 0; l < 32; l++) A[l] += (u64)w.cta->smem;
      break;
    case AK_L: {
      u64 b = (u64)w.frame->local + im, s = w.frame->f->local_stride;
      for (int l = 0; l < 32; l++) A[l] = b + l * s;
      break;
    }
    case AK_P: {
      u64 b = (u64)w.frame->param + im, s = w.frame->f->param_stride;
      for (int l = 0; l < 32; l++) A[l] = b + l * s;
      break;
    }
    case AK_K:
      for (int l = 0; l < 32; l++) A[l] = (u64)w.run->params + im;
      break;
    default:
      for (int l = 0; l < 32; l++) A[l] = im;
      break;
  }
}
// A strong load of a place read not long ago looks like waiting; one of a new place is progress.
inline void note_poll(Warp& w, u64 a) {
  for (int i = 0; i < 8; i++)
    if (w.polled[i] == a) {
      w.poll = 1;
      return;
    }
  w.polled[w.npolled++ & 7] = a;
  w.progress = 1;
}
inline void after_load(Warp& w, const Ins& I, const u64* A, u32 m) {
  if (I.flag & FL_POLL) {
    note_poll(w, A[__builtin_ctz(m)]);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  if (I.flag & FL_ACQ) std::atomic_thread_fence(std::memory_order_acquire);
}
typedef long long V2 __attribute__((vector_size(16)));
// 16 bytes in one access of the processor, which is how kernels publish data and flag together.
inline V2 load16(u64 a) {
#if defined(__x86_64__)
  V2 x;
  asm volatile("movdqa %1, %0" : "=x"(x) : "m"(*(V2*)a) : "memory");
  return x;
#else
  return *(volatile V2*)a;
#endif
}
inline void store16(u64 a, V2 x) {
#if defined(__x86_64__)
  asm volatile("movdqa %1, %0" : "=m"(*(V2*)a) : "x"(x) : "memory");
#else
  *(volatile V2*)a = x;
#endif
}
inline void load_block(Warp& w, int l, u64 a, int n, char* buf) {
  if (a & (n - 1)) misaligned(w, l, a, n);
  switch (n) {
    case 1:
      *buf = *(volatile char*)a;
      break;
    case 2:
      *(u16*)buf = *(volatile u16*)a;
      break;
    case 4:
      *(u32*)buf = *(volatile u32*)a;
      break;
    case 8:
      *(u64*)buf = *(volatile u64*)a;
      break;
    case 16:
      *(V2*)buf = load16(a);
      break;
    default:
      for (int i = 0; i < n; i += 16) *(V2*)(buf + i) = load16(a + i);
  }
}
inline void store_block(Warp& w, int l, u64 a, int n, const char* buf) {
  if (a & (n - 1)) misaligned(w, l, a, n);
  switch (n) {
    case 1:
      *(volatile char*)a = *buf;
      break;
    case 2:
      *(volatile u16*)a = *(u16*)buf;
      break;
    case 4:
      *(volatile u32*)a = *(u32*)buf;
      break;
    case 8:
      *(volatile u64*)a = *(u64*)buf;
      break;
    case 16:
      store16(a, *(V2*)buf);
      break;
    default:
      for (int i = 0; i < n; i += 16) store16(a + i, *(const V2*)(buf + i));
  }
}

}  // namespace standin::ptx
