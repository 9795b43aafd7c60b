// libcudartaudit.so, an LD_AUDIT library: lets a library that has the CUDA runtime linked in run on the stand-in.
//   LD_AUDIT=.../libcudartaudit.so LD_PRELOAD=.../libcudart.so.13 PROGRAM
//
// A statically linked runtime's functions are local, but the library's symbol table still names them. Each gets a jump,
// written over its first five bytes before the library is relocated, to the function of the same name in the stand-in
// runtime that LD_PRELOAD brings. For what the stand-in lacks, one line on stderr names the function, and it returns
// cudaErrorNotSupported. STANDIN_AUDIT_VERBOSE=1 prints what was diverted, and what couldn't be.
#include <link.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "object_file.hpp"

namespace standin::audit {
namespace {
constexpr int kNotSupported = 801;  // cudaErrorNotSupported
constexpr size_t kMostFunctions = 4096;
constexpr size_t kJumpBytes = 5;

struct Function {
  const char* name;
  uintptr_t address;
};
Function g_standin[kMostFunctions];
size_t g_count = 0;
bool g_collected = false;

// Prints a line by write(2), because the program isn't running yet.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void say(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  int n = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  size_t length = n < 0 ? 0 : static_cast<size_t>(n) < sizeof line - 1 ? static_cast<size_t>(n) : sizeof line - 2;
  line[length] = '\n';
  if (write(STDERR_FILENO, line, length + 1) < 0) return;
}
bool verbose() {
  static const bool v = [] {
    const char* e = getenv("STANDIN_AUDIT_VERBOSE");
    return e && *e == '1';
  }();
  return v;
}

bool starts(const char* text, const char* with) {
  return !strncmp(text, with, strlen(with));
}
bool is_capital(char c) {
  return c >= 'A' && c <= 'Z';
}
bool of_the_runtime(const char* name) {
  // What nvcc writes into every library that is linked on the device belongs to that library.
  for (const char* own : {"__cudaRegisterLinkedBinary", "__cudaUnregisterBinaryUtil", "__cudaRegisterUnifiedTable"})
    if (starts(name, own)) return false;
  return (starts(name, "cuda") && is_capital(name[4])) || (starts(name, "__cuda") && is_capital(name[6]));
}

void collect(const link_map* m) {
  ObjectFile file(m->l_name);
  if (!file) return;
  g_collected = true;
  file.functions(SHT_DYNSYM, [m](const Elf64_Sym& s, const char* name) {
    if (of_the_runtime(name) && g_count < kMostFunctions) g_standin[g_count++] = {strdup(name), m->l_addr + s.st_value};
  });
}
uintptr_t standin(const char* name, size_t length) {
  for (size_t i = 0; i < g_count; i++)
    if (!strncmp(g_standin[i].name, name, length) && !g_standin[i].name[length]) return g_standin[i].address;
  return 0;
}
// Also under the function's name for the per-thread default stream.
uintptr_t standin(const char* name) {
  size_t length = strlen(name);
  if (uintptr_t a = standin(name, length)) return a;
  const char* tail = length > 5 ? name + length - 5 : "";
  return !strcmp(tail, "_ptsz") || !strcmp(tail, "_ptds") ? standin(name, length - 5) : 0;
}

// Memory for code within reach of a five-byte jump from a place.
class Trampolines {
 public:
  Trampolines(uintptr_t near, size_t bytes) {
    constexpr uintptr_t kStep = 1 << 20, kReach = 1ul << 30;
    for (uintptr_t distance = kStep; distance < kReach && !next_; distance += kStep)
      for (uintptr_t at : {near - distance, near + distance}) {
        void* want = reinterpret_cast<void*>(at & ~uintptr_t{4095});
        void* got = mmap(want, bytes, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == want) {
          next_ = static_cast<unsigned char*>(got);
          break;
        }
        if (got != MAP_FAILED) munmap(got, bytes);
      }
  }
  explicit operator bool() const { return next_ != nullptr; }

  // jmp *[rip + 2]
  unsigned char* to(uintptr_t target) {
    constexpr unsigned char kCode[8] = {0xff, 0x25, 2, 0, 0, 0, 0x90, 0x90};
    unsigned char* at = next_;
    memcpy(at, kCode, sizeof kCode);
    memcpy(at + 8, &target, sizeof target);
    next_ += 16;
    return at;
  }
  // lea rdi, [rip + to the record behind the code]; jmp *[rip + 3]
  unsigned char* to_missing(uintptr_t handler, const char* name) {
    constexpr unsigned char kCode[16] = {0x48, 0x8d, 0x3d, 17, 0, 0, 0, 0xff, 0x25, 3, 0, 0, 0, 0x90, 0x90, 0x90};
    unsigned char* at = next_;
    memcpy(at, kCode, sizeof kCode);
    memcpy(at + 16, &handler, sizeof handler);
    at[24] = 0;  // whether the line was printed
    strcpy(reinterpret_cast<char*>(at + 25), name);
    next_ += (25 + strlen(name) + 1 + 15) & ~size_t{15};
    return at;
  }
  static size_t most_bytes(const char* name) { return 48 + strlen(name); }

 private:
  unsigned char* next_ = nullptr;
};

int missing(unsigned char* record) {
  if (!__atomic_exchange_n(record, 1, __ATOMIC_RELAXED))
    say("standin audit: %s is not in the stand-in runtime", reinterpret_cast<char*>(record + 1));
  return kNotSupported;
}

struct Extent {
  size_t count = 0, bytes = 0;
  uintptr_t low = ~uintptr_t{0}, high = 0;
  bool registers = false;
};

void divert(const link_map* m) {
  ObjectFile file(m->l_name);
  if (!file || !file.has_section(".nvFatBinSegment")) return;
  Extent e;
  bool named = file.functions(SHT_SYMTAB, [&](const Elf64_Sym& s, const char* name) {
    if (!of_the_runtime(name)) return;
    if (!strcmp(name, "__cudaRegisterFatBinary")) e.registers = true;
    uintptr_t at = m->l_addr + s.st_value;
    e.count++;
    e.bytes += Trampolines::most_bytes(name);
    e.low = at < e.low ? at : e.low;
    e.high = at + s.st_size > e.high ? at + s.st_size : e.high;
  });
  if (file.imports("__cudaRegisterFatBinary")) return;  // linked dynamically: LD_PRELOAD is enough
  if (!named || !e.registers) {
    // A framework brings several libraries of this kind that the tests never call, so only NCCL's is always named.
    if (verbose() || file.exports("ncclGetUniqueId"))
      say("standin audit: %s carries device code and has no symbol table: its CUDA runtime can't be diverted; use a "
          "library that isn't stripped",
          m->l_name);
    return;
  }
  if (!g_collected) {
    say("standin audit: %s has the CUDA runtime linked in, but LD_PRELOAD has no stand-in libcudart", m->l_name);
    return;
  }
  Trampolines trampolines(e.low, (e.bytes + 4095) & ~size_t{4095});
  auto first = reinterpret_cast<void*>(e.low & ~uintptr_t{4095});
  size_t bytes = ((e.high + 4095) & ~uintptr_t{4095}) - (e.low & ~uintptr_t{4095});
  if (!trampolines || mprotect(first, bytes, PROT_READ | PROT_WRITE | PROT_EXEC)) {
    say("standin audit: %s can't be changed in memory", m->l_name);
    return;
  }
  size_t diverted = 0;
  file.functions(SHT_SYMTAB, [&](const Elf64_Sym& s, const char* name) {
    if (!of_the_runtime(name) || s.st_size < kJumpBytes) return;
    uintptr_t target = standin(name);
    diverted += target != 0;
    unsigned char* to =
        target ? trampolines.to(target) : trampolines.to_missing(reinterpret_cast<uintptr_t>(&missing), name);
    auto* function = reinterpret_cast<unsigned char*>(m->l_addr + s.st_value);
    auto distance = static_cast<int32_t>(to - (function + kJumpBytes));
    function[0] = 0xe9;
    memcpy(function + 1, &distance, sizeof distance);
  });
  mprotect(first, bytes, PROT_READ | PROT_EXEC);
  if (verbose()) say("standin audit: %s: %zu of %zu runtime functions diverted", m->l_name, diverted, e.count);
}
}  // namespace
}  // namespace standin::audit

extern "C" __attribute__((visibility("default"))) unsigned la_version(unsigned) {
  return LAV_CURRENT;
}
extern "C" __attribute__((visibility("default"))) unsigned la_objopen(link_map* m, Lmid_t, uintptr_t*) {
  using namespace standin::audit;
  const char* path = m->l_name;
  if (!path || !*path) return 0;
  const char* slash = strrchr(path, '/');
  const char* file = slash ? slash + 1 : path;
  if (starts(file, "libcudart.so.")) {
    if (!g_collected) collect(m);
  } else if (starts(file, "lib")) {
    divert(m);
  }
  return 0;
}
