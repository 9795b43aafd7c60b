// Parameters of functions, and what the interface tells about kernels and variables.
#include <stdlib.h>

#include <algorithm>

#include "text.hpp"

namespace standin::ptx {

void Program::signature(Func* f) {
  if (f->sig) return;
  std::lock_guard<std::recursive_mutex> lk(mu);
  if (f->sig) return;
  const char *p = f->header.data(), *e = p + f->header.size();
  u32 off = 0;
  auto list = [&](std::vector<Slot>& out, std::vector<sv>& names) {
    p++;
    for (;;) {
      skip_ws(p, e);
      if (p >= e || *p == ')') {
        if (p < e) p++;
        return;
      }
      if (*p == ',') {
        p++;
        continue;
      }
      if (*p != '.') {
        p++;
        continue;
      }
      dotword(p, e);  // .param (or .reg)
      std::unique_ptr<Var> v(parse_var_decl(p, e, f->mod));
      u32 a = std::max<u32>(1, v->align);
      off = (off + a - 1) / a * a;
      out.push_back({off, (u32)v->size});
      names.push_back(v->name);
      off += (u32)v->size;
    }
  };
  for (;;) {
    skip_ws(p, e);
    if (p >= e) break;
    if (*p == '(') {
      off = (off + 15) / 16 * 16;
      list(f->rets, f->rnames);
    } else if (*p == '.') {
      dotword(p, e);
      skip_ws(p, e);
      if (p < e && *p == '(') {
        skip_parens(p, e);
      }
    } else
      break;
  }
  // a ".attribute(...)" list would have been skipped above; the return list comes right before the name
  word(p, e);
  u32 ret_end = off;
  if (f->entry) {
    off = 0;
    ret_end = 0;
  }
  off = (off + 15) / 16 * 16;
  skip_ws(p, e);
  if (p < e && *p == '(') list(f->params, f->pnames);
  f->param_bytes = std::max(off, ret_end);
  while (p < e) {
    skip_ws(p, e);
    if (p >= e) break;
    if (*p == '"') {
      skip_string(p, e);
      continue;
    }
    if (*p != '.') {
      p++;
      continue;
    }
    sv d = dotword(p, e);
    if (d == ".maxntid" || d == ".reqntid") {
      int n = 1;
      for (int i = 0; i < 3; i++) {
        skip_ws(p, e);
        char* end;
        long x = strtol(p, &end, 10);
        if (end == p) break;
        n *= (int)x;
        p = end;
        skip_ws(p, e);
        if (p < e && *p == ',')
          p++;
        else
          break;
      }
      f->max_threads = n;
    } else if (d == ".maxnreg") {
      char* end;
      f->num_regs = (int)strtol(p, &end, 10);
      p = end;
    }
  }
  f->sig = true;
}

std::shared_ptr<Program> make_program() {
  return std::make_shared<Program>();
}
std::string add_module(Program& p, std::string text) {
  try {
    return p.add(std::move(text));
  } catch (std::exception& e) {
    return e.what();
  }
}
static Func* known_entry(Program& P, const std::string& name) {
  auto g = P.gfuncs.find(name);
  if (g != P.gfuncs.end() && g->second->entry) return g->second;
  for (auto& m : P.mods) {
    auto it = m->funcs.find(name);
    if (it != m->funcs.end() && it->second->entry && it->second->defined) return it->second.get();
  }
  return nullptr;
}
Func* entry_of(Program& P, const std::string& name) {
  std::lock_guard<std::recursive_mutex> lk(P.mu);
  Func* f = known_entry(P, name);
  while (!f && P.fetch_module(name)) f = known_entry(P, name);
  return f;
}

bool kernel_info(Program& P, const std::string& name, KernelInfo* out) {
  std::lock_guard<std::recursive_mutex> lk(P.mu);
  Func* f = entry_of(P, name);
  if (!f) return false;
  if (!out) return true;
  P.signature(f);
  out->params.clear();
  for (auto& s : f->params) out->params.push_back({s.off, s.size});
  out->param_bytes = f->param_bytes;
  out->max_threads = f->max_threads;
  out->num_regs = f->num_regs;
  out->static_shared_bytes = static_shared_bytes(P, f);
  return true;
}

void* global_address(Program& P, const std::string& name, size_t* size) {
  std::lock_guard<std::recursive_mutex> lk(P.mu);
  Var* v = nullptr;
  do {
    v = P.known_var(nullptr, name);
    // A static one is found by its name too, as the driver does.
    for (size_t i = 0; !v && i < P.mods.size(); i++) {
      auto it = P.mods[i]->vars.find(name);
      if (it != P.mods[i]->vars.end() && it->second->link != L_EXTERN) v = it->second.get();
    }
  } while (!v && P.fetch_module(name));
  if (!v || v->space == SP_SHARED) return nullptr;
  if (size) *size = v->size;
  try {
    return P.materialize(v);
  } catch (std::exception&) {
    return nullptr;
  }
}

}  // namespace standin::ptx
