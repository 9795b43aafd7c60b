#include "log.hpp"

#include <pthread.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace gradprobe {
namespace {
constexpr int kNcclWarn = 2;
constexpr int kNcclInfo = 3;
constexpr unsigned long kNcclInit = 1;  // the subsystem whose INFO lines NCCL prints by default

// A message is not worth a process: writing to a pipe that nobody reads any more would raise SIGPIPE.
void write_line(const char* line, std::size_t bytes) {
  sigset_t pipe, pending, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t written = ::write(STDERR_FILENO, line, bytes);
  if (written < 0 && errno == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec now{};
    while (sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) continue;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}
}  // namespace

Log::Log(NcclLogger logger, LogTarget target) : logger_(logger) {
  // Below WARN (unset, VERSION) NCCL's logger drops warnings.
  const char* level = std::getenv("NCCL_DEBUG");
  const auto is = [level](const char* name) { return level != nullptr && strcasecmp(level, name) == 0; };
  const bool nccl_speaks = is("WARN") || is("INFO") || is("ABORT") || is("TRACE");
  to_nccl_ = logger != nullptr && (target == LogTarget::nccl || target == LogTarget::automatic);
  to_stderr_ =
      target == LogTarget::stderr_only || (target == LogTarget::automatic && (logger == nullptr || !nccl_speaks));
}

void Log::write(Level level, const char* format, va_list arguments) const {
  char line[1024];
  std::vsnprintf(line, sizeof line, format, arguments);  // NOLINT(clang-analyzer-valist.Uninitialized): callers do it
  if (to_nccl_) logger_(level == Level::warn ? kNcclWarn : kNcclInfo, kNcclInit, "gradprobe", 0, "gradprobe: %s", line);
  if (to_stderr_ && level != Level::info) {
    // One write() for the whole line, so that lines of several ranks on one terminal don't mix.
    char whole[1100];
    const int n = std::snprintf(whole, sizeof whole, "gradprobe: %s\n", line);
    if (n > 0) {
      write_line(whole, std::min<std::size_t>(static_cast<std::size_t>(n), sizeof whole - 1));
    }
  }
}

void Log::warn(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  write(Level::warn, format, arguments);
  va_end(arguments);
}

void Log::info(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  write(Level::info, format, arguments);
  va_end(arguments);
}

void Log::notice(const char* format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  write(Level::notice, format, arguments);
  va_end(arguments);
}

}  // namespace gradprobe
