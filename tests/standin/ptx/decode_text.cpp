// Names, numbers and operands in the text of a function.
#include <stdlib.h>

#include "decoder.hpp"

namespace standin::ptx {

void Decoder::to_semicolon() {
  while (p < e && *p != ';') {
    if (*p == '/' && p + 1 < e && p[1] == '/') {
      while (p < e && *p != '\n') p++;
      continue;
    }
    if (*p == '"') {
      p++;
      while (p < e && *p != '"') p++;
    }
    p++;
  }
  if (p < e) p++;
}

bool Decoder::find_reg(sv name, Opnd& o) {
  size_t n = name.size();
  while (n > 0 && isdigit((unsigned char)name[n - 1])) n--;
  sv pre = name.substr(0, n);
  u32 num = 0;
  bool has = n < name.size();
  if (has)
    for (size_t i = n; i < name.size(); i++) num = num * 10 + (name[i] - '0');
  for (size_t i = regs.size(); i-- > 0;) {
    const RegDecl& r = regs[i];
    if (r.range ? (has && r.prefix == pre && num < r.count) : r.prefix == name) {
      o.k = Opnd::REG;
      o.size = r.size;
      o.v = r.base + (r.range ? num : 0);
      return true;
    }
  }
  return false;
}

bool Decoder::find_var_local(sv name, Opnd& o) {
  for (size_t i = vars.size(); i-- > 0;)
    if (vars[i].name == name) {
      o.k = Opnd::SYM;
      o.space = vars[i].space;
      o.addr = vars[i].off;
      o.name = name;
      return true;
    }
  return false;
}

void Decoder::dyn_sreg(const char* key, u8 size, Opnd& o) {
  u32 t = newreg(size);
  Ins I;
  I.fn = find_op(key);
  put(I, 0, {true, t}, true);
  emit(I, false);
  o.k = Opnd::REG;
  o.size = size;
  o.v = t;
}

bool Decoder::special(sv name, Opnd& o) {
  auto enc = [&](int s) {
    o.k = Opnd::ENC;
    o.size = 4;
    o.v = (u32)s * 128 | 2;
    return true;
  };
  auto xyz = [&](int x) {
    int c = 0;
    if (p + 1 < e && *p == '.') {
      c = p[1] - 'x';
      p += 2;
    }
    return c >= 0 && c < 3 ? enc(x + c) : enc(S_ZERO);
  };
  if (name == "%tid") return xyz(S_TIDX);
  if (name == "%ntid") return xyz(S_NTIDX);
  if (name == "%ctaid" || name == "%clusterid") return xyz(S_CTAX);
  if (name == "%nctaid" || name == "%nclusterid") return xyz(S_NCTAX);
  if (name == "%cluster_ctaid" || name == "%cluster_nctaid") {
    if (*p == '.') p += 2;
    return enc(name == "%cluster_ctaid" ? S_ZERO : S_ONE);
  }
  if (name == "%laneid") return enc(S_LANE);
  if (name == "%warpid") return enc(S_WARPID);
  if (name == "%nwarpid") return enc(S_NWARPID);
  if (name == "%smid") return enc(S_SMID);
  if (name == "%nsmid") return enc(S_NSMID);
  if (name == "%lanemask_eq") return enc(S_LMEQ);
  if (name == "%lanemask_le") return enc(S_LMLE);
  if (name == "%lanemask_lt") return enc(S_LMLT);
  if (name == "%lanemask_ge") return enc(S_LMGE);
  if (name == "%lanemask_gt") return enc(S_LMGT);
  if (name == "%dynamic_smem_size") return enc(S_DYNSMEM);
  if (name == "%total_smem_size" || name == "%aggr_smem_size") return enc(S_TOTSMEM);
  if (name == "%envreg1") return enc(S_ENV1);
  if (name == "%envreg2") return enc(S_ENV2);
  if (name == "%cluster_ctarank") return enc(S_ZERO);
  if (name == "%cluster_nctarank") return enc(S_ONE);
  if (name == "%is_explicit_cluster") {
    o.k = Opnd::ENC;
    o.size = 0;
    o.v = constant(0, 0);
    return true;
  }
  if (name == "%gridid" || name.substr(0, 7) == "%envreg" || name.substr(0, 3) == "%pm" ||
      name.substr(0, 9) == "%reserved")
    return enc(S_ZERO);
  if (name == "%clock") {
    dyn_sreg("clock32", 4, o);
    return true;
  }
  if (name == "%clock_hi") {
    dyn_sreg("clockhi", 4, o);
    return true;
  }
  if (name == "%clock64") {
    dyn_sreg("clock64", 8, o);
    return true;
  }
  if (name == "%globaltimer") {
    dyn_sreg("gtimer", 8, o);
    return true;
  }
  if (name == "%globaltimer_lo") {
    dyn_sreg("gtimerlo", 4, o);
    return true;
  }
  if (name == "%globaltimer_hi") {
    dyn_sreg("gtimerhi", 4, o);
    return true;
  }
  return false;
}

void Decoder::resolve(sv name, Opnd& o) {
  if (find_reg(name, o)) return;
  if (name[0] == '%' && special(name, o)) return;
  if (name == "WARP_SZ") {
    o.k = Opnd::IMM;
    o.imm = 32;
    return;
  }
  if (find_var_local(name, o)) return;
  if (Var* v = P.find_var(m, name)) {
    o.k = Opnd::SYM;
    o.name = name;
    o.space = v->space;
    if (v->space == SP_SHARED) {
      o.addr = P.place_shared(v);
      f->shared_used.push_back(v);
    } else
      o.addr = (u64)P.materialize(v);
    return;
  }
  if (m->vars.count(name)) bad("undefined variable " + std::string(name));
  o.k = Opnd::NAME;
  o.name = name;
}

bool Decoder::number(Opnd& o) {
  const char* s = p;
  bool neg = false;
  if (*p == '-') {
    neg = true;
    p++;
    ws();
  } else if (*p == '+')
    p++;
  if (!isdigit((unsigned char)*p) && !(*p == '.' && isdigit((unsigned char)p[1]))) {
    p = s;
    return false;
  }
  if (p[0] == '0' && p + 1 < e && ((p[1] | 32) == 'f' || (p[1] | 32) == 'd')) {
    int n = (p[1] | 32) == 'f' ? 8 : 16;
    p += 2;
    u64 b = 0;
    for (int i = 0; i < n && p < e && isxdigit((unsigned char)*p); i++, p++)
      b = b * 16 + (isdigit((unsigned char)*p) ? *p - '0' : (*p | 32) - 'a' + 10);
    o.k = Opnd::FLT;
    o.fkind = n / 2;
    o.imm = b;
    if (neg) o.imm ^= n == 8 ? 0x80000000ull : 1ull << 63;
    return true;
  }
  u64 x = 0;
  const char* q = p;
  if (p[0] == '0' && (p[1] | 32) == 'x') {
    p += 2;
    while (p < e && isxdigit((unsigned char)*p)) {
      x = x * 16 + (isdigit((unsigned char)*p) ? *p - '0' : (*p | 32) - 'a' + 10);
      p++;
    }
  } else if (p[0] == '0' && (p[1] | 32) == 'b') {
    p += 2;
    while (p < e && (*p == '0' || *p == '1')) x = x * 2 + (*p++ - '0');
  } else {
    while (p < e && isdigit((unsigned char)*p)) x = x * 10 + (*p++ - '0');
    if (p < e && (*p == '.' || ((*p | 32) == 'e'))) {
      char* end;
      double d = strtod(q, &end);
      p = end;
      o.k = Opnd::FLT;
      o.fkind = 1;
      o.imm = bitcast<u64>(neg ? -d : d);
      return true;
    }
    if (q[0] == '0' && p - q > 1) {
      x = 0;
      for (const char* t = q; t < p; t++) x = x * 8 + (*t - '0');
    }
  }
  if (p < e && *p == 'U') p++;
  o.k = Opnd::IMM;
  o.imm = neg ? 0 - x : x;
  return true;
}

Opnd Decoder::operand() {
  Opnd o;
  ws();
  if (p >= e) bad("operand expected");
  if (*p == '!') {
    p++;
    o = operand();
    o.neg = !o.neg;
    return o;
  }
  if (*p == '{') {
    p++;
    o.k = Opnd::VEC;
    for (;;) {
      o.list.push_back(operand());
      ws();
      if (eat(',')) continue;
      need('}');
      break;
    }
    return o;
  }
  if (*p == '(') {
    p++;
    o = operand();
    need(')');
    return o;
  }
  if (number(o)) return o;
  if (*p == '-') {
    p++;
    o = operand();
    if (o.k == Opnd::IMM)
      o.imm = 0 - o.imm;
    else
      bad("negated operand");
    return o;
  }
  sv n = ident();
  if (n.empty()) bad("operand expected");
  if (n == "_") {
    o.k = Opnd::SINK;
  } else if (n == "generic" && p < e && *p == '(') {
    p++;
    o = operand();
    need(')');
  } else
    resolve(n, o);
  ws();
  if (o.k == Opnd::SYM)
    while (p < e && (*p == '+' || *p == '-')) {
      bool mi = *p == '-';
      p++;
      ws();
      Opnd x;
      if (!number(x)) bad("offset expected");
      o.addr += mi ? 0 - x.imm : x.imm;
      ws();
    }
  if (p < e && *p == '|') {
    p++;
    Opnd q = operand();
    pool.push_back(q);
    o.second = (int)pool.size() - 1;
  }
  // component of a vector register (.x, .y): not produced by nvcc
  return o;
}

}  // namespace standin::ptx
