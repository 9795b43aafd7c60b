#include "log.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

namespace standin {
namespace {

std::mutex log_mutex;
char warning[1024] = "";
thread_local int log_device = 0;

struct Sink {
  int level = kLogNone;
  unsigned long mask = kLogInit | kLogBootstrap | kLogEnv;
  FILE* file = stdout;
  std::string host;
};

int level_of(const char* name) {
  struct Named {
    const char* name;
    int level;
  };
  for (Named n : {Named{"VERSION", kLogVersion}, Named{"WARN", kLogWarn}, Named{"INFO", kLogInfo},
                  Named{"ABORT", kLogAbort}, Named{"TRACE", kLogTrace}})
    if (!strcasecmp(name, n.name)) return n.level;
  return kLogNone;
}

unsigned long subsystems(const char* list, unsigned long defaults) {
  static const char* const kNames[] = {"INIT",  "COLL", "P2P",   "SHM",  "NET",       "GRAPH", "TUNING",  "ENV",
                                       "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP", "REG",   "PROFILE", "RAS"};
  bool invert = *list == '^';
  unsigned long mask = invert ? ~0ul : 0;
  if (invert) list++;
  std::string text = list;
  for (char *save = nullptr, *one = strtok_r(text.data(), ",", &save); one; one = strtok_r(nullptr, ",", &save)) {
    unsigned long bits = strcasecmp(one, "ALL") ? 0 : ~0ul;
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++)
      if (!strcasecmp(one, kNames[i])) bits = 1ul << i;
    mask = invert ? mask & ~bits : mask | bits;
  }
  return mask ? mask : defaults;
}

std::string expand(const char* pattern, const std::string& host) {
  std::string out;
  for (const char* p = pattern; *p; p++) {
    if (*p != '%' || !p[1]) {
      out += *p;
      continue;
    }
    switch (*++p) {
      case '%':
        out += '%';
        break;
      case 'h':
        out += host;
        break;
      case 'p':
        out += std::to_string(getpid());
        break;
      default:
        (out += '%') += *p;
    }
  }
  return out;
}

const Sink& sink() {
  static const Sink& s = *[] {
    auto* made = new Sink;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    made->host = std::string(host, strcspn(host, "."));
    if (const char* level = getenv("NCCL_DEBUG")) made->level = level_of(level);
    if (const char* list = getenv("NCCL_DEBUG_SUBSYS")) made->mask = subsystems(list, made->mask);
    const char* path = getenv("NCCL_DEBUG_FILE");
    if (path && *path && made->level > kLogVersion) {
      if (FILE* f = fopen(expand(path, made->host).c_str(), "w")) {
        setlinebuf(f);
        made->file = f;
      }
    }
    return made;
  }();
  return s;
}

}  // namespace

void set_log_device(int ordinal) {
  log_device = ordinal;
}

const char* last_warning() {
  std::lock_guard lock(log_mutex);
  return warning;
}

extern "C" void standin_nccl_log(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
  va_list args;
  if (level == kLogWarn) {
    std::lock_guard lock(log_mutex);
    va_start(args, format);
    vsnprintf(warning, sizeof warning, format, args);
    va_end(args);
  }
  const Sink& s = sink();
  if (s.level < level || !(flags & s.mask)) return;

  char text[1024];
  size_t used = 0;
  auto add = [&](int printed) {
    if (printed > 0) used += static_cast<size_t>(printed);
    if (used > sizeof text - 2) used = sizeof text - 2;
  };
  if (level == kLogWarn) {
    time_t now = time(nullptr);
    tm parts;
    localtime_r(&now, &parts);
    used += strftime(text, sizeof text, "\n[%F %T] ", &parts);
  }
  if (level != kLogVersion)
    add(snprintf(text + used, sizeof text - used, "%s:%d:%ld ", s.host.c_str(), getpid(), syscall(SYS_gettid)));
  if (level == kLogWarn)
    add(snprintf(text + used, sizeof text - used, "[%d] %s:%d NCCL WARN ", log_device, file, line));
  if (level == kLogInfo) add(snprintf(text + used, sizeof text - used, "[%d] NCCL INFO ", log_device));
  if (level == kLogTrace)
    add(snprintf(text + used, sizeof text - used, "[%d] %s:%d NCCL TRACE ", log_device, file, line));
  va_start(args, format);
  add(vsnprintf(text + used, sizeof text - used, format, args));
  va_end(args);
  text[used++] = '\n';
  std::lock_guard lock(log_mutex);
  fwrite(text, 1, used, s.file);
  fflush(s.file);
}

}  // namespace standin
