// Loads, stores, atomics.
#include <algorithm>

#include "decoder.hpp"

namespace standin::ptx {

void Decoder::load() {
  u8 sp = space_of(mods);
  TypeInfo t = tinfo(mods.back());
  if (t.size <= 0) bad("load type");
  Ins I;
  if (has("volatile") || has("relaxed") || has("acquire") || has("mmio") || has("cv")) I.flag |= FL_POLL;
  if (has("acquire")) I.flag |= FL_ACQ;
  if (has("sc")) I.flag |= FL_SC;
  Opnd d = operand();
  if (!more()) bad("',' expected");
  address(I, sp == SP_SHARED);
  if (more()) operand();  // cache policy
  bool sgn = t.sgn && !t.flt;
  std::vector<Opnd> list = d.k == Opnd::VEC ? d.list : std::vector<Opnd>{d};
  int n = (int)list.size();
  int want = (has("v2") ? 2 : has("v4") ? 4 : has("v8") ? 8 : 1);
  if (n != want) bad("vector width");
  int rs = t.size < 2 ? 2 : t.size;
  bool first = true;
  for (auto& o : list)
    if (o.k == Opnd::REG) {
      if (first) {
        rs = std::max<int>(rs, o.size);
        first = false;
      }
    }
  if (t.size == 16 || n > 1) {
    if (n > 8 || t.size * n > 64) bad("vector width");
    bool same = rs == t.size;
    if (t.size < 16 && same) I.fn = find_op("ldv." + std::to_string(t.size) + "." + std::to_string(n));
    if (!I.fn) {
      I.fn = find_op("ld.any");
      I.sub = (u8)t.size;
      I.aux = sgn;
      I.n = (u8)n;
      I.aux2 = (u8)rs;
    }
  } else
    I.fn = find_op("ld." + std::to_string(t.size) + (sgn ? "s." : "u.") + std::to_string(rs));
  put_addr(I);
  for (int i = 0; i < n; i++) put(I, 2 + i, dst(list[i], rs, sgn), true);
  emit(I);
  flush_after();
}

void Decoder::store() {
  u8 sp = space_of(mods);
  TypeInfo t = tinfo(mods.back());
  if (t.size <= 0) bad("store type");
  Ins I;
  if (has("volatile") || has("relaxed") || has("mmio")) I.flag |= FL_POLL;
  if (has("release")) I.flag |= FL_REL;
  if (has("async")) bad("st.async");
  address(I, sp == SP_SHARED);
  Op a = addr_op;
  bool ais = addr_is;
  addr_is = false;
  if (!more()) bad("',' expected");
  Opnd s = operand();
  if (more()) operand();
  std::vector<Opnd> list = s.k == Opnd::VEC ? s.list : std::vector<Opnd>{s};
  int n = (int)list.size();
  int want = (has("v2") ? 2 : has("v4") ? 4 : has("v8") ? 8 : 1);
  if (n != want) bad("vector width");
  int rs = t.size < 2 ? 2 : t.size;
  if (n == 1 && t.size < 16)
    for (auto& o : list)
      if (o.k == Opnd::REG || o.k == Opnd::ENC) rs = std::max<int>(rs, o.size);
  std::vector<Op> ops;
  for (auto& o : list) ops.push_back(src(o, rs, t.flt ? t.size : 0));
  if (n > 1 || t.size == 16) {
    if (t.size < 16 && rs == t.size) I.fn = find_op("stv." + std::to_string(t.size) + "." + std::to_string(n));
    if (!I.fn) {
      I.fn = find_op("st.any");
      I.sub = (u8)t.size;
      I.n = (u8)n;
      I.aux2 = (u8)rs;
    }
  } else
    I.fn = find_op("st." + std::to_string(t.size) + "." + std::to_string(rs));
  if (ais) put(I, 1, a, false);
  for (int i = 0; i < n; i++) put(I, 2 + i, ops[i], false);
  emit(I);
}

void Decoder::atomic(bool red) {
  u8 sp = space_of(mods);
  static const std::pair<const char*, u8> ops[] = {{"add", A_ADD}, {"min", A_MIN}, {"max", A_MAX}, {"exch", A_EXCH},
                                                   {"cas", A_CAS}, {"and", A_AND}, {"or", A_OR},   {"xor", A_XOR},
                                                   {"inc", A_INC}, {"dec", A_DEC}};
  int op = -1;
  for (auto& x : ops)
    if (has(x.first)) op = x.second;
  sv ty;
  for (auto& x : mods)
    if (tinfo(x).size > 0) ty = x;
  if (op < 0 || ty.empty() || has("async")) bad("atomic operation");
  Ins I;
  I.fn = find_op("atom");
  I.sub = (u8)op;
  if (ty == "u32" || ty == "b32")
    I.aux = AT_U32;
  else if (ty == "s32")
    I.aux = AT_S32;
  else if (ty == "u64" || ty == "b64")
    I.aux = AT_U64;
  else if (ty == "s64")
    I.aux = AT_S64;
  else if (ty == "f32")
    I.aux = AT_F32;
  else if (ty == "f64")
    I.aux = AT_F64;
  else if (ty == "f16")
    I.aux = AT_F16;
  else if (ty == "bf16")
    I.aux = AT_BF16;
  else if (ty == "f16x2")
    I.aux = AT_F16X2;
  else if (ty == "bf16x2")
    I.aux = AT_BF16X2;
  else if (ty == "b16" || ty == "u16")
    I.aux = AT_B16;
  else if (ty == "b128")
    I.aux = AT_B128;
  else
    bad("atomic type");
  // exchange of a float is an exchange of its bits
  if (op == A_EXCH || op == A_CAS) {
    int s = tinfo(ty).size;
    I.aux = s == 2 ? AT_B16 : s == 4 ? AT_U32 : s == 8 ? AT_U64 : AT_B128;
  }
  int es = tinfo(ty).size;
  int flt = tinfo(ty).flt && es >= 4 && ty[0] == 'f' && ty.size() == 3 ? es : 0;
  Opnd d;
  d.k = Opnd::SINK;
  if (!red) {
    d = operand();
    if (!more()) bad("',' expected");
  }
  address(I, sp == SP_SHARED);
  Op a = addr_op;
  bool ais = addr_is;
  addr_is = false;
  if (!more()) bad("',' expected");
  Opnd b = operand();
  std::vector<Op> bs;
  std::vector<Opnd> bl = b.k == Opnd::VEC ? b.list : std::vector<Opnd>{b};
  if (bl.size() > 4) bad("atomic vector");
  for (auto& x : bl) bs.push_back(src(x, es, flt));
  Op c{false, NONE};
  if (op == A_CAS) {
    if (!more()) bad("',' expected");
    Opnd o = operand();
    c = src(o, es, flt);
  }
  if (more()) operand();
  I.n = (u8)bl.size();
  if (ais) put(I, 1, a, false);
  for (size_t i = 0; i < bs.size(); i++) put(I, 2 + (int)i, bs[i], false);
  if (op == A_CAS) put(I, 6, c, false);
  if (!red) {
    if (bl.size() == 1) {
      if (d.k != Opnd::SINK) put(I, 0, dst(d, es), true);
    } else if (d.k == Opnd::VEC)
      for (size_t i = 0; i < d.list.size() && i < 4; i++) put(I, 6 + (int)i, dst(d.list[i], es), true);
  }
  emit(I);
  flush_after();
}

}  // namespace standin::ptx
