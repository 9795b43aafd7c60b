// Atomics and mbarrier objects.
#include "half.hpp"
#include "ops_memory.hpp"

namespace standin::ptx {
namespace {
template <class T>
T atom_int(u8 op, T* p, T b, T c, bool sg) {
  using S = std::make_signed_t<T>;
  switch (op) {
    case A_ADD:
      return __atomic_fetch_add(p, b, __ATOMIC_SEQ_CST);
    case A_EXCH:
      return __atomic_exchange_n(p, b, __ATOMIC_SEQ_CST);
    case A_AND:
      return __atomic_fetch_and(p, b, __ATOMIC_SEQ_CST);
    case A_OR:
      return __atomic_fetch_or(p, b, __ATOMIC_SEQ_CST);
    case A_XOR:
      return __atomic_fetch_xor(p, b, __ATOMIC_SEQ_CST);
    case A_CAS: {
      T e = b;
      __atomic_compare_exchange_n(p, &e, c, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
      return e;
    }
    default:
      break;
  }
  T o = __atomic_load_n(p, __ATOMIC_RELAXED), n;
  do {
    switch (op) {
      case A_MIN:
        n = sg ? (T)((S)o < (S)b ? o : b) : (o < b ? o : b);
        break;
      case A_MAX:
        n = sg ? (T)((S)o > (S)b ? o : b) : (o > b ? o : b);
        break;
      case A_INC:
        n = o >= b ? 0 : o + 1;
        break;
      default:
        n = (o == 0 || o > b) ? b : o - 1;
        break;
    }
  } while (!__atomic_compare_exchange_n(p, &o, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return o;
}
template <class U, class F>
U cas_loop(U* p, F f) {
  U o = __atomic_load_n(p, __ATOMIC_RELAXED), n;
  do n = f(o);
  while (!__atomic_compare_exchange_n(p, &o, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return o;
}
u64 atom_one(Warp& w, int l, u8 ty, u8 op, u64 a, u64 b, u64 c) {
  switch (ty) {
    case AT_U32:
      return atom_int<u32>(op, (u32*)a, (u32)b, (u32)c, false);
    case AT_S32:
      return atom_int<u32>(op, (u32*)a, (u32)b, (u32)c, true);
    case AT_U64:
      return atom_int<u64>(op, (u64*)a, b, c, false);
    case AT_S64:
      return atom_int<u64>(op, (u64*)a, b, c, true);
    case AT_B16:
      return op == A_CAS || op == A_EXCH ? atom_int<u16>(op, (u16*)a, (u16)b, (u16)c, false) : 0;
    case AT_F32: {
      bool fz = !(a - (u64)w.cta->smem < (u64)SH_DYN + SH_DYN_MAX) && op == A_ADD;
      return cas_loop((u32*)a, [&](u32 o) {
        float x = bitcast<float>(o), y = bitcast<float>((u32)b);
        if (op == A_MIN) return bitcast<u32>(f32min(x, y, 0));
        if (op == A_MAX) return bitcast<u32>(f32max(x, y, 0));
        return bitcast<u32>(fz ? ftz(canon(ftz(x) + ftz(y))) : canon(x + y));
      });
    }
    case AT_F64:
      return cas_loop((u64*)a, [&](u64 o) {
        double x = bitcast<double>(o), y = bitcast<double>(b);
        return bitcast<u64>(op == A_MIN ? f64min(x, y) : op == A_MAX ? f64max(x, y) : x + y);
      });
    case AT_F16:
    case AT_BF16:
      return cas_loop((u16*)a, [&](u16 o) {
        Ins z;
        z.flag = 0;
        u16 y = (u16)b;
        if (ty == AT_F16)
          return op == A_MIN ? hmin<Half>(o, y, z) : op == A_MAX ? hmax<Half>(o, y, z) : hadd<Half>(o, y, z);
        return op == A_MIN ? hmin<Bf>(o, y, z) : op == A_MAX ? hmax<Bf>(o, y, z) : hadd<Bf>(o, y, z);
      });
    case AT_F16X2:
    case AT_BF16X2:
      return cas_loop((u32*)a, [&](u32 o) {
        Ins z;
        z.flag = 0;
        u32 r = 0;
        for (int i = 0; i < 32; i += 16) {
          u16 x = (u16)(o >> i), y = (u16)(b >> i), q;
          if (ty == AT_F16X2)
            q = op == A_MIN ? hmin<Half>(x, y, z) : op == A_MAX ? hmax<Half>(x, y, z) : hadd<Half>(x, y, z);
          else
            q = op == A_MIN ? hmin<Bf>(x, y, z) : op == A_MAX ? hmax<Bf>(x, y, z) : hadd<Bf>(x, y, z);
          r |= (u32)q << i;
        }
        return r;
      });
  }
  fault_at(w, l, "atomic type not supported");
}
int atom_bytes(u8 t) {
  return t == AT_U64 || t == AT_S64 || t == AT_F64    ? 8
         : t == AT_F16 || t == AT_BF16 || t == AT_B16 ? 2
         : t == AT_B128                               ? 16
                                                      : 4;
}
// sub op, aux type, n vector width; o[1] address, o[2..] b, o[6] c (or d elements 2.. for vectors: o[6+i])
void atom(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  int es = atom_bytes(I.aux), n = I.n ? I.n : 1;
  addresses(w, I, m, A, es * n);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (I.aux == AT_B128) {
    ACTIVE(
        if (A[l] & 15) misaligned(w, l, A[l], 16); typedef unsigned __int128 Q; Q b = row<Q>(w, I.o[2])[l]; Q old;
        volatile Q* p = (volatile Q*)A[l]; if (I.sub == A_CAS) {
          Q c = row<Q>(w, I.o[6])[l];
          old = __sync_val_compare_and_swap(p, b, c);
          if (old == b)
            w.progress = 1;
          else
            w.poll = 1;
        } else {
          old = *p;
          for (;;) {
            Q s = __sync_val_compare_and_swap(p, old, b);
            if (s == old) break;
            old = s;
          }
          w.progress = 1;
        } if (I.o[0] != NONE) row<Q>(w, I.o[0])[l] = old);
    return;
  }
  for (u32 q = m; q; q &= q - 1) {
    int l = __builtin_ctz(q);
    if (A[l] & (es - 1)) misaligned(w, l, A[l], es);
    u64 bv[4] = {};
    for (int i = 0; i < n; i++) bv[i] = get_el(row<char>(w, I.o[2 + i]), es, l);
    for (int i = 0; i < n; i++) {
      u64 b = bv[i], c = I.sub == A_CAS ? get_el(row<char>(w, I.o[6]), es, l) : 0;
      u64 old = atom_one(w, l, I.aux, I.sub, A[l] + i * es, b, c);
      bool changed;
      switch (I.sub) {
        case A_CAS:
          changed = old == b && b != c;
          break;
        case A_EXCH:
          changed = old != b;
          break;
        case A_ADD:
          changed = b != 0;
          break;
        case A_OR:
          changed = (old | b) != old;
          break;
        case A_AND:
          changed = (old & b) != old;
          break;
        default:
          changed = true;
      }
      if (changed)
        w.progress = 1;
      else
        w.poll = 1;
      u32 dst = n == 1 ? I.o[0] : (i < 4 && I.o[6 + i] != NONE ? I.o[6 + i] : NONE);
      if (dst != NONE) put_el(row<char>(w, dst), es, l, old);
    }
  }
}
// The 64-bit mbarrier object, whose layout PTX leaves open: pending(20) expected(20) tx(22 signed) phase(1)
struct MBar {
  u32 pending, expected;
  i32 tx;
  u32 phase;
};
MBar mb_get(u64 v) {
  return {(u32)(v & 0xfffff), (u32)((v >> 20) & 0xfffff), (i32)((i64)(v << 2) >> 42), (u32)(v >> 63)};
}
u64 mb_put(const MBar& b) {
  return (u64)(b.pending & 0xfffff) | (u64)(b.expected & 0xfffff) << 20 | ((u64)(u32)b.tx & 0x3fffff) << 40 |
         (u64)b.phase << 63;
}
void mb_settle(MBar& b) {
  if (b.pending == 0 && b.tx == 0) {
    b.phase ^= 1;
    b.pending = b.expected;
  }
}
// sub: 0 init 1 inval 2 arrive 3 arrive_drop 4 test_wait 5 test_wait.parity 6 expect_tx 7 arrive.expect_tx 8
// complete_tx 9 pending_count
void mbarrier(Warp& w, const Ins& I, u32 m) {
  alignas(64) u64 A[32];
  if (I.sub == 9) {
    u32* d = row<u32>(w, I.o[0]);
    const u64* s = row<u64>(w, I.o[2]);
    ACTIVE(d[l] = mb_get(s[l]).pending);
    return;
  }
  addresses(w, I, m, A, 8);
  if (I.sub == 4 || I.sub == 5) {
    u32 r = 0;
    ACTIVE(MBar b = mb_get(*(volatile u64*)A[l]);
           u32 ph = I.sub == 4 ? mb_get(row<u64>(w, I.o[2])[l]).phase : row<u32>(w, I.o[2])[l] & 1;
           if (b.phase != ph) r |= 1u << l);
    if (r)
      w.progress = 1;
    else
      w.poll = 1;
    u32& p = predrow(w, I.o[0]);
    p = (p & ~m) | (r & m);
    return;
  }
  ACTIVE(volatile u64* p = (volatile u64*)A[l]; if (A[l] & 7) misaligned(w, l, A[l], 8);
         u32 cnt = I.o[2] != NONE ? row<u32>(w, I.o[2])[l] : 1; MBar b = mb_get(*p); u64 old = *p; switch (I.sub) {
           case 0:
             b = {cnt, cnt, 0, 0};
             break;
           case 1:
             b = {0, 0, 0, 0};
             break;
           case 2:
             b.pending -= cnt;
             mb_settle(b);
             break;
           case 3:
             b.pending -= cnt;
             b.expected -= cnt;
             mb_settle(b);
             break;
           case 6:
             b.tx += cnt;
             break;
           case 7:
             b.tx += cnt;
             b.pending -= 1;
             mb_settle(b);
             break;
           case 8:
             b.tx -= cnt;
             mb_settle(b);
             break;
         }* p = mb_put(b);
         if (I.o[0] != NONE) row<u64>(w, I.o[0])[l] = old);
  w.progress = 1;
}

}  // namespace

void install_atomics() {
  reg("atom", atom);
  reg("mbarrier", mbarrier);
}

}  // namespace standin::ptx
