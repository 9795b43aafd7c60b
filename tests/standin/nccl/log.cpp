#include "log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

namespace standin {
namespace {

std::mutex log_mutex;
char warning[1024] = "";
thread_local int log_device = 0;

struct Sink {
  int level = kLogNone;
  FILE* file = stdout;
  std::string host;
};

int level_of(const std::string& name) {
  return name == "VERSION" ? kLogVersion : name == "WARN" ? kLogWarn : name == "INFO" ? kLogInfo : kLogNone;
}

// NCCL_DEBUG_FILE with %h and %p, the host and the process.
std::string expand(std::string pattern, const std::string& host) {
  for (const auto& [mark, value] : {std::pair("%h", host), std::pair("%p", std::to_string(getpid()))})
    for (size_t at = pattern.find(mark); at != std::string::npos; at = pattern.find(mark, at + value.size()))
      pattern.replace(at, 2, value);
  return pattern;
}

const Sink& sink() {
  static const Sink& s = *[] {
    auto* made = new Sink;
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    made->host = std::string(host, strcspn(host, "."));
    if (const char* level = getenv("NCCL_DEBUG")) made->level = level_of(level);
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
  if (s.level < level || !(flags & kLogged)) return;

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
  va_start(args, format);
  add(vsnprintf(text + used, sizeof text - used, format, args));
  va_end(args);
  text[used++] = '\n';
  std::lock_guard lock(log_mutex);
  fwrite(text, 1, used, s.file);
  fflush(s.file);
}

}  // namespace standin
