// Modules that wait: unpacked one after the other to find the names that they define, and added when one of those is
// looked up.
#include <stdio.h>

#include "text.hpp"

namespace standin::ptx {
namespace {

// Reads only the names that a text defines.
class Names {
 public:
  Names(sv text, std::unordered_set<std::string>* names) : p_(text.data()), e_(p_ + text.size()), names_(names) {}

  // False when the text isn't as expected, so that there may be more names.
  bool read() {
    bool declares = false;  // what is defined elsewhere
    for (;;) {
      skip_ws(p_, e_);
      if (p_ >= e_) return true;
      if (*p_ == '}' || *p_ == ';') {
        p_++;
        continue;
      }
      if (*p_ != '.') return false;
      sv d = dotword(p_, e_);
      if (d == ".extern") {
        declares = true;
      } else if (d == ".entry" || d == ".func") {
        if (d == ".entry") kernels_ = true;
        if (!function(declares)) return false;
        declares = false;
      } else if (d == ".global" || d == ".const" || d == ".shared" || d == ".local") {
        if (!variables(declares)) return false;
        declares = false;
      } else if (d == ".alias") {
        if (!name(false)) return false;
        skip_to(';');
      } else if (d == ".section") {
        skip_to('{');
        skip_braces(p_, e_);
      } else if (d == ".version" || d == ".target" || d == ".address_size" || d == ".file" || d == ".loc") {
        skip_line(p_, e_);
      } else if (d != ".visible" && d != ".weak" && d != ".common") {
        skip_to(';');
      }
    }
  }
  bool kernels() const { return kernels_; }

 private:
  // The first word behind attributes, numbers and return parameters.
  bool name(bool declares) {
    for (;;) {
      skip_ws(p_, e_);
      if (p_ < e_ && *p_ == '(')
        skip_parens(p_, e_);
      else if (p_ < e_ && *p_ == '.')
        dotword(p_, e_);
      else if (p_ < e_ && isdigit(static_cast<unsigned char>(*p_)))
        word(p_, e_);
      else
        break;
    }
    sv w = word(p_, e_);
    if (!declares && !w.empty()) names_->insert(std::string(w));
    return !w.empty();
  }
  bool function(bool declares) {
    if (!name(declares)) return false;
    for (skip_ws(p_, e_); p_ < e_ && *p_ != '{' && *p_ != ';'; skip_ws(p_, e_)) {
      if (*p_ == '(')
        skip_parens(p_, e_);
      else if (*p_ == '"')
        skip_string(p_, e_);
      else
        p_++;
    }
    if (p_ < e_ && *p_ == '{') skip_braces(p_, e_);
    return true;
  }
  bool variables(bool declares) {
    do {
      if (!name(declares)) return false;
      for (skip_ws(p_, e_); p_ < e_ && *p_ != ',' && *p_ != ';'; skip_ws(p_, e_)) {
        if (*p_ == '{')
          skip_braces(p_, e_);
        else
          p_++;
      }
    } while (p_ < e_ && *p_++ == ',');
    return true;
  }
  void skip_to(char c) {
    while (p_ < e_ && *p_ != c) p_++;
  }

  const char *p_, *e_;
  std::unordered_set<std::string>* names_;
  bool kernels_ = false;
};
}  // namespace

void add_module_later(Program& p, std::function<std::string(std::string*)> fetch) {
  std::lock_guard<std::recursive_mutex> lk(p.mu);
  p.waiting.push_back({std::move(fetch), {}, {}, false});
}

bool Program::fetch_module(sv name) {
  std::lock_guard<std::recursive_mutex> lk(mu);
  const std::string wanted(name);
  for (auto it = waiting.begin(); it != waiting.end(); ++it) {
    std::string why;
    if (!it->read) {
      it->read = true;
      why = it->fetch(&it->text);
      if (why.empty()) {
        Names names(it->text, &it->names);
        if (!names.read()) it->names = {wanted};  // add() says what is wrong
        // A text with kernels will be needed and is kept. One of device functions is large and seldom needed.
        if (!names.kernels() && !it->names.count(wanted)) it->text = {};
      }
    }
    if (why.empty() && !it->names.count(wanted)) continue;
    if (why.empty() && it->text.empty()) why = it->fetch(&it->text);
    std::string text = std::move(it->text);
    waiting.erase(it);
    if (why.empty()) why = add_module(*this, std::move(text));
    if (!why.empty()) fprintf(stderr, "standin ptx: a module of this program is left out: %s\n", why.c_str());
    return true;
  }
  return false;
}
}  // namespace standin::ptx
