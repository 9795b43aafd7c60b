// Loads, stores, address spaces, asynchronous copies.
#include <stdio.h>

#include "ops_memory.hpp"

namespace standin::ptx {

void misaligned(Warp& w, int l, u64 a, int n) {
  char b[80];
  snprintf(b, sizeof b, "misaligned %d-byte access at 0x%llx", n, (unsigned long long)a);
  fault_at(w, l, b);
}
void check_shared(Warp& w, const u64* off, u32 m, u32 bytes) {
  const i64 statics = w.run->prog->static_end.load(std::memory_order_relaxed) - (i64)bytes;
  const i64 dynamics = (i64)SH_DYN + w.run->dyn - bytes;
  if (m == ~0u) {
    // Without branches for the vector unit; which lane it was matters only when there is one.
    bool outside = false;
    for (int l = 0; l < 32; l++) {
      i64 a = (i64)off[l];
      outside |= (a < 0) | (a > ((a < (i64)SH_DYN) ? statics : dynamics));
    }
    if (!outside) return;
  }
  ACTIVE(i64 a = (i64)off[l]; if (a < 0 || a > (a < (i64)SH_DYN ? statics : dynamics)) {
    char b[96];
    snprintf(b, sizeof b, "shared address 0x%llx (%u bytes) outside the CTA's shared memory", (unsigned long long)a,
             bytes);
    fault_at(w, l, b);
  });
}

namespace {
// The common case of whole warps: lane l's element lies l elements behind lane 0's, aligned.
template <class M>
bool consecutive(const u64* A, u32 m) {
  if (m != ~0u || (A[0] & (sizeof(M) - 1))) return false;
  u64 differs = 0;
  for (u64 l = 0; l < 32; l++) differs |= (A[l] - A[0]) ^ (l * sizeof(M));
  return !differs;
}

// Whole warps with 32-bit shared addresses, the bulk of tiled kernels: the offsets from the CTA's memory, or false when
// one of them needs a closer look.
template <class M>
bool shared_offsets(Warp& w, const Ins& I, u32 m, u32* off) {
  if (I.ak != AK_S32 || m != ~0u || I.flag) return false;
  const u32* a = row<u32>(w, I.o[1]);
  const u32 statics = w.run->prog->static_end.load(std::memory_order_relaxed) - (u32)sizeof(M);
  const i32 dynamics = (i32)w.run->dyn - (i32)sizeof(M);
  u32 bad = 0;
  for (int l = 0; l < 32; l++) {
    u32 x = a[l] + (u32)I.imm;
    off[l] = x;
    bad |= x & (sizeof(M) - 1);
    // both sides of each comparison lie far below 2^31 unless the address is a stray one
    i32 sx = (i32)x, in_dynamic = sx - (i32)SH_DYN;
    bad |= (u32)(sx < 0) | ((u32)(sx > (i32)statics) & ((u32)(in_dynamic < 0) | (u32)(in_dynamic > dynamics)));
  }
  return !bad;
}

template <class M, class R>
void ld1(Warp& w, const Ins& I, u32 m) {
  if constexpr (sizeof(M) >= 4) {
    alignas(64) u32 off[32];
    if (shared_offsets<M>(w, I, m, off)) {
      const char* base = w.cta->smem;
      R* d = row<R>(w, I.o[2]);
      for (int l = 0; l < 32; l++) d[l] = (R) * (const volatile M*)(base + off[l]);
      return;
    }
  }
  alignas(64) u64 A[32];
  addresses(w, I, m, A, sizeof(M));
  if (I.flag & FL_SC) std::atomic_thread_fence(std::memory_order_seq_cst);
  R* d = row<R>(w, I.o[2]);
  if constexpr (sizeof(M) == sizeof(R) && sizeof(M) >= 4)
    if (!I.flag && consecutive<M>(A, m)) {
      memcpy(d, (const void*)A[0], 32 * sizeof(M));
      return;
    }
  for (u32 q = m; q; q &= q - 1) {
    int l = __builtin_ctz(q);
    if (sizeof(M) > 1 && __builtin_expect(A[l] & (sizeof(M) - 1), 0)) misaligned(w, l, A[l], sizeof(M));
    d[l] = (R) * (volatile M*)A[l];
  }
  after_load(w, I, A, m);
}
// same-size vectors
template <class M, int N>
void ldv(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  addresses(w, I, m, A, sizeof(M) * N);
  if (I.flag & FL_SC) std::atomic_thread_fence(std::memory_order_seq_cst);
  M* d[N];
  for (int i = 0; i < N; i++) d[i] = row<M>(w, I.o[2 + i]);
  ACTIVE(alignas(32) M buf[N]; load_block(w, l, A[l], sizeof(M) * N, (char*)buf);
         for (int i = 0; i < N; i++) d[i][l] = buf[i]);
  after_load(w, I, A, m);
}
template <class M, int N>
void stv(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  addresses(w, I, m, A, sizeof(M) * N);
  const M* s[N];
  for (int i = 0; i < N; i++) s[i] = row<M>(w, I.o[2 + i]);
  if (I.flag & FL_REL) std::atomic_thread_fence(std::memory_order_release);
  ACTIVE(alignas(32) M buf[N]; for (int i = 0; i < N; i++) buf[i] = s[i][l];
         store_block(w, l, A[l], sizeof(M) * N, (const char*)buf));
  w.progress = 1;
}
// any vector: sub = element bytes, aux = signed, n = count, aux2 = register bytes
void ld_any(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  int es = I.sub, n = I.n, total = es * n;
  addresses(w, I, m, A, total);
  char* d[8];
  for (int i = 0; i < n; i++) d[i] = row<char>(w, I.o[2 + i]);
  ACTIVE(alignas(32) char buf[64]; load_block(w, l, A[l], total, buf); for (int i = 0; i < n; i++) {
    if (es == 16) {
      memcpy(d[i] + 16 * l, buf + 16 * i, 16);
      continue;
    }
    u64 v = 0;
    memcpy(&v, buf + i * es, es);
    if (I.aux) v = es == 1 ? (u64)(i64)(i8)v : es == 2 ? (u64)(i64)(i16)v : es == 4 ? (u64)(i64)(i32)v : v;
    put_el(d[i], I.aux2, l, v);
  });
  after_load(w, I, A, m);
}
void st_any(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  int es = I.sub, n = I.n, total = es * n;
  addresses(w, I, m, A, total);
  const char* s[8];
  for (int i = 0; i < n; i++) s[i] = row<char>(w, I.o[2 + i]);
  if (I.flag & FL_REL) std::atomic_thread_fence(std::memory_order_release);
  ACTIVE(alignas(32) char buf[64]; for (int i = 0; i < n; i++) {
    if (es == 16) {
      memcpy(buf + 16 * i, s[i] + 16 * l, 16);
      continue;
    }
    u64 v = get_el(s[i], I.aux2, l);
    memcpy(buf + i * es, &v, es);
  } store_block(w, l, A[l], total, buf));
  w.progress = 1;
}
template <class M, class R>
void st1(Warp& w, const Ins& I, u32 m) {
  if constexpr (sizeof(M) >= 4) {
    alignas(64) u32 off[32];
    if (shared_offsets<M>(w, I, m, off)) {
      char* base = w.cta->smem;
      const R* s = row<R>(w, I.o[2]);
      for (int l = 0; l < 32; l++) *(volatile M*)(base + off[l]) = (M)s[l];
      w.progress = 1;
      return;
    }
  }
  alignas(64) u64 A[32];
  addresses(w, I, m, A, sizeof(M));
  const R* s = row<R>(w, I.o[2]);
  if (I.flag & FL_REL) std::atomic_thread_fence(std::memory_order_release);
  if constexpr (sizeof(M) == sizeof(R) && sizeof(M) >= 4)
    if (!I.flag && consecutive<M>(A, m)) {
      memcpy((void*)A[0], s, 32 * sizeof(M));
      w.progress = 1;
      return;
    }
  for (u32 q = m; q; q &= q - 1) {
    int l = __builtin_ctz(q);
    if (sizeof(M) > 1 && __builtin_expect(A[l] & (sizeof(M) - 1), 0)) misaligned(w, l, A[l], sizeof(M));
    *(volatile M*)A[l] = (M)s[l];
  }
  w.progress = 1;
}
template <class R>
void ld_reg(const std::string& r) {
  reg("ld.1u." + r, ld1<u8, R>);
  reg("ld.1s." + r, ld1<i8, std::make_signed_t<R>>);
  reg("ld.2u." + r, ld1<u16, R>);
  reg("ld.2s." + r, ld1<i16, std::make_signed_t<R>>);
  if (sizeof(R) >= 4) {
    reg("ld.4u." + r, ld1<u32, R>);
    reg("ld.4s." + r, ld1<i32, std::make_signed_t<R>>);
  }
  if (sizeof(R) >= 8) {
    reg("ld.8u." + r, ld1<u64, R>);
    reg("ld.8s." + r, ld1<u64, R>);
  }
  reg("st.1." + r, st1<u8, R>);
  reg("st.2." + r, st1<u16, R>);
  if (sizeof(R) >= 4) reg("st.4." + r, st1<u32, R>);
  if (sizeof(R) >= 8) reg("st.8." + r, st1<u64, R>);
}

bool in_shared(Warp& w, u64 a) {
  return a - (u64)w.cta->smem < (u64)SH_DYN + SH_DYN_MAX;
}
bool in_local(Warp& w, u64 a) {
  for (Frame* f : w.frames)
    if (f->f->local_stride && a - (u64)f->local < 32ull * f->f->local_stride) return true;
  return false;
}

}  // namespace

void install_memory() {
  ld_reg<u16>("2");
  ld_reg<u32>("4");
  ld_reg<u64>("8");
  reg("ldv.4.2", ldv<u32, 2>);
  reg("ldv.4.4", ldv<u32, 4>);
  reg("ldv.8.2", ldv<u64, 2>);
  reg("ldv.2.2", ldv<u16, 2>);
  reg("ldv.2.4", ldv<u16, 4>);
  reg("ldv.8.4", ldv<u64, 4>);
  reg("ldv.4.8", ldv<u32, 8>);
  reg("stv.4.2", stv<u32, 2>);
  reg("stv.4.4", stv<u32, 4>);
  reg("stv.8.2", stv<u64, 2>);
  reg("stv.2.2", stv<u16, 2>);
  reg("stv.2.4", stv<u16, 4>);
  reg("stv.8.4", stv<u64, 4>);
  reg("stv.4.8", stv<u32, 8>);
  reg("ld.any", ld_any);
  reg("st.any", st_any);
  reg(
      "addr", +[](Warp& w, const Ins& I, u32 m) {  // address of a local or parameter variable
        alignas(64) u64 A[32];
        addresses(w, I, m, A, 0);
        u64* d = row<u64>(w, I.o[0]);
        LANES(d[l] = A[l]);
      });
  reg(
      "cvta.shared", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        const u64* a = row<u64>(w, I.o[1]);
        u64 b = (u64)w.cta->smem;
        LANES(d[l] = a[l] + b);
      });
  reg(
      "cvta.to.shared", +[](Warp& w, const Ins& I, u32 m) {
        u64* d = row<u64>(w, I.o[0]);
        const u64* a = row<u64>(w, I.o[1]);
        u64 b = (u64)w.cta->smem;
        LANES(d[l] = a[l] - b);
      });
  reg(
      "isspacep", +[](Warp& w, const Ins& I, u32 m) {  // sub: 0 global 1 shared 2 local 3 never
        const u64* a = row<u64>(w, I.o[1]);
        u32 r = 0;
        ACTIVE(bool s = in_shared(w, a[l]); bool lo = !s && in_local(w, a[l]); bool x = I.sub == 0   ? !s && !lo
                                                                                        : I.sub == 1 ? s
                                                                                        : I.sub == 2 ? lo
                                                                                                     : false;
               r |= (u32)x << l);
        u32& p = predrow(w, I.o[0]);
        p = (p & ~m) | (r & m);
      });
  // cp.async: o[1]/ak/imm shared destination, o[2] global source (64-bit), imm offset of the source in target, sub
  // bytes, o[3] source size or NONE, o[4] ignore-src predicate
  reg(
      "cpasync", +[](Warp& w, const Ins& I, u32 m) {
        alignas(64) u64 A[32];
        addresses(w, I, m, A, I.sub);
        const u64* s = row<u64>(w, I.o[2]);
        ACTIVE(alignas(16) char buf[16] = {}; u64 a = s[l] + (i64)(i32)I.target;
               u32 n = I.o[3] != NONE ? row<u32>(w, I.o[3])[l] : I.sub; if (n > I.sub) n = I.sub;
               if (I.o[4] != NONE && ((predrow(w, I.o[4]) >> l) & 1)) n = 0;
               if (a & (I.sub - 1)) misaligned(w, l, a, I.sub); if (n == I.sub) load_block(w, l, a, n, buf);
               else memcpy(buf, (void*)a, n); store_block(w, l, A[l], I.sub, buf));
        w.progress = 1;
      });
}

}  // namespace standin::ptx
