// Turns the text of one function body into instructions: lexing, parsing, choice of operands and handlers, then
// register allocation.
#pragma once
#include <initializer_list>

#include "ir.hpp"

namespace standin::ptx {

struct Err {
  std::string what;
};
[[noreturn]] inline void bad(const std::string& s) {
  throw Err{s};
}

struct TypeInfo {
  int size;
  bool flt, sgn;
  const char* ikey;
};
TypeInfo tinfo(sv type);
inline const char* bkey(int size) {
  return size == 2 ? "b16" : size == 4 ? "b32" : size == 8 ? "b64" : size == 16 ? "b128" : "pred";
}

struct Opnd {
  enum K : u8 { REG, ENC, IMM, FLT, SYM, VEC, SINK, NAME } k = NAME;
  bool neg = false;  // '!'
  u8 size = 4;       // REG: 0 pred, 2, 4, 8, 16; ENC likewise
  u8 fkind = 0;      // FLT: 4, 8: exact bits; 1: decimal (as f64 bits)
  u32 v = 0;         // REG: virtual register; ENC: operand word
  u64 imm = 0;
  sv name;
  u8 space = 0;  // SYM
  u64 addr = 0;  // SYM: offset or address
  std::vector<Opnd> list;
  int second = -1;  // p|q: index into pool
};
struct Op {
  bool reg;
  u32 v;
};

struct RegDecl {
  sv prefix;
  u32 base, count;
  u8 size;
  bool range;
};
struct VarDecl {
  sv name;
  u8 space;
  u64 off;
  u32 size;
  u8 esize;
};
struct Ref {
  u32 ins;
  u8 slot, def;
  u32 v;
};

u8 space_of(const std::vector<sv>& mods);

struct Decoder {
  Program& P;
  Func* f;
  Module* m;
  const char *p, *e, *text;
  std::vector<Ins>& code;
  std::vector<u8> vsize;
  std::vector<Ref> refs;
  std::vector<RegDecl> regs;  // innermost last
  std::vector<VarDecl> vars;
  std::vector<int> scope_parent;
  std::vector<size_t> scope_regs, scope_vars;
  std::vector<u32> scope_param;
  int scope = -1;
  struct LabelDef {
    int scope;
    u32 pc;
  };
  std::unordered_map<sv, std::vector<LabelDef>> labels;
  struct Fix {
    u32 ins;
    sv name;
    int scope;
    int table, entry;
  };
  std::vector<Fix> fixes;
  std::unordered_map<sv, int> table_names;
  std::vector<std::pair<u32, sv>> brx_fix;
  std::vector<char> consts;
  struct Key {
    u64 lo, hi;
    int size;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const { return (k.lo * 0x9e3779b97f4a7c15ull) ^ (k.hi * 31) ^ k.size; }
  };
  std::unordered_map<Key, u32, KeyHash> cmap;
  u32 param_top = 0, param_max = 0, local_top = 0;
  u32 cc = NONE;
  // current statement
  Op guard{false, NONE};
  bool guard_neg = false;
  const char* stmt = nullptr;
  struct Pend {
    u8 slot, def;
    u32 v;
  };
  std::vector<Pend> pend;
  struct After {
    u32 dst, src;
    u8 dsize, ssize;
    bool sgn;
  };
  std::vector<After> after;
  std::vector<Opnd> pool;
  std::vector<std::unique_ptr<Var>> extra_vars;
  std::vector<std::pair<Opnd, u32>> ret_regs;

  Decoder(Program& P_, Func* f_) : P(P_), f(f_), m(f_->mod), code(f_->code) {
    p = f->body.data();
    e = p + f->body.size();
    text = m->text.data();
  }

  // ---- lexing ----
  void ws() { skip_ws(p, e); }
  static bool idc(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }
  bool eat(char c) {
    ws();
    if (p < e && *p == c) {
      p++;
      return true;
    }
    return false;
  }
  void need(char c) {
    if (!eat(c)) bad(std::string("'") + c + "' expected");
  }
  sv ident() {
    ws();
    const char* s = p;
    while (p < e && idc(*p)) p++;
    return sv(s, p - s);
  }
  void to_semicolon();

  // ---- registers and constants ----
  u32 newreg(u8 size) {
    vsize.push_back(size);
    return (u32)vsize.size() - 1;
  }
  u32 constant(u64 lo, int size, u64 hi = 0);
  bool find_reg(sv name, Opnd& o);
  bool find_var_local(sv name, Opnd& o);
  void dyn_sreg(const char* key, u8 size, Opnd& o);
  bool special(sv name, Opnd& o);
  // A name used as a value: register, special register, variable address or function address.
  void resolve(sv name, Opnd& o);
  bool number(Opnd& o);
  Opnd operand();
  bool more() {
    ws();
    if (p < e && *p == ',') {
      p++;
      return true;
    }
    return false;
  }

  // ---- emission ----
  void put(Ins& I, int slot, Op o, bool def);
  u32 emit(Ins& I, bool guarded = true);
  void flush_after();
  Op resize(Op o, int have, int want, bool sgn = false);
  // source operand as a row of the given width; flt: 0 integer, 2/4/8 floating immediate of that width
  Op src(const Opnd& o, int size, int flt = 0, bool sgn = false);
  Func* fn_token(sv name) {
    Func* g = P.find_func(m, name);
    return g;
  }
  Op dst(const Opnd& o, int size, bool sgn = false);
  Op pred_src(const Opnd& o) { return src(o, 0); }
  Op dst_pred(const Opnd& o) {
    if (o.k == Opnd::SINK) return {false, NONE};
    return dst(o, 0);
  }

  // ---- mods ----
  std::vector<sv> mods;
  bool has(sv s) const {
    for (auto& x : mods)
      if (x == s) return true;
    return false;
  }
  u8 rounding() const;
  u8 fflags() const;
  // d and n sources with the given widths
  void simple(const std::string& key, int ds, std::initializer_list<int> ss, int flt, Ins I = Ins(), bool dsgn = false);
  void address(Ins& I, bool shared);  // "[...]" into ak, imm, o[1]
  Op addr_op{false, NONE};
  bool addr_is = false;
  void put_addr(Ins& I) {
    if (addr_is) put(I, 1, addr_op, false);
    addr_is = false;
  }

  void instr(sv opcode);
  void load();
  void store();
  void atomic(bool red);
  void setp();
  void set();
  void mov();
  void cvt();
  void call();
  void barrier();
  void wsync(sv base);
  void arith(sv base, sv type);
  void parse();
  void directive();
  void allocate();
};

}  // namespace standin::ptx
