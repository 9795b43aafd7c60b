// The library's log, steered by NCCL_DEBUG and NCCL_DEBUG_FILE; also what a profiler plugin gets as
// its logger.
#pragma once

namespace standin {

enum LogLevel { kLogNone = 0, kLogVersion = 1, kLogWarn = 2, kLogInfo = 3 };
enum LogSubsystem : unsigned long {
  kLogInit = 0x1,
  kLogEnv = 0x80,
  kLogged = 0x1081,  // what the real library shows by default: these and its bootstrap
  kLogAll = ~0ul
};

// The signature that the profiler interface gives to its logger.
extern "C" void standin_nccl_log(int level, unsigned long flags, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6), visibility("hidden")));

// The last warning, for ncclGetLastError.
const char* last_warning();
// The device that lines of this thread name.
void set_log_device(int ordinal);

}  // namespace standin

#define STANDIN_WARN(...) \
  ::standin::standin_nccl_log(::standin::kLogWarn, ::standin::kLogAll, __func__, __LINE__, __VA_ARGS__)
#define STANDIN_INFO(flags, ...) \
  ::standin::standin_nccl_log(::standin::kLogInfo, (flags), __func__, __LINE__, __VA_ARGS__)
