// Preloaded into a rank: makes the n-th call of a libc function fail when the plugin makes it, and counts its calls.
//
// FAULTS_FAIL=function:n[:errno]   the n-th call (from 1; "n+": and all later ones) by the library fails, with ENOMEM
//                                  where no number is given
// FAULTS_SIGNAL=n                  the n-th time that the plugin asks for the time on the main thread, SIGTERM comes
// FAULTS_COUNT=file                at the end of the process: a line "function calls" for each that was called
//
// The caller is known by its return address, so other libraries' calls neither count nor fail.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

extern "C" void* __libc_malloc(std::size_t);

namespace {

constexpr const char* kLibrary = "nccl-profiler-gradprobe";

enum Function {
  kMmap,
  kMunmap,
  kMadvise,
  kOpen,
  kMkdir,
  kStat,
  kLstat,
  kFstatvfs,
  kFallocate,
  kRead,
  kWrite,
  kUnlink,
  kGethostname,
  kThread,
  kThreadName,
  kSigmask,
  kAtfork,
  kAtexit,
  kDlopen,
  kDlsym,
  kMalloc,
  kTimeOnMainThread,
  kFunctions
};
constexpr const char* kNames[kFunctions] = {"mmap",
                                            "munmap",
                                            "madvise",
                                            "open",
                                            "mkdir",
                                            "stat",
                                            "lstat",
                                            "fstatvfs",
                                            "posix_fallocate",
                                            "read",
                                            "write",
                                            "unlink",
                                            "gethostname",
                                            "pthread_create",
                                            "pthread_setname_np",
                                            "pthread_sigmask",
                                            "__register_atfork",
                                            "__cxa_atexit",
                                            "dlopen",
                                            "dlsym",
                                            "malloc",
                                            "time_on_main_thread"};

std::atomic<unsigned> g_calls[kFunctions];

struct Wanted {
  int function = -1;
  unsigned n = 0;
  bool onwards = false;
  int error = ENOMEM;
};

const Wanted& wanted() {
  static const Wanted parsed = [] {
    Wanted w;
    const char* text = std::getenv("FAULTS_FAIL");
    const char* colon = text != nullptr ? std::strchr(text, ':') : nullptr;
    if (colon == nullptr) return w;
    for (int f = 0; f < kFunctions; f++)
      if (std::strlen(kNames[f]) == static_cast<std::size_t>(colon - text) &&
          std::strncmp(text, kNames[f], static_cast<std::size_t>(colon - text)) == 0)
        w.function = f;
    char* end = nullptr;
    w.n = static_cast<unsigned>(std::strtoul(colon + 1, &end, 10));
    if (*end == '+') {
      w.onwards = true;
      end++;
    }
    if (*end == ':') w.error = std::atoi(end + 1);
    return w;
  }();
  return parsed;
}

// Lock-free, so it can be asked inside malloc.
bool by_the_plugin(void* caller) {
  dl_find_object found;
  return _dl_find_object(caller, &found) == 0 && found.dlfo_link_map != nullptr &&
         std::strstr(found.dlfo_link_map->l_name, kLibrary) != nullptr;
}

// Counts a call; the error that it shall give, or 0.
int failure(Function function, void* caller) {
  if (!by_the_plugin(caller)) return 0;
  const unsigned n = g_calls[function].fetch_add(1) + 1;
  return wanted().function == function && (n == wanted().n || (wanted().onwards && n > wanted().n)) ? wanted().error
                                                                                                    : 0;
}

template <typename Signature>
Signature next(const char* name) {
  // dlsym is one of ours, so the real one is asked for by its version.
  static const auto real_dlsym =
      reinterpret_cast<void* (*)(void*, const char*)>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  return reinterpret_cast<Signature>(real_dlsym(RTLD_NEXT, name));
}

template <typename R>
R fail(int error, R value) {
  errno = error;
  return value;
}

__attribute__((destructor)) void write_counts() {
  const char* path = std::getenv("FAULTS_COUNT");
  if (path == nullptr) return;
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) return;
  for (int f = 0; f < kFunctions; f++)
    if (g_calls[f] != 0) std::fprintf(out, "%s %u\n", kNames[f], g_calls[f].load());
  std::fclose(out);
}

}  // namespace

#define CALLER __builtin_return_address(0)
// An interposed function: `function` is its number, `on_failure` what it returns with errno set.
#define INTERPOSE(function, result, name, parameters, arguments, on_failure)         \
  extern "C" result name parameters {                                                \
    static const auto real = next<result(*) parameters>(#name);                      \
    if (const int error = failure(function, CALLER)) return fail(error, on_failure); \
    return real arguments;                                                           \
  }

INTERPOSE(kMmap, void*, mmap, (void* at, std::size_t n, int p, int f, int fd, off_t o) noexcept, (at, n, p, f, fd, o),
          MAP_FAILED)
INTERPOSE(kMunmap, int, munmap, (void* at, std::size_t n) noexcept, (at, n), -1)
INTERPOSE(kMadvise, int, madvise, (void* at, std::size_t n, int advice) noexcept, (at, n, advice), -1)
INTERPOSE(kMkdir, int, mkdir, (const char* path, mode_t mode) noexcept, (path, mode), -1)
INTERPOSE(kStat, int, stat, (const char* path, struct stat* s) noexcept, (path, s), -1)
INTERPOSE(kLstat, int, lstat, (const char* path, struct stat* s) noexcept, (path, s), -1)
INTERPOSE(kFstatvfs, int, fstatvfs, (int fd, struct statvfs* s) noexcept, (fd, s), -1)
INTERPOSE(kRead, ssize_t, read, (int fd, void* p, std::size_t n), (fd, p, n), ssize_t{-1})
INTERPOSE(kWrite, ssize_t, write, (int fd, const void* p, std::size_t n), (fd, p, n), ssize_t{-1})
INTERPOSE(kUnlink, int, unlink, (const char* path) noexcept, (path), -1)
INTERPOSE(kGethostname, int, gethostname, (char* name, std::size_t n) noexcept, (name, n), -1)
INTERPOSE(kDlopen, void*, dlopen, (const char* file, int flags) noexcept, (file, flags), static_cast<void*>(nullptr))
// These return the error itself.
INTERPOSE(kFallocate, int, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n), error)
INTERPOSE(kThread, int, pthread_create,
          (pthread_t * t, const pthread_attr_t* a, void* (*start)(void*), void* argument) noexcept,
          (t, a, start, argument), error)
INTERPOSE(kThreadName, int, pthread_setname_np, (pthread_t t, const char* name) noexcept, (t, name), error)
INTERPOSE(kSigmask, int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* old) noexcept, (how, set, old),
          error)
INTERPOSE(kAtfork, int, __register_atfork, (void (*a)(), void (*b)(), void (*c)(), void* d) noexcept, (a, b, c, d),
          error)
INTERPOSE(kAtexit, int, __cxa_atexit, (void (*f)(void*), void* argument, void* d) noexcept, (f, argument, d), -1)

extern "C" int open(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (const int error = failure(kOpen, CALLER)) return fail(error, -1);
  return real(path, flags, mode);
}

extern "C" void* dlsym(void* library, const char* name) noexcept {
  static const auto real = reinterpret_cast<void* (*)(void*, const char*)>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  if (failure(kDlsym, CALLER) != 0) return nullptr;
  return real(library, name);
}

extern "C" int clock_gettime(clockid_t clock, timespec* t) noexcept {
  static const auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  static const char* const at = std::getenv("FAULTS_SIGNAL");
  if (gettid() == getpid() && by_the_plugin(CALLER)) {
    const unsigned n = g_calls[kTimeOnMainThread].fetch_add(1) + 1;
    if (at != nullptr && n == static_cast<unsigned>(std::atoi(at))) raise(SIGTERM);
  }
  return real(clock, t);
}

extern "C" void* malloc(std::size_t bytes) noexcept {
  if (const int error = failure(kMalloc, CALLER)) return fail(error, static_cast<void*>(nullptr));
  return __libc_malloc(bytes);
}
