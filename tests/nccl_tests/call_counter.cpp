// Counts a program's calls of NCCL, without any of gradprobe's code. It goes into LD_PRELOAD of a program that links
// libnccl.so.2 dynamically. When the process ends, CALL_COUNTER_FILE.PID gets a line "function rank calls tiny" for
// each function and rank that called; tiny are the calls of up to 8 elements.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {
using Comm = void*;
using Stream = void*;

struct Count {
  unsigned long calls = 0, tiny = 0;
};
struct Counts {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, Count> by_function;

  ~Counts() {
    const char* prefix = std::getenv("CALL_COUNTER_FILE");
    if (!prefix || by_function.empty()) return;
    std::FILE* file = std::fopen((prefix + ("." + std::to_string(getpid()))).c_str(), "w");
    if (!file) return;
    for (const auto& [key, count] : by_function)
      std::fprintf(file, "%s %d %lu %lu\n", key.first.c_str(), key.second, count.calls, count.tiny);
    std::fclose(file);
  }
};
Counts g_counts;

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void note(const char* function, Comm comm, std::size_t elements) {
  static const auto user_rank = real<int (*)(Comm, int*)>("ncclCommUserRank");
  int rank = -1;
  if (user_rank) user_rank(comm, &rank);
  std::lock_guard lock(g_counts.mutex);
  Count& count = g_counts.by_function[{function, rank}];
  count.calls++;
  count.tiny += elements <= 8;
}
}  // namespace

#define COUNTED extern "C" __attribute__((visibility("default"))) int

COUNTED ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, Comm comm, Stream stream) {
  static const auto next = real<decltype(&ncclAllReduce)>("ncclAllReduce");
  note("AllReduce", comm, count);
  return next(in, out, count, type, op, comm, stream);
}
COUNTED ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, Comm comm, Stream stream) {
  static const auto next = real<decltype(&ncclReduceScatter)>("ncclReduceScatter");
  note("ReduceScatter", comm, count);
  return next(in, out, count, type, op, comm, stream);
}
COUNTED ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, Comm comm, Stream stream) {
  static const auto next = real<decltype(&ncclReduce)>("ncclReduce");
  note("Reduce", comm, count);
  return next(in, out, count, type, op, root, comm, stream);
}
COUNTED ncclAllGather(const void* in, void* out, std::size_t count, int type, Comm comm, Stream stream) {
  static const auto next = real<decltype(&ncclAllGather)>("ncclAllGather");
  note("AllGather", comm, count);
  return next(in, out, count, type, comm, stream);
}
COUNTED ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, Comm comm, Stream stream) {
  static const auto next = real<decltype(&ncclBroadcast)>("ncclBroadcast");
  note("Broadcast", comm, count);
  return next(in, out, count, type, root, comm, stream);
}
