// A profiler plugin that has the structs 1 to 4 only. Nobody may call them: they are empty.
struct Profiler {
  const void* members[6];
};

extern "C" {
extern const Profiler ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3, ncclProfiler_v4;
const Profiler ncclProfiler_v1 = {}, ncclProfiler_v2 = {}, ncclProfiler_v3 = {}, ncclProfiler_v4 = {};
}
