// Device functions that PTX calls and nobody defines: printf, assertions, malloc, free.
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "runner.hpp"

namespace standin::ptx {

void Runner::do_printf(Frame* fr, const CallInfo& ci, int l) {
  char* pp = fr->param + (size_t)l * fr->f->param_stride;
  const char* s = *(const char**)(pp + ci.args[0].off);
  const char* a = *(const char**)(pp + ci.args[1].off);
  std::string out;
  size_t off = 0;
  auto arg = [&](size_t n) {
    off = (off + n - 1) / n * n;
    const char* r = a + off;
    off += n;
    return r;
  };
  char buf[512];
  while (*s) {
    if (*s != '%') {
      out += *s++;
      continue;
    }
    if (s[1] == '%') {
      out += '%';
      s += 2;
      continue;
    }
    std::string spec = "%";
    s++;
    int lng = 0;
    bool done = false;
    while (*s && !done) {
      char ch = *s++;
      if (strchr("-+ #0123456789.", ch))
        spec += ch;
      else if (ch == '*')
        spec += std::to_string(*(const int*)arg(4));
      else if (ch == 'l')
        lng++;
      else if (ch == 'z' || ch == 'j' || ch == 't')
        lng = 2;
      else if (ch == 'h') {
      } else {
        done = true;
        switch (ch) {
          case 'd':
          case 'i':
            if (lng) {
              spec += "lld";
              snprintf(buf, sizeof buf, spec.c_str(), *(const long long*)arg(8));
            } else {
              spec += 'd';
              snprintf(buf, sizeof buf, spec.c_str(), *(const int*)arg(4));
            }
            out += buf;
            break;
          case 'u':
          case 'x':
          case 'X':
          case 'o':
            if (lng) {
              spec += "ll";
              spec += ch;
              snprintf(buf, sizeof buf, spec.c_str(), *(const unsigned long long*)arg(8));
            } else {
              spec += ch;
              snprintf(buf, sizeof buf, spec.c_str(), *(const unsigned*)arg(4));
            }
            out += buf;
            break;
          case 'c':
            spec += 'c';
            snprintf(buf, sizeof buf, spec.c_str(), *(const int*)arg(4));
            out += buf;
            break;
          case 'f':
          case 'F':
          case 'e':
          case 'E':
          case 'g':
          case 'G':
          case 'a':
          case 'A':
            spec += ch;
            snprintf(buf, sizeof buf, spec.c_str(), *(const double*)arg(8));
            out += buf;
            break;
          case 's': {
            const char* str = *(const char* const*)arg(8);
            if (spec == "%")
              out += str ? str : "(null)";
            else {
              spec += 's';
              snprintf(buf, sizeof buf, spec.c_str(), str);
              out += buf;
            }
            break;
          }
          case 'p':
            spec += 'p';
            snprintf(buf, sizeof buf, spec.c_str(), *(void* const*)arg(8));
            out += buf;
            break;
          default:
            out += spec;
            out += ch;
        }
      }
    }
  }
  fwrite(out.data(), 1, out.size(), stdout);
}

void Runner::builtin(Warp& w, Frame* fr, const CallInfo& ci, Func* f, u32 m) {
  for (u32 q = m; q; q &= q - 1) {
    int l = __builtin_ctz(q);
    char* pp = fr->param + (size_t)l * fr->f->param_stride;
    u64 ret = 0;
    switch (f->builtin) {
      case 1:
        do_printf(fr, ci, l);
        break;
      case 2: {
        const char* msg = *(const char**)(pp + ci.args[0].off);
        const char* file = *(const char**)(pp + ci.args[1].off);
        u32 line = *(u32*)(pp + ci.args[2].off);
        const char* fn = *(const char**)(pp + ci.args[3].off);
        fault_at(w, l,
                 "assertion `" + std::string(msg) + "' failed at " + file + ":" + std::to_string(line) + " in " + fn);
      }
      case 3:
        ret = (u64)aligned_alloc(16, (*(u64*)(pp + ci.args[0].off) + 15) / 16 * 16);
        break;
      case 4:
        free(*(void**)(pp + ci.args[0].off));
        break;
    }
    if (!ci.rets.empty()) memcpy(pp + ci.rets[0].off, &ret, std::min<u32>(8, ci.rets[0].size));
  }
  if (f->builtin == 1) fflush(stdout);
}

}  // namespace standin::ptx
