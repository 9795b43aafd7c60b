// Messages to the user: through NCCL's logger, or to stderr where that would swallow them (GRADPROBE_LOG).
#pragma once

#include <cstdint>

#include "config.hpp"

namespace gradprobe {

// NCCL's ncclDebugLogger_t. Levels and flags: nccl's debug.h.
using NcclLogger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

// Copyable, thread-safe: NCCL's logger locks by itself.
class Log {
 public:
  Log() = default;
  Log(NcclLogger logger, LogTarget target);

  // Something is not as asked for; one line, without a line feed.
  void warn(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  // What NCCL calls INFO: seen with NCCL_DEBUG=INFO.
  void info(const char* format, ...) const __attribute__((format(printf, 2, 3)));
  // As info, and to stderr when NCCL_DEBUG is not set: for lines that a new user should see once.
  void notice(const char* format, ...) const __attribute__((format(printf, 2, 3)));

 private:
  enum class Level { info, notice, warn };
  void write(Level level, const char* format, __builtin_va_list arguments) const;

  NcclLogger logger_ = nullptr;
  bool to_nccl_ = false;
  bool to_stderr_ = true;
};

}  // namespace gradprobe
