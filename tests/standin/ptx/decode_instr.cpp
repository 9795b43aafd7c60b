// One instruction: modifiers, then what its name asks for.
#include "decoder.hpp"

namespace standin::ptx {

void Decoder::instr(sv op) {
  mods.clear();
  size_t i = 0;
  sv base;
  for (bool first = true; i <= op.size();) {
    size_t j = op.find('.', i);
    if (j == sv::npos) j = op.size();
    sv part = op.substr(i, j - i);
    i = j + 1;
    if (first) {
      base = part;
      first = false;
      continue;
    }
    if (part.empty()) continue;
    size_t c = part.find("::");
    if (c != sv::npos) {
      sv h = part.substr(0, c);
      if (h == "L1" || h == "L2" || h == "level") continue;
      if (h == "shared" || h == "param") part = h;
    }
    mods.push_back(part);
  }
  auto is = [&](auto... s) { return ((base == s) || ...); };
  sv type = mods.empty() ? sv() : mods.back();
  Ins I;
  if (is("mov")) return mov();
  if (is("ld", "ldu")) {
    if (has("matrix")) bad("unknown instruction");
    return load();
  }
  if (is("st")) {
    if (has("bulk")) bad("unknown instruction");
    return store();
  }
  if (is("setp")) return setp();
  if (is("cvt")) return cvt();
  if (is("bra")) {
    I.kind = K_BRA;
    sv l = ident();
    u32 at = emit(I);
    fixes.push_back({at, l, scope, -1, 0});
    return;
  }
  if (is("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "addc", "subc", "madc", "sad",
         "mul24", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign"))
    return arith(base, type);
  if (is("and", "or", "xor")) {
    TypeInfo t = tinfo(type);
    std::string k = t.size ? std::string(bkey(t.size)) : "pred";
    if (t.size) return simple(std::string(base) + "." + k, t.size, {t.size, t.size}, 0);
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    I.fn = find_op(std::string(base) + ".pred");
    Op oa = pred_src(a), ob = pred_src(b);
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 0, dst(d, 0), true);
    emit(I);
    return;
  }
  if (is("not", "cnot")) {
    TypeInfo t = tinfo(type);
    return simple(std::string(base) + "." + bkey(t.size), t.size, {t.size}, 0);
  }
  if (is("shl", "shr")) {
    TypeInfo t = tinfo(type);
    return simple(std::string(base) + "." + t.ikey, t.size, {t.size, 4}, 0);
  }
  if (is("selp")) {
    TypeInfo t = tinfo(type);
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    if (!more()) bad("','");
    Opnd c = operand();
    I.fn = find_op(std::string("selp.") + bkey(t.size));
    I.flag = c.neg;
    int fl = t.flt && t.size >= 4 ? t.size : 0;
    Op oa = src(a, t.size, fl), ob = src(b, t.size, fl), oc = pred_src(c);
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 3, oc, false);
    put(I, 0, dst(d, t.size), true);
    emit(I);
    flush_after();
    return;
  }
  if (is("slct")) {
    TypeInfo t = tinfo(mods[mods.size() - 2]), u = tinfo(type);
    return simple("slct." + std::to_string(t.size * 8) + "." + u.ikey, t.size, {t.size, t.size, 4}, 0, I);
  }
  if (is("set")) return set();
  if (is("ret")) {
    I.kind = K_RET;
    emit(I);
    return;
  }
  if (is("exit")) {
    I.kind = K_EXIT;
    emit(I);
    return;
  }
  if (is("call")) return call();
  if (is("bar", "barrier")) return barrier();
  if (is("shfl", "vote", "match", "redux", "elect")) return wsync(base);
  if (is("atom")) return atomic(false);
  if (is("red")) return atomic(true);
  if (is("cvta")) {
    u8 sp = space_of(mods);
    int z = tinfo(type).size;
    Opnd d = operand();
    more();
    Opnd a = operand();
    if (sp == SP_SHARED) {
      I.fn = find_op(has("to") ? "cvta.to.shared" : "cvta.shared");
      put(I, 1, src(a, 8), false);
      put(I, 0, dst(d, 8), true);
    } else {
      I.fn = find_op(std::string("mov.") + bkey(z));
      put(I, 1, src(a, z), false);
      put(I, 0, dst(d, z), true);
    }
    emit(I);
    flush_after();
    return;
  }
  if (is("isspacep")) {
    Opnd d = operand();
    more();
    Opnd a = operand();
    I.fn = find_op("isspacep");
    I.sub = has("global") ? 0 : has("shared") ? 1 : has("local") ? 2 : 3;
    put(I, 1, src(a, 8), false);
    put(I, 0, dst(d, 0), true);
    emit(I);
    return;
  }
  if (is("popc", "clz")) {
    int z = tinfo(type).size;
    return simple(std::string(base) + "." + bkey(z), 4, {z}, 0);
  }
  if (is("brev")) {
    int z = tinfo(type).size;
    return simple("brev." + std::string(bkey(z)), z, {z}, 0);
  }
  if (is("bfind")) {
    TypeInfo t = tinfo(type);
    return simple(std::string("bfind.") + (has("shiftamt") ? "shiftamt." : "") + t.ikey, 4, {t.size}, 0);
  }
  if (is("bfe")) {
    TypeInfo t = tinfo(type);
    return simple(std::string("bfe.") + t.ikey, t.size, {t.size, 4, 4}, 0);
  }
  if (is("bfi")) {
    int z = tinfo(type).size;
    return simple("bfi." + std::string(bkey(z)), z, {z, z, 4, 4}, 0);
  }
  if (is("fns")) return simple("fns.b32", 4, {4, 4, 4}, 0);
  if (is("bmsk")) return simple(has("wrap") ? "bmsk.wrap.b32" : "bmsk.clamp.b32", 4, {4, 4}, 0);
  if (is("szext"))
    return simple(std::string("szext.") + (has("wrap") ? "wrap." : "clamp.") + tinfo(type).ikey, 4, {4, 4}, 0);
  if (is("prmt")) {
    static const char* modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
    for (int k = 0; k < 6; k++)
      if (type == modes[k] || has(modes[k])) {
        I.sub = (u8)k;
        return simple("prmt.mode", 4, {4, 4, 4}, 0, I);
      }
    return simple("prmt.b32", 4, {4, 4, 4}, 0);
  }
  if (is("shf"))
    return simple(std::string("shf.") + (has("l") ? "l." : "r.") + (has("clamp") ? "clamp" : "wrap") + ".b32", 4,
                  {4, 4, 4}, 0);
  if (is("lop3")) {
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    Opnd b = operand();
    more();
    Opnd c = operand();
    more();
    Opnd l = operand();
    Op oa = src(a, 4), ob = src(b, 4), oc = src(c, 4);
    I.imm = (i64)l.imm;
    put(I, 1, oa, false);
    put(I, 2, ob, false);
    put(I, 3, oc, false);
    if (has("or") || has("and")) {
      more();
      Opnd q = operand();
      I.fn = find_op("lop3.bool");
      I.sub = has("or") ? 1 : 2;
      I.flag = q.neg;
      put(I, 5, pred_src(q), false);
      if (d.k != Opnd::SINK) put(I, 0, dst(d, 4), true);
      if (d.second >= 0)
        put(I, 4, dst(pool[d.second], 0), true);
      else
        bad("lop3 predicate");
    } else {
      I.fn = find_op("lop3.b32");
      put(I, 0, dst(d, 4), true);
    }
    emit(I);
    flush_after();
    return;
  }
  if (is("dp4a")) {
    I.sub = (mods[0] == "s32" ? 1 : 0) | (mods[1] == "s32" ? 2 : 0);
    return simple("dp4a.any", 4, {4, 4, 4}, 0, I);
  }
  if (is("dp2a")) {
    I.sub = (mods[1] == "s32" ? 1 : 0) | (mods[2] == "s32" ? 2 : 0) | (has("hi") ? 4 : 0);
    return simple("dp2a.any", 4, {4, 4, 4}, 0, I);
  }
  if (is("testp")) {
    I.sub = has("finite") ? 0 : has("infinite") ? 1 : has("number") ? 2 : has("notanumber") ? 3 : has("normal") ? 4 : 5;
    return simple(std::string("testp.") + tinfo(type).ikey, 0, {tinfo(type).size}, tinfo(type).size, I);
  }
  if (is("activemask")) {
    Opnd d = operand();
    I.fn = find_op("activemask");
    put(I, 0, dst(d, 4), true);
    emit(I);
    return;
  }
  if (is("membar", "fence")) {
    if (has("tensormap")) bad("unknown instruction");
    I.fn = find_op("fence");
    emit(I);
    to_semicolon();
    p--;
    return;
  }
  if (is("prefetch", "prefetchu", "discard", "applypriority", "griddepcontrol", "pmevent", "setmaxnreg")) {
    I.fn = find_op("nop");
    emit(I);
    to_semicolon();
    p--;
    return;
  }
  if (is("createpolicy")) {
    Opnd d = operand();
    I.fn = find_op("mov.b64");
    put(I, 1, {false, constant(0, 8)}, false);
    put(I, 0, dst(d, 8), true);
    emit(I);
    flush_after();
    to_semicolon();
    p--;
    return;
  }
  if (is("nanosleep")) {
    operand();
    I.kind = K_SLEEP;
    emit(I);
    return;
  }
  if (is("trap", "brkpt")) {
    I.fn = find_op("trap");
    emit(I);
    return;
  }
  if (is("brx")) {
    Opnd a = operand();
    more();
    sv t = ident();
    I.kind = K_BRX;
    put(I, 1, src(a, 4), false);
    u32 at = emit(I);
    brx_fix.push_back({at, t});
    return;
  }
  if (is("mapa")) {
    Opnd d = operand();
    more();
    Opnd a = operand();
    more();
    operand();
    int z = tinfo(type).size;
    I.fn = find_op(std::string("mov.") + bkey(z));
    put(I, 1, src(a, z), false);
    put(I, 0, dst(d, z), true);
    emit(I);
    flush_after();
    return;
  }
  if (is("getctarank")) {
    Opnd d = operand();
    more();
    operand();
    I.fn = find_op("mov.b32");
    put(I, 1, {false, constant(0, 4)}, false);
    put(I, 0, dst(d, 4), true);
    emit(I);
    return;
  }
  if (is("cp")) {
    if (!has("async") || has("bulk") || has("mbarrier") || has("reduce")) bad("unknown instruction");
    if (has("commit_group") || has("wait_group") || has("wait_all")) {
      I.fn = find_op("nop");
      emit(I);
      to_semicolon();
      p--;
      return;
    }
    address(I, true);
    Op a = addr_op;
    bool ais = addr_is;
    addr_is = false;
    if (!more()) bad("','");
    Ins G;
    address(G, false);
    Op s = addr_op;
    bool sis = addr_is;
    addr_is = false;
    if (!sis)
      s = {false, constant((u64)G.imm, 8)};
    else
      I.target = (u32)(i32)G.imm;
    if (!more()) bad("','");
    Opnd n = operand();
    I.sub = (u8)n.imm;
    I.fn = find_op("cpasync");
    Op ss{false, NONE}, ip{false, NONE};
    if (more()) {
      Opnd x = operand();
      if ((x.k == Opnd::REG || x.k == Opnd::ENC) && x.size == 0)
        ip = pred_src(x);
      else if (!(x.k == Opnd::REG && x.size == 8))
        ss = src(x, 4);
    }
    if (more()) operand();
    if (ais) put(I, 1, a, false);
    put(I, 2, s, false);
    if (ss.reg || ss.v != NONE) put(I, 3, ss, false);
    if (ip.reg || ip.v != NONE) put(I, 4, ip, false);
    emit(I);
    return;
  }
  if (is("mbarrier")) {
    I.fn = find_op("mbarrier");
    bool sh = true;
    if (has("init") || has("inval")) {
      I.sub = has("init") ? 0 : 1;
      sh = has("shared");
      address(I, sh);
      Op a = addr_op;
      bool ais = addr_is;
      addr_is = false;
      Op c{false, NONE};
      if (more()) {
        Opnd o = operand();
        c = src(o, 4);
      }
      if (ais) put(I, 1, a, false);
      if (c.reg || c.v != NONE) put(I, 2, c, false);
      emit(I);
      return;
    }
    if (has("pending_count")) {
      I.sub = 9;
      Opnd d = operand();
      more();
      Opnd s = operand();
      put(I, 2, src(s, 8), false);
      put(I, 0, dst(d, 4), true);
      emit(I);
      return;
    }
    if (has("test_wait") || has("try_wait")) {
      I.sub = has("parity") ? 5 : 4;
      Opnd d = operand();
      if (!more()) bad("','");
      sh = has("shared");
      address(I, sh);
      Op a = addr_op;
      bool ais = addr_is;
      addr_is = false;
      if (!more()) bad("','");
      Opnd s = operand();
      Op os = src(s, I.sub == 5 ? 4 : 8);
      if (more()) operand();
      if (ais) put(I, 1, a, false);
      put(I, 2, os, false);
      put(I, 0, dst(d, 0), true);
      emit(I);
      return;
    }
    if (has("arrive") || has("arrive_drop") || has("expect_tx") || has("complete_tx")) {
      if (has("arrive_drop") && has("expect_tx")) bad("unknown instruction");
      I.sub = has("arrive_drop") ? 3 : has("complete_tx") ? 8 : has("expect_tx") ? (has("arrive") ? 7 : 6) : 2;
      ws();
      Opnd d;
      d.k = Opnd::SINK;
      if (*p != '[') {
        d = operand();
        if (!more()) bad("','");
      }
      sh = has("shared");
      address(I, sh);
      Op a = addr_op;
      bool ais = addr_is;
      addr_is = false;
      Op c{false, NONE};
      if (more()) {
        Opnd o = operand();
        c = src(o, 4);
      }
      if (ais) put(I, 1, a, false);
      if (c.reg || c.v != NONE) put(I, 2, c, false);
      if (d.k != Opnd::SINK) put(I, 0, dst(d, 8), true);
      emit(I);
      flush_after();
      return;
    }
  }
  bad("unknown instruction");
}

}  // namespace standin::ptx
