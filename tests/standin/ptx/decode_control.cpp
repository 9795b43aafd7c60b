// Calls, barriers, warp-wide instructions.
#include <algorithm>

#include "decoder.hpp"

namespace standin::ptx {

void Decoder::call() {
  Ins I;
  CallInfo ci;
  auto list = [&](std::vector<Slot>& out, bool args) {
    for (;;) {
      ws();
      if (eat(')')) break;
      if (eat(',')) continue;
      Opnd o = operand();
      if (o.k == Opnd::SYM && o.space == SP_PARAM) {
        u32 size = 0;
        for (size_t i = vars.size(); i-- > 0;)
          if (vars[i].name == o.name) {
            size = vars[i].size;
            break;
          }
        out.push_back({(u32)o.addr, size});
      } else if (args && (o.k == Opnd::REG || o.k == Opnd::IMM || o.k == Opnd::FLT)) {
        int z = o.k == Opnd::REG ? o.size : 8;
        param_top = (param_top + 15) / 16 * 16;
        Ins S;
        S.fn = find_op("st." + std::to_string(z) + "." + std::to_string(z));
        S.ak = AK_P;
        S.imm = param_top;
        put(S, 2, src(o, z), false);
        emit(S);
        out.push_back({param_top, (u32)z});
        param_top += z;
        param_max = std::max(param_max, param_top);
      } else if (!args && o.k == Opnd::REG) {
        param_top = (param_top + 15) / 16 * 16;
        out.push_back({param_top, o.size});
        ret_regs.push_back({o, param_top});
        param_top += o.size;
        param_max = std::max(param_max, param_top);
      } else
        bad("call operand");
    }
  };
  ret_regs.clear();
  ws();
  if (*p == '(') {
    p++;
    list(ci.rets, false);
    if (!more()) bad("','");
  }
  ws();
  sv name = ident();
  if (name.empty()) bad("callee expected");
  Opnd o;
  bool ind = find_reg(name, o);
  if (!ind) {
    ci.f = fn_token(name);
    f->callees.push_back(ci.f);
    I.kind = K_CALL;
  } else
    I.kind = K_CALLI;
  if (more()) {
    ws();
    if (p < e && *p == '(') {
      p++;
      list(ci.args, true);
      if (more()) ident();
    } else
      ident();
  }
  if (ind) put(I, 1, src(o, 8), false);
  I.target = (u32)f->calls.size();
  f->calls.push_back(ci);
  emit(I);
  for (auto& r : ret_regs) {
    Ins L;
    L.fn = find_op("ld." + std::to_string(r.first.size) + "u." + std::to_string(r.first.size));
    L.ak = AK_P;
    L.imm = r.second;
    put(L, 2, {true, r.first.v}, true);
    emit(L);
  }
}

void Decoder::barrier() {
  Ins I;
  I.kind = K_BAR;
  if (has("warp")) {
    I.kind = K_WSYNC;
    I.sub = W_SYNC;
    Opnd o = operand();
    put(I, 5, src(o, 4), false);
    emit(I);
    return;
  }
  if (has("cluster")) {
    if (has("arrive")) {
      I.kind = K_OP;
      I.fn = find_op("fence");
      emit(I);
      return;
    }
    I.sub = B_SYNC;
    put(I, 1, {false, constant(16, 4)}, false);
    emit(I);
    return;
  }
  if (has("red")) {
    I.sub = has("popc") ? B_POPC : has("and") ? B_AND : B_OR;
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd x = operand(), y;
    bool have = more();
    if (have) y = operand();
    Op oa = src(a, 4), ob{false, NONE};
    if (have)
      ob = src(x, 4);
    else
      y = x;
    Op op = pred_src(y);
    if (y.neg) I.flag |= 1;
    put(I, 1, oa, false);
    if (have) put(I, 2, ob, false);
    put(I, 3, op, false);
    put(I, 0, I.sub == B_POPC ? dst(d, 4) : dst_pred(d), true);
    emit(I);
    flush_after();
    return;
  }
  I.sub = has("arrive") ? B_ARRIVE : B_SYNC;
  Op oa{false, constant(0, 4)}, ob{false, NONE};
  ws();
  if (p < e && *p != ';') {
    Opnd a = operand();
    oa = src(a, 4);
    if (more()) {
      Opnd b = operand();
      ob = src(b, 4);
    }
  }
  put(I, 1, oa, false);
  if (ob.v != NONE || ob.reg) put(I, 2, ob, false);
  emit(I);
}

void Decoder::wsync(sv base) {
  Ins I;
  I.kind = K_WSYNC;
  bool sync = has("sync");
  auto mask = [&]() -> Op {
    if (!sync) return {false, NONE};
    if (!more()) bad("member mask expected");
    Opnd o = operand();
    return src(o, 4);
  };
  auto putmask = [&](Op o) {
    if (o.reg || o.v != NONE) put(I, 5, o, false);
  };
  Opnd d = operand();
  if (base == "shfl") {
    I.sub = has("up") ? W_SHFL_UP : has("down") ? W_SHFL_DOWN : has("bfly") ? W_SHFL_BFLY : W_SHFL_IDX;
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    more();
    Opnd c = operand();
    Op oa = src(a, 4, 4), ob = src(b, 4), oc = src(c, 4), om = mask();
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 3, oc, false);
    putmask(om);
    put(I, 0, dst(d, 4), true);
    if (d.second >= 0) put(I, 4, dst_pred(pool[d.second]), true);
  } else if (base == "vote") {
    I.sub = has("ballot") ? W_BALLOT : has("all") ? W_VOTE_ALL : has("any") ? W_VOTE_ANY : W_VOTE_UNI;
    more();
    Opnd a = operand();
    Op oa = pred_src(a);
    if (a.neg) I.flag |= 1;
    Op om = mask();
    put(I, 1, oa, false);
    putmask(om);
    put(I, 0, I.sub == W_BALLOT ? dst(d, 4) : dst(d, 0), true);
  } else if (base == "match") {
    I.sub = has("any") ? W_MATCH_ANY : W_MATCH_ALL;
    int z = tinfo(mods.back()).size;
    I.n = (u8)z;
    more();
    Opnd a = operand();
    Op oa = src(a, z), om = mask();
    put(I, 1, oa, false);
    putmask(om);
    if (d.k != Opnd::SINK || I.sub == W_MATCH_ANY) put(I, 0, dst(d, 4), true);
    if (d.second >= 0) put(I, 4, dst_pred(pool[d.second]), true);
  } else if (base == "redux") {
    bool s = has("s32"), fl = has("f32");
    I.flag = (has("NaN") ? FF_NAN : 0) | (has("abs") ? FF_XSA : 0);
    I.sub = has("add")   ? W_ADD
            : has("and") ? W_AND
            : has("or")  ? W_OR
            : has("xor") ? W_XOR
            : has("min") ? (fl  ? W_FMIN
                            : s ? W_MINS
                                : W_MIN)
                         : (fl  ? W_FMAX
                            : s ? W_MAXS
                                : W_MAX);
    more();
    Opnd a = operand();
    Op oa = src(a, 4), om = mask();
    put(I, 1, oa, false);
    putmask(om);
    put(I, 0, dst(d, 4), true);
  } else {  // elect
    I.sub = W_ELECT;
    Op om = mask();
    putmask(om);
    if (d.k != Opnd::SINK) put(I, 0, dst(d, 4), true);
    if (d.second < 0) bad("elect.sync needs a predicate");
    put(I, 4, dst(pool[d.second], 0), true);
  }
  emit(I);
  flush_after();
}

}  // namespace standin::ptx
