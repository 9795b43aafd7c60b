// The least that a profiler plugin can do: it asks for the events that gradprobe asks for, and writes NULL.
#include <cstdint>

namespace {

int init(void** context, std::uint64_t, int* mask, const char*, int, int, int, void*) {
  static char object;
  *context = &object;
  *mask = 1 | 2 | 256 | 512 | 2048 | 4096;
  return 0;
}
int start_event(void*, void** handle, void*) {
  *handle = nullptr;
  return 0;
}
int stop_event(void*) {
  return 0;
}
int record_event_state(void*, int, void*) {
  return 0;
}
int finalize(void*) {
  return 0;
}

struct Profiler {
  const char* name;
  int (*init)(void**, std::uint64_t, int*, const char*, int, int, int, void*);
  int (*start_event)(void*, void**, void*);
  int (*stop_event)(void*);
  int (*record_event_state)(void*, int, void*);
  int (*finalize)(void*);
};

}  // namespace

extern "C" __attribute__((visibility("default")))
const Profiler ncclProfiler_v6 = {"empty", init, start_event, stop_event, record_event_state, finalize};
