// Arithmetic, comparisons, moves, conversions.
#include "decoder.hpp"

namespace standin::ptx {

namespace {
const char* cmp_names[] = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi",
                           "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
std::string find_cmp(const std::vector<sv>& mods) {
  for (auto& x : mods)
    for (auto c : cmp_names)
      if (x == c) {
        if (x == "lo") return "lt";
        if (x == "ls") return "le";
        if (x == "hi") return "gt";
        if (x == "hs") return "ge";
        return c;
      }
  return "";
}
int ty_code(sv t) {
  static const std::pair<const char*, int> tab[] = {
      {"u8", T_U8},       {"s8", T_S8},       {"u16", T_U16},    {"s16", T_S16}, {"u32", T_U32},   {"s32", T_S32},
      {"u64", T_U64},     {"s64", T_S64},     {"b8", T_U8},      {"b16", T_U16}, {"b32", T_U32},   {"b64", T_U64},
      {"f16", T_F16},     {"bf16", T_BF16},   {"f32", T_F32},    {"f64", T_F64}, {"tf32", T_TF32}, {"f16x2", T_F16},
      {"bf16x2", T_BF16}, {"e4m3x2", T_E4M3}, {"e5m2x2", T_E5M2}};
  for (auto& x : tab)
    if (t == x.first) return x.second;
  return -1;
}
}  // namespace

void Decoder::setp() {
  TypeInfo t = tinfo(mods.back());
  std::string c = find_cmp(mods);
  if (t.size <= 0 || c.empty()) bad("setp form");
  Ins I;
  std::string k = "setp." + c + (has("ftz") && mods.back() == "f32" ? ".ftz" : "") + "." + t.ikey;
  I.fn = find_op(k);
  if (!I.fn) bad("unknown instruction (" + k + ")");
  I.sub = has("and") ? 1 : has("or") ? 2 : has("xor") ? 3 : 0;
  Opnd d = operand();
  if (!more()) bad("','");
  Opnd a = operand();
  if (!more()) bad("','");
  Opnd b = operand();
  int fl = t.flt && t.size >= 4 && (mods.back() == "f32" || mods.back() == "f64") ? t.size : 0;
  Op oa = src(a, t.size, fl), ob = src(b, t.size, fl);
  Op oc{false, NONE};
  if (I.sub) {
    if (!more()) bad("','");
    Opnd x = operand();
    oc = pred_src(x);
    if (x.neg) I.flag |= 0x80;
  }
  put(I, 1, oa, false);
  put(I, 2, ob, false);
  if (I.sub) put(I, 4, oc, false);
  put(I, 0, dst_pred(d), true);
  if (d.second >= 0) put(I, 3, dst_pred(pool[d.second]), true);
  emit(I);
}

void Decoder::set() {
  sv st = mods.back(), dt = mods[mods.size() - 2];
  TypeInfo s = tinfo(st), d = tinfo(dt);
  std::string c = find_cmp(mods);
  if (s.size <= 0 || d.size <= 0 || c.empty()) bad("set form");
  Ins I;
  std::string cls = dt == "f32"                                   ? "f"
                    : (dt == "u32" || dt == "s32" || dt == "b32") ? "i"
                    : (dt == "u16" || dt == "s16")                ? "i16"
                                                                  : "h";
  std::string k = "set." + c + "." + cls + (has("ftz") && st == "f32" ? ".ftz" : "") + "." + s.ikey;
  I.fn = find_op(k);
  if (!I.fn) bad("unknown instruction (" + k + ")");
  I.sub = has("and") ? 1 : has("or") ? 2 : has("xor") ? 3 : 0;
  I.aux2 = dt == "bf16" || dt == "bf16x2";
  Opnd o = operand();
  if (!more()) bad("','");
  Opnd a = operand();
  if (!more()) bad("','");
  Opnd b = operand();
  int fl = st == "f32" || st == "f64" ? s.size : 0;
  Op oa = src(a, s.size, fl), ob = src(b, s.size, fl), oc{false, NONE};
  if (I.sub) {
    if (!more()) bad("','");
    Opnd x = operand();
    oc = pred_src(x);
    if (x.neg) I.flag |= 0x80;
  }
  put(I, 1, oa, false);
  put(I, 2, ob, false);
  if (I.sub) put(I, 4, oc, false);
  put(I, 0, dst(o, d.size), true);
  emit(I);
  flush_after();
}

void Decoder::mov() {
  TypeInfo t = tinfo(mods.back());
  Opnd d = operand();
  if (!more()) bad("','");
  Opnd s = operand();
  Ins I;
  if (d.k == Opnd::VEC && s.k == Opnd::VEC) {
    if (d.list.size() != s.list.size()) bad("mov of unlike vectors");
    std::vector<Op> ops;
    int es = t.size / (int)d.list.size();
    // mov.v form copies element by element (through temporaries, so that the lists may overlap)
    for (size_t i = 0; i < d.list.size(); i++) {
      int z = d.list[i].size ? d.list[i].size : es;
      u32 tmp = newreg(z);
      Ins J;
      J.fn = find_op(std::string("mov.") + bkey(z));
      put(J, 1, src(s.list[i], z), false);
      put(J, 0, {true, tmp}, true);
      emit(J);
      ops.push_back({true, tmp});
    }
    for (size_t i = 0; i < d.list.size(); i++) {
      int z = d.list[i].size ? d.list[i].size : es;
      Ins J;
      J.fn = find_op(std::string("mov.") + bkey(z));
      put(J, 1, ops[i], false);
      put(J, 0, dst(d.list[i], z), true);
      emit(J);
    }
    return;
  }
  if (s.k == Opnd::VEC) {
    int n = (int)s.list.size(), es = t.size / n;
    I.fn = find_op("pk." + std::to_string(n) + "." + std::to_string(es));
    if (!I.fn) bad("mov pack form");
    std::vector<Op> ops;
    for (auto& o : s.list) ops.push_back(src(o, es < 2 ? 2 : es));
    for (int i = 0; i < n; i++) put(I, 1 + i, ops[i], false);
    put(I, 0, dst(d, t.size), true);
    emit(I);
    flush_after();
    return;
  }
  if (d.k == Opnd::VEC) {
    int n = (int)d.list.size(), es = t.size / n;
    I.fn = find_op("up." + std::to_string(n) + "." + std::to_string(es));
    if (!I.fn) bad("mov unpack form");
    put(I, 0, src(s, t.size), false);
    for (int i = 0; i < n; i++) put(I, 1 + i, dst(d.list[i], es < 2 ? 2 : es), true);
    emit(I);
    flush_after();
    return;
  }
  I.fn = find_op(std::string("mov.") + bkey(t.size));
  Op o = src(s, t.size, t.flt && t.size >= 4 ? t.size : 0);
  put(I, 1, o, false);
  put(I, 0, dst(d, t.size), true);
  emit(I);
  flush_after();
}

void Decoder::cvt() {
  std::vector<sv> ty;
  for (auto& x : mods)
    if (ty_code(x) >= 0) ty.push_back(x);
  if (has("pack")) {
    if (ty.size() < 2) bad("cvt.pack form");
    Ins I;
    I.fn = find_op("cvt.pack");
    I.aux = (u8)ty_code(ty[0]);
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    Op oa = src(a, 4), ob = src(b, 4), oc{false, NONE};
    if (more()) {
      Opnd c = operand();
      oc = src(c, 4);
    }
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    if (oc.v != NONE) put(I, 3, oc, false);
    put(I, 0, dst(d, 4), true);
    emit(I);
    flush_after();
    return;
  }
  if (ty.size() != 2) bad("unknown conversion");
  sv dt = ty[0], st = ty[1];
  u8 dc = (u8)ty_code(dt), sc = (u8)ty_code(st), fl = fflags(), rnd = rounding();
  bool dx2 = dt.size() > 4 && dt.substr(dt.size() - 2) == "x2", sx2 = st.size() > 4 && st.substr(st.size() - 2) == "x2";
  Ins I;
  I.sub = sc;
  I.aux = dc;
  I.flag = fl;
  I.aux2 = rnd;
  if (dx2 && !sx2) {
    if (st != "f32") bad("unknown conversion");
    I.fn = find_op("cvt.pack2");
    if (rnd == RN && !(fl & (FF_RELU | FF_SATFIN | FF_FTZ)) && (dc == T_F16 || dc == T_BF16))
      I.fn = find_op(dc == T_F16 ? "cvtf.f16x2.f32" : "cvtf.bf16x2.f32");
    Opnd d = operand();
    more();
    Opnd a = operand();
    if (!more()) bad("','");
    Opnd b = operand();
    Op oa = src(a, 4, 4), ob = src(b, 4, 4);
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 0, dst(d, dc >= T_E4M3 ? 2 : 4), true);
    emit(I);
    flush_after();
    return;
  }
  if (dx2 != sx2) bad("unknown conversion");
  if (dx2) {
    I.fn = find_op("cvt.x2");
    Opnd d = operand();
    more();
    Opnd a = operand();
    put(I, 1, src(a, sc == T_E4M3 || sc == T_E5M2 ? 2 : 4), false);
    put(I, 0, dst(d, dc == T_E4M3 || dc == T_E5M2 ? 2 : 4), true);
    emit(I);
    flush_after();
    return;
  }
  TypeInfo S = tinfo(st), D = tinfo(dt);
  bool integral = has("rni") || has("rzi") || has("rmi") || has("rpi");
  Opnd d = operand();
  if (!more()) bad("','");
  Opnd a = operand();
  int ssz = S.size < 2 ? 2 : S.size, dsz = D.size < 2 ? 2 : D.size;
  if (!S.flt && !D.flt && !(fl & FF_SAT))
    I.fn = find_op("cvt." + std::string(D.ikey) + "." + S.ikey);
  else {
    if (!fl || (fl == FF_FTZ && S.flt && D.flt && (sc == T_F16 || sc == T_BF16))) {
      std::string k = "cvtf." + std::string(dt) + "." + std::string(st);
      if (!D.flt && S.flt) {
        if (rnd == RZ) I.fn = find_op(k);
      } else if (!integral && rnd == RN)
        I.fn = find_op(k);
    }
    if (!I.fn) I.fn = find_op("cvt.any");
    // float to the same float type with an integer rounding mode, or none: rounding mode as given
    if (integral || (S.flt && !D.flt)) I.aux2 |= 8;
    if (S.flt && D.flt && !integral && rnd == RN && !has("rn")) I.aux2 = RN;
  }
  Op o = src(a, ssz, S.flt && S.size >= 4 ? S.size : 0);
  put(I, 1, o, false);
  put(I, 0, dst(d, dsz, D.sgn && !D.flt), true);
  emit(I);
  flush_after();
}

void Decoder::arith(sv base, sv type) {
  TypeInfo t = tinfo(type);
  if (t.size < 0) bad("unknown type");
  std::string B(base), T(t.ikey);
  Ins I;
  I.flag = fflags();
  I.aux = rounding();
  int z = t.size;
  int fl = type == "f32" ? 4 : type == "f64" ? 8 : 0;
  if (t.flt) {
    bool slow = I.aux != RN || (I.flag & FF_SAT);
    if (mods.size() >= 2 && tinfo(mods[mods.size() - 2]).size > 0 && base != "slct")
      bad("unknown instruction (mixed types)");
    if (base == "add" || base == "sub" || base == "mul" || base == "div" || base == "fma" || base == "mad") {
      if (base == "mad") B = "fma";
      std::string k = B + "." + T;
      bool three = B == "fma";
      if (fl == 4) {
        if (base == "div") {
          bool fast = !(I.flag & (FF_FTZ | FF_SAT)) && I.aux == RN;
          k = fast ? "div.f32" : "divx.f32";
        } else if (slow)
          k = (three ? "fmax.f32" : B + "x.f32");
        else
          k = B + (has("ftz") ? ".ftz.f32" : ".f32");
      } else if (fl == 8 && slow)
        k = three ? "fmax.f64" : B + "x.f64";
      if (three)
        simple(k, z, {z, z, z}, fl, I);
      else
        simple(k, z, {z, z}, fl, I);
      return;
    }
    if (base == "min" || base == "max" || base == "copysign") {
      simple(B + "." + T, z, {z, z}, fl, I);
      if (p < e) {
        ws();
        if (*p == ',') bad("three-input min/max");
      }
      return;
    }
    simple(B + "." + T, z, {z}, fl, I);  // abs neg rcp sqrt rsqrt ex2 lg2 sin cos tanh
    return;
  }
  if (base == "addc" || base == "subc" || base == "madc" || has("cc")) {
    if (cc == NONE) cc = newreg(0);
    bool in = B.back() == 'c', mad = base == "mad" || base == "madc";
    if (in) B.pop_back();
    I.sub = (in ? 1 : 0) | (has("cc") ? 2 : 0) | (has("hi") ? 4 : 0) | (t.sgn ? 8 : 0);
    I.fn = find_op(B + ".cc." + (z == 8 ? "64" : "32"));
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    Op oa = src(a, z), ob = src(b, z), oc{false, NONE};
    if (mad) {
      more();
      Opnd c = operand();
      oc = src(c, z);
      put(I, 3, oc, false);
    }
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 4, {true, cc}, false);
    if (has("cc")) put(I, 4, {true, cc}, true);
    put(I, 0, dst(d, z), true);
    emit(I);
    flush_after();
    return;
  }
  if (base == "mul" || base == "mad") {
    std::string mode = has("wide") ? "wide." : has("hi") ? "hi." : "lo.";
    int dz = has("wide") ? 2 * z : z;
    if (has("sat")) mode += "sat.";
    if (base == "mul")
      simple("mul." + mode + T, dz, {z, z}, 0, I);
    else
      simple("mad." + mode + T, dz, {z, z, dz}, 0, I);
    return;
  }
  if (base == "mul24") {
    simple("mul24.lo." + T, z, {z, z}, 0, I);
    return;
  }
  if ((base == "add" || base == "sub") && has("sat")) {
    simple(B + ".sat." + T, z, {z, z}, 0, I);
    return;
  }
  if (base == "sad") {
    simple("sad." + T, z, {z, z, z}, 0, I);
    return;
  }
  if (base == "abs" || base == "neg") {
    simple(B + "." + T, z, {z}, 0, I);
    return;
  }
  simple(B + "." + T, z, {z, z}, 0, I);
}

}  // namespace standin::ptx
