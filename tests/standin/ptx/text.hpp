// Words of PTX text.
#pragma once
#include <ctype.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "ir.hpp"

namespace standin::ptx {

inline bool idc(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

inline sv word(const char*& p, const char* e) {
  const char* s = p;
  while (p < e && idc(*p)) p++;
  return sv(s, p - s);
}
inline sv dotword(const char*& p, const char* e) {
  const char* s = p++;
  while (p < e && (idc(*p) || *p == ':')) p++;
  return sv(s, p - s);
}
inline void skip_line(const char*& p, const char* e) {
  while (p < e && *p != '\n') p++;
}
inline void skip_string(const char*& p, const char* e) {
  p++;
  while (p < e && *p != '"') {
    if (*p == '\\') p++;
    p++;
  }
  if (p < e) p++;
}
// The next brace, quote or slash, or the end.
inline const char* next_mark(const char* p, const char* e) {
#ifdef __SSE2__
  for (; e - p >= 16; p += 16) {
    __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    auto is = [text](char c) { return _mm_cmpeq_epi8(text, _mm_set1_epi8(c)); };
    int found = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(is('{'), is('}')), _mm_or_si128(is('"'), is('/'))));
    if (found) return p + __builtin_ctz(static_cast<unsigned>(found));
  }
#endif
  while (p < e && *p != '{' && *p != '}' && *p != '"' && *p != '/') p++;
  return p;
}
// p at the opening brace; afterwards just past the matching one
inline void skip_braces(const char*& p, const char* e) {
  int d = 0;
  for (p = next_mark(p, e); p < e; p = next_mark(p, e)) {
    char c = *p;
    if (c == '{')
      d++;
    else if (c == '}') {
      if (--d == 0) {
        p++;
        return;
      }
    } else if (c == '"') {
      skip_string(p, e);
      continue;
    } else if (c == '/' && p + 1 < e && p[1] == '/') {
      skip_line(p, e);
      continue;
    } else if (c == '/' && p + 1 < e && p[1] == '*') {
      p += 2;
      while (p + 1 < e && !(p[0] == '*' && p[1] == '/')) p++;
      p += 2;
      continue;
    }
    p++;
  }
}
inline void skip_parens(const char*& p, const char* e) {
  int d = 0;
  while (p < e) {
    if (*p == '(')
      d++;
    else if (*p == ')') {
      if (--d == 0) {
        p++;
        return;
      }
    }
    p++;
  }
}

}  // namespace standin::ptx
