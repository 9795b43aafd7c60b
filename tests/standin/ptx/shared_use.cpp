// How much static shared memory a kernel has, read from its text without decoding it: programs ask this of kernels that
// they never launch.
#include <algorithm>
#include <map>

#include "text.hpp"

namespace standin::ptx {
namespace {

struct Use {
  u32 align;
  size_t size;
};
// Static variables of two modules may share a name, others don't.
using Uses = std::map<std::pair<const Module*, std::string>, Use>;

class Reader {
 public:
  Reader(Program& program, Uses* uses, std::vector<Func*>* callees) : p_(program), uses_(uses), callees_(callees) {}

  void read(const Func* f) {
    const char *p = f->body.data(), *e = p + f->body.size();
    while (p < e) {
      if (*p == '%' || isdigit(static_cast<unsigned char>(*p))) {
        word(p, e);
      } else if (*p == '.') {
        if (dotword(p, e) == ".shared") declaration(f->mod, p, e);
      } else if (*p == '"') {
        skip_string(p, e);
      } else if (*p == '/') {
        const char* before = p;
        skip_ws(p, e);
        if (p == before) p++;
      } else if (idc(*p)) {
        sv name = word(p, e);
        // An instruction is a word with dots.
        bool instruction = p < e && *p == '.';
        while (p < e && (idc(*p) || *p == '.' || *p == ':')) p++;
        if (!instruction) used(f->mod, name);
      } else {
        p++;
      }
    }
  }

 private:
  void declaration(Module* m, const char*& p, const char* e) {
    for (;;) {
      std::unique_ptr<Var> v(parse_var_decl(p, e, m));
      note(m, v.get());
      skip_ws(p, e);
      if (p >= e || *p != ',') return;
      p++;
    }
  }
  void used(Module* m, sv name) {
    if (auto v = m->vars.find(name); v != m->vars.end()) {
      if (v->second->space == SP_SHARED) note(v->second->link == L_STATIC ? m : nullptr, v->second.get());
    } else if (m->funcs.count(name)) {
      callees_->push_back(p_.find_func(m, name));
    }
  }
  void note(const Module* of, const Var* v) {
    if (!v->unsized) uses_->insert({{of, std::string(v->name)}, {v->align, v->size}});
  }

  Program& p_;
  Uses* uses_;
  std::vector<Func*>* callees_;
};
}  // namespace

size_t static_shared_bytes(Program& program, Func* kernel) {
  Uses uses;
  std::vector<Func*> todo{kernel};
  std::unordered_set<Func*> seen{kernel};
  while (!todo.empty()) {
    Func* f = todo.back();
    todo.pop_back();
    if (!f->defined) continue;
    std::vector<Func*> callees;
    Reader(program, &uses, &callees).read(f);
    for (Func* c : callees)
      if (seen.insert(c).second) todo.push_back(c);
  }
  std::vector<Use> order;
  for (auto& [name, use] : uses) order.push_back(use);
  std::stable_sort(order.begin(), order.end(), [](const Use& a, const Use& b) { return a.align > b.align; });
  size_t total = 0;
  for (const Use& u : order) total = (total + u.align - 1) / u.align * u.align + u.size;
  return total;
}
}  // namespace standin::ptx
