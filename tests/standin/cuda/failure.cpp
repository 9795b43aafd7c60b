// STANDIN_CUDA_FAIL=name[/kernel-substring][@library-substring]:nth[:code],... makes calls of entry points fail.
// STANDIN_CUDA_COUNT=library-substring:file tells how often the libraries so named called each entry point.
#include <dlfcn.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "core.hpp"

namespace standin::cuda {
namespace {
struct Rule {
  std::string entry;
  std::string kernel;   // substring of the kernel's name; empty: every call counts
  std::string library;  // substring of the calling library's file name; empty: every call counts
  uint64_t nth = 0;
  bool onwards = false;  // "nth+"
  CUresult code = CUDA_ERROR_UNKNOWN;
  std::atomic<uint64_t> calls{0};
};

// A name without a version suffix means every version of the entry point: programs write cuMemAlloc and call
// cuMemAlloc_v2.
std::string_view unversioned(std::string_view name) {
  size_t at = name.rfind("_v");
  if (at == std::string_view::npos || at + 2 == name.size()) return name;
  for (char c : name.substr(at + 2))
    if (c < '0' || c > '9') return name;
  return name.substr(0, at);
}

bool number(std::string_view text, uint64_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

// Null when the rule is malformed.
std::unique_ptr<Rule> parse(std::string_view text) {
  auto rule = std::make_unique<Rule>();
  size_t colon = text.find(':');
  if (colon == std::string_view::npos) return nullptr;
  std::string_view name = text.substr(0, colon), nth = text.substr(colon + 1);
  size_t at = name.find('@');
  if (at != std::string_view::npos) {
    rule->library = name.substr(at + 1);
    if (rule->library.empty()) return nullptr;
    name = name.substr(0, at);
  }
  size_t slash = name.find('/');
  if (slash != std::string_view::npos) {
    rule->kernel = name.substr(slash + 1);
    if (rule->kernel.empty()) return nullptr;
    name = name.substr(0, slash);
  }
  if (name.substr(0, 2) != "cu") return nullptr;
  rule->entry = name;
  colon = nth.find(':');
  if (colon != std::string_view::npos) {
    uint64_t code = 0;
    if (!number(nth.substr(colon + 1), &code) || code == 0 || code > 100000) return nullptr;
    rule->code = static_cast<CUresult>(code);
    nth = nth.substr(0, colon);
  }
  if (!nth.empty() && nth.back() == '+') {
    rule->onwards = true;
    nth.remove_suffix(1);
  }
  if (!number(nth, &rule->nth) || rule->nth == 0) return nullptr;
  return rule;
}

std::vector<std::unique_ptr<Rule>> parse_all() {
  std::vector<std::unique_ptr<Rule>> rules;
  const char* v = getenv("STANDIN_CUDA_FAIL");
  if (!v || !*v) return rules;
  std::string_view rest = v;
  while (!rest.empty()) {
    size_t comma = std::min(rest.find(','), rest.size());
    std::string_view one = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (auto rule = parse(one))
      rules.push_back(std::move(rule));
    else
      fprintf(stderr,
              "STANDIN_CUDA_FAIL: '%.*s' ignored, write name[/kernel-substring][@library-substring]:nth[:code], for "
              "example "
              "cuMemAlloc:2 or cuLaunchKernel/absmax:1+:719\n",
              static_cast<int>(one.size()), one.data());
  }
  return rules;
}
const std::vector<std::unique_ptr<Rule>>& rules() {
  static auto& r = *new std::vector<std::unique_ptr<Rule>>(parse_all());
  return r;
}

bool called_by(const void* caller, const std::string& library) {
  Dl_info info{};
  return dladdr(caller, &info) != 0 && info.dli_fname && strstr(info.dli_fname, library.c_str());
}

// Calls by entry point, for STANDIN_CUDA_COUNT. Written when the process ends in order.
class Counts {
 public:
  Counts() {
    const char* v = getenv("STANDIN_CUDA_COUNT");
    const char* colon = v ? strchr(v, ':') : nullptr;
    if (!colon || colon == v || !colon[1]) return;
    library_.assign(v, colon);
    file_ = colon + 1;
  }
  bool wanted() const { return !file_.empty(); }
  void add(const char* entry, const void* caller) {
    if (!wanted() || !called_by(caller, library_)) return;
    std::lock_guard lock(mutex_);
    calls_[entry]++;
  }
  void write() {
    if (!wanted()) return;
    std::lock_guard lock(mutex_);
    FILE* out = fopen(file_.c_str(), "w");
    if (!out) return;
    for (const auto& [entry, n] : calls_) fprintf(out, "%s %llu\n", entry.c_str(), static_cast<unsigned long long>(n));
    fclose(out);
  }

 private:
  std::string library_, file_;
  std::mutex mutex_;
  std::map<std::string, uint64_t> calls_;
};
Counts& counts() {
  static auto& c = *new Counts;
  return c;
}
__attribute__((destructor)) void write_counts() {
  counts().write();
}
}  // namespace

bool failures_wanted() {
  static const bool wanted = !rules().empty() || counts().wanted();
  return wanted;
}

CUresult injected_failure(const char* entry, const char* kernel, const void* caller) {
  counts().add(entry, caller);
  CUresult result = CUDA_SUCCESS;
  for (auto& rule : rules()) {
    if (rule->entry != entry && rule->entry != unversioned(entry)) continue;
    if (!rule->kernel.empty() && (!kernel || !strstr(kernel, rule->kernel.c_str()))) continue;
    if (!rule->library.empty() && !called_by(caller, rule->library)) continue;
    uint64_t n = ++rule->calls;
    if (n == rule->nth || (rule->onwards && n > rule->nth)) result = rule->code;
  }
  if (result)
    trace("\"src\":\"cuda\",\"ev\":\"injected_failure\",\"api\":\"%s\",\"result\":%d", entry, static_cast<int>(result));
  return result;
}
}  // namespace standin::cuda
