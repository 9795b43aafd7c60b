// Variables: declarations, places, initialisers.
#include <stdlib.h>

#include <algorithm>

#include "text.hpp"

namespace standin::ptx {

// After ".global", ".shared", ...: alignment, type, name, dimensions; p is left after them.
Var* parse_var_decl(const char*& p, const char* e, Module* m) {
  auto v = new Var;
  v->mod = m;
  u32 vec = 1;
  bool ptr = false;
  for (;;) {
    skip_ws(p, e);
    if (p < e && *p == '.') {
      sv d = dotword(p, e);
      if (d == ".align") {
        skip_ws(p, e);
        u32 al = (u32)strtoul(std::string(p, std::min<size_t>(e - p, 12)).c_str(), nullptr, 10);
        if (!ptr) v->align = al;
        while (p < e && isdigit((unsigned char)*p)) p++;
      } else if (d == ".attribute") {
        skip_ws(p, e);
        skip_parens(p, e);
      } else if (d == ".v2")
        vec = 2;
      else if (d == ".v4")
        vec = 4;
      else if (d == ".v8")
        vec = 8;
      else if (d == ".ptr")
        ptr = true;
      else if (d == ".global" || d == ".const" || d == ".local" || d == ".shared")
        continue;
      else {
        sv t = d.substr(1);
        v->esize = (u8)type_size(t);
        v->isfloat = t == "f32" || t == "f64";
        if (!v->esize) v->esize = 8;
      }
    } else
      break;
  }
  skip_ws(p, e);
  v->name = word(p, e);
  size_t count = 1;
  bool unsized = false;
  for (;;) {
    skip_ws(p, e);
    if (p < e && *p == '[') {
      p++;
      skip_ws(p, e);
      if (p < e && *p == ']')
        unsized = true;
      else {
        char* end;
        count *= strtoull(p, &end, 0);
        p = end;
        skip_ws(p, e);
      }
      if (p < e && *p == ']') p++;
    } else
      break;
  }
  v->unsized = unsized;
  v->size = unsized ? 0 : count * v->esize * vec;
  if (v->align < v->esize * vec) {
    u32 a = v->esize * vec;
    if (v->align == 1) v->align = a;
  }
  return v;
}

u32 Program::place_shared(Var* v) {
  std::lock_guard<std::recursive_mutex> lk(mu);
  if (v->unsized || v->link == L_EXTERN) return SH_DYN;
  if (!v->placed) {
    u32 a = std::max<u32>(v->align, 16);
    u64 off = ((u64)static_end + a - 1) / a * a;
    if (off + v->size > SH_DYN) throw Fault("too much static shared memory");
    v->shoff = (u32)off;
    static_end = (u32)(off + v->size);
    v->placed = true;
  }
  return v->shoff;
}

// Value of one initialiser term; p is left after it.
static u64 init_value(Program& P, Var* v, const char*& p, const char* e) {
  skip_ws(p, e);
  bool neg = false;
  if (*p == '-') {
    neg = true;
    p++;
  } else if (*p == '+')
    p++;
  skip_ws(p, e);
  if (p[0] == '0' && (p[1] == 'f' || p[1] == 'F' || p[1] == 'd' || p[1] == 'D')) {
    bool f = (p[1] | 32) == 'f';
    p += 2;
    u64 bits = strtoull(std::string(p, f ? 8 : 16).c_str(), nullptr, 16);
    p += f ? 8 : 16;
    if (v->esize == 8 && f) bits = bitcast<u64>((double)bitcast<float>((u32)bits));
    if (neg) bits ^= 1ull << (v->esize * 8 - 1);
    return bits;
  }
  if (isdigit((unsigned char)*p) || *p == '.') {
    const char* s = p;
    char* end;
    u64 x = strtoull(p, &end, 0);
    if (v->isfloat) {
      if (!(s[0] == '0' && (s[1] | 32) == 'x')) {
        double d = strtod(s, &end);
        if (neg) d = -d;
        p = end;
        return v->esize == 4 ? bitcast<u32>((float)d) : bitcast<u64>(d);
      }
    }
    p = end;
    if (p < e && (*p == 'U' || *p == 'u')) p++;
    skip_ws(p, e);
    if (p < e && *p == '(') {  // byte selector: 0xff00(symbol)
      p++;
      u64 a = init_value(P, v, p, e);
      skip_ws(p, e);
      if (p < e && *p == ')') p++;
      return (a & x) >> (x ? __builtin_ctzll(x) : 0);
    }
    return neg ? 0 - x : x;
  }
  sv name = word(p, e);
  if (name.empty()) throw Fault("bad initialiser of " + std::string(v->name));
  skip_ws(p, e);
  u64 r;
  if (name == "generic" && p < e && *p == '(') {
    p++;
    r = init_value(P, v, p, e);
    skip_ws(p, e);
    if (p < e && *p == ')') p++;
  } else if (Var* o = P.find_var(v->mod, name))
    r = o->space == SP_SHARED ? P.place_shared(o) : (u64)P.materialize(o);
  else {
    // A table of functions doesn't fetch their modules: a placeholder is resolved when it is called.
    Func* f = P.known_func(v->mod, name);
    r = (u64)(f ? f : P.placeholder(name));
  }
  skip_ws(p, e);
  while (p < e && (*p == '+' || *p == '-')) {
    bool mi = *p == '-';
    p++;
    skip_ws(p, e);
    char* end;
    i64 x = strtoll(p, &end, 0);
    p = end;
    skip_ws(p, e);
    r += mi ? -x : x;
  }
  return r;
}

char* Program::materialize(Var* v) {
  if (char* p = v->mem.load(std::memory_order_acquire)) return p;
  std::lock_guard<std::recursive_mutex> lk(mu);
  if (char* p = v->mem.load()) return p;
  if (v->in_init) return v->raw;
  size_t al = std::max<size_t>(v->align, 256), n = (v->size + al - 1) / al * al + al;
  v->raw = (char*)aligned_alloc(al, n);
  memset(v->raw, 0, n);
  owned.push_back(v->raw);
  v->in_init = true;
  if (!v->init.empty()) {
    const char *p = v->init.data(), *e = p + v->init.size();
    size_t off = 0;
    for (;;) {
      while (p < e && (isspace((unsigned char)*p) || *p == '{' || *p == '}' || *p == ',')) p++;
      skip_ws(p, e);
      if (p >= e) break;
      if (*p == '{' || *p == '}' || *p == ',') continue;
      u64 x = init_value(*this, v, p, e);
      if (off + v->esize > n) break;
      memcpy(v->raw + off, &x, std::min<int>(v->esize, 8));
      off += v->esize;
    }
  }
  v->mem.store(v->raw, std::memory_order_release);
  return v->raw;
}

}  // namespace standin::ptx
