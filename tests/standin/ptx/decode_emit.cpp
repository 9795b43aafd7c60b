// Instructions as they are emitted: constants, sources and destinations of the wanted width, addresses.
#include "decoder.hpp"

namespace standin::ptx {

TypeInfo tinfo(sv t) {
  if (t == "u8" || t == "b8") return {1, false, false, "u8"};
  if (t == "s8") return {1, false, true, "s8"};
  if (t == "u16" || t == "b16") return {2, false, false, "u16"};
  if (t == "s16") return {2, false, true, "s16"};
  if (t == "u32" || t == "b32") return {4, false, false, "u32"};
  if (t == "s32") return {4, false, true, "s32"};
  if (t == "u64" || t == "b64") return {8, false, false, "u64"};
  if (t == "s64") return {8, false, true, "s64"};
  if (t == "f16") return {2, true, true, "f16"};
  if (t == "bf16") return {2, true, true, "bf16"};
  if (t == "f16x2") return {4, true, true, "f16x2"};
  if (t == "bf16x2") return {4, true, true, "bf16x2"};
  if (t == "f32") return {4, true, true, "f32"};
  if (t == "f64") return {8, true, true, "f64"};
  if (t == "f32x2") return {8, true, true, "f32x2"};
  if (t == "b128" || t == "u128" || t == "s128") return {16, false, false, "b128"};
  if (t == "pred") return {0, false, false, "pred"};
  if (t == "u16x2") return {4, false, false, "u16x2"};
  if (t == "s16x2") return {4, false, true, "s16x2"};
  if (t == "tf32") return {4, true, true, "tf32"};
  if (t == "e4m3x2") return {2, true, true, "e4m3x2"};
  if (t == "e5m2x2") return {2, true, true, "e5m2x2"};
  return {-1, false, false, ""};
}

u8 space_of(const std::vector<sv>& mods) {
  for (auto& x : mods) {
    if (x == "global") return SP_GLOBAL;
    if (x == "shared") return SP_SHARED;
    if (x == "const") return SP_CONST;
    if (x == "local") return SP_LOCAL;
    if (x == "param") return SP_PARAM;
  }
  return SP_GENERIC;
}

u32 Decoder::constant(u64 lo, int size, u64 hi) {
  if (size == 0)
    lo = lo ? 0xffffffffu : 0;
  else if (size == 2)
    lo &= 0xffff;
  else if (size == 4)
    lo &= 0xffffffffu;
  Key k{lo, hi, size};
  auto it = cmap.find(k);
  if (it != cmap.end()) return it->second;
  u32 bytes = size == 0 ? 64 : size * 32;
  u32 off = (u32)consts.size();
  consts.resize(off + bytes);
  for (int l = 0; l < 32; l++) {
    if (size == 16) {
      memcpy(&consts[off + 16 * l], &lo, 8);
      memcpy(&consts[off + 16 * l + 8], &hi, 8);
    } else if (size)
      memcpy(&consts[off + size * l], &lo, size);
  }
  if (!size) memcpy(&consts[off], &lo, 4);
  return cmap[k] = off | 1;
}

void Decoder::put(Ins& I, int slot, Op o, bool def) {
  if (o.reg) {
    pend.push_back({(u8)slot, (u8)def, o.v});
    I.o[slot] = 0;
  } else
    I.o[slot] = o.v;
}

u32 Decoder::emit(Ins& I, bool guarded) {
  if (!I.fn && I.kind == K_OP) bad("unknown instruction");
  u32 at = (u32)code.size();
  if (guarded && guard.v != NONE) {
    I.neg = guard_neg;
    if (guard.reg) {
      I.guard = 0;
      refs.push_back({at, 15, 0, guard.v});
    } else
      I.guard = guard.v;
  }
  I.src = (u32)(stmt - text);
  for (auto& q : pend) {
    if (q.def && guarded && guard.v != NONE) refs.push_back({at, 14, 0, q.v});  // a guarded write keeps the old value
    refs.push_back({at, q.slot, q.def, q.v});
  }
  pend.clear();
  code.push_back(I);
  return at;
}

void Decoder::flush_after() {
  auto list = std::move(after);
  after.clear();
  for (auto& a : list) {
    Ins I;
    std::string k =
        (a.sgn && a.dsize > a.ssize ? "mvs." : "mv.") + std::to_string(a.dsize) + "." + std::to_string(a.ssize);
    I.fn = find_op(k);
    put(I, 1, {true, a.src}, false);
    put(I, 0, {true, a.dst}, true);
    emit(I);
  }
}

Op Decoder::resize(Op o, int have, int want, bool sgn) {
  if (have == want) return o;
  if (have == 0 || want == 0) bad("predicate where a number is expected, or the reverse");
  Ins I;
  I.fn = find_op((sgn && want > have ? "mvs." : "mv.") + std::to_string(want) + "." + std::to_string(have));
  if (!I.fn) bad("register width");
  u32 t = newreg(want);
  auto keep = std::move(pend);
  pend.clear();
  put(I, 1, o, false);
  put(I, 0, {true, t}, true);
  emit(I, false);
  pend = std::move(keep);
  return {true, t};
}

Op Decoder::src(const Opnd& o, int size, int flt, bool sgn) {
  switch (o.k) {
    case Opnd::REG:
      return resize({true, o.v}, o.size, size, sgn);
    case Opnd::ENC:
      return resize({false, o.v}, o.size, size, sgn);
    case Opnd::IMM: {
      if (flt == 4 && size == 4) return {false, constant(bitcast<u32>((float)(i64)o.imm), 4)};
      if (flt == 8) return {false, constant(bitcast<u64>((double)(i64)o.imm), 8)};
      return {false, constant(o.imm, size, size == 16 && (i64)o.imm < 0 ? ~0ull : 0)};
    }
    case Opnd::FLT: {
      double d = o.fkind == 4 ? bitcast<float>((u32)o.imm) : bitcast<double>(o.imm);
      if (size == 4) return {false, constant(o.fkind == 4 ? o.imm : (u64)bitcast<u32>((float)d), 4)};
      if (size == 8) return {false, constant(o.fkind == 8 ? o.imm : o.fkind == 4 && !flt ? o.imm : bitcast<u64>(d), 8)};
      return {false, constant(o.imm, size)};
    }
    case Opnd::SYM: {
      if (o.space == SP_LOCAL || o.space == SP_PARAM || o.space == SP_KPARAM) {
        u32 t = newreg(8);
        Ins I;
        I.fn = find_op("addr");
        I.ak = o.space == SP_LOCAL ? AK_L : o.space == SP_PARAM ? AK_P : AK_K;
        I.imm = (i64)o.addr;
        auto keep = std::move(pend);
        pend.clear();
        put(I, 0, {true, t}, true);
        emit(I, false);
        pend = std::move(keep);
        return resize({true, t}, 8, size);
      }
      return {false, constant(o.addr, size)};
    }
    case Opnd::NAME:
      return {false, constant((u64)fn_token(o.name), size)};
    default:
      bad("unexpected operand");
  }
}

Op Decoder::dst(const Opnd& o, int size, bool sgn) {
  if (o.k == Opnd::SINK) return {true, newreg(size)};
  if (o.k != Opnd::REG) bad("destination register expected");
  if (o.size == size) return {true, o.v};
  if (o.size == 0 || size == 0) bad("predicate destination mismatch");
  u32 t = newreg(size);
  after.push_back({o.v, t, o.size, (u8)size, sgn});
  return {true, t};
}

u8 Decoder::rounding() const {
  for (auto& x : mods) {
    if (x == "rn" || x == "rni") return RN;
    if (x == "rz" || x == "rzi") return RZ;
    if (x == "rm" || x == "rmi") return RM;
    if (x == "rp" || x == "rpi") return RP;
    if (x == "rna") return RNA;
  }
  return RN;
}

u8 Decoder::fflags() const {
  return (has("ftz") ? FF_FTZ : 0) | (has("sat") ? FF_SAT : 0) | (has("relu") ? FF_RELU : 0) |
         (has("satfinite") ? FF_SATFIN : 0) | (has("NaN") ? FF_NAN : 0) | (has("xorsign") ? FF_XSA : 0);
}

void Decoder::simple(const std::string& key, int ds, std::initializer_list<int> ss, int flt, Ins I, bool dsgn) {
  I.fn = find_op(key);
  if (!I.fn) bad("unknown instruction (" + key + ")");
  Opnd d = operand();
  std::vector<Op> s;
  for (int w : ss) {
    if (!more()) bad("',' expected");
    Opnd o = operand();
    s.push_back(src(o, w, flt && w == flt ? flt : 0));
  }
  put(I, 0, dst(d, ds, dsgn), true);
  for (size_t i = 0; i < s.size(); i++) put(I, 1 + (int)i, s[i], false);
  emit(I);
  flush_after();
}

void Decoder::address(Ins& I, bool shared) {  // "[...]" into ak, imm, o[1]
  need('[');
  ws();
  Opnd o;
  i64 off = 0;
  if (number(o)) {
    I.ak = shared ? AK_SC : AK_C;
    off = (i64)o.imm;
  } else {
    sv n = ident();
    resolve(n, o);
    if (o.k == Opnd::REG || o.k == Opnd::ENC) {
      Op r = o.k == Opnd::REG ? Op{true, o.v} : Op{false, o.v};
      if (o.size == 4)
        I.ak = shared ? AK_S32 : AK_G32;
      else if (o.size == 8)
        I.ak = shared ? AK_S64 : AK_G;
      else
        bad("address register width");
      addr_op = r;
      addr_is = true;
    } else if (o.k == Opnd::SYM) {
      off = (i64)o.addr;
      switch (o.space) {
        case SP_LOCAL:
          I.ak = AK_L;
          break;
        case SP_PARAM:
          I.ak = AK_P;
          break;
        case SP_KPARAM:
          I.ak = AK_K;
          break;
        case SP_SHARED:
          I.ak = AK_SC;
          break;
        default:
          I.ak = AK_C;
      }
    } else
      bad("unknown symbol '" + std::string(n) + "'");
  }
  for (;;) {
    ws();
    if (p < e && (*p == '+' || *p == '-')) {
      bool mi = *p == '-';
      p++;
      ws();
      Opnd x;
      if (!number(x)) bad("offset expected");
      off += mi ? -(i64)x.imm : (i64)x.imm;
    } else
      break;
  }
  need(']');
  I.imm = off;
}

}  // namespace standin::ptx
