// Drives a profiler plugin's callbacks as NCCL 2.28 and later do for all-reduces, one at a time on one thread, and
// measures what they cost the caller. callback_cost.py runs it; by hand:
//   gradprobe_callbacks PLUGIN --count N [OTHERS]
//                                            N all-reduces in drive_counted(), for a counting tool to toggle on, while
//                                            OTHERS more communicators are open
//   gradprobe_callbacks PLUGIN [Google Benchmark's options]
// On a null CUDA driver (null_cuda.cpp) that is on the library path, or on whatever else the plugin opens.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "descriptor_v5.hpp"

namespace {

using gradprobe::DescriptorV5;

struct Profiler {
  const char* name;
  int (*init)(void**, std::uint64_t, int*, const char*, int, int, int, void*);
  int (*start_event)(void*, void**, DescriptorV5*);
  int (*stop_event)(void*);
  int (*record_event_state)(void*, int, void*);
  int (*finalize)(void*);
};

enum Event : int { kGroup = 1, kColl = 2, kGroupApi = 256, kCollApi = 512, kKernelLaunch = 2048 };

// A step of a training run: buckets, and the loss.
constexpr std::size_t kCounts[] = {6291456, 6553600, 6553600, 6553600, 6029312, 7077888, 5111808, 1572864, 1};
constexpr int kSettle = 512;  // all-reduces between pauses, in which the collector gives slots back

// A counting tool slows the collector down as well.
void pause(bool counted = false) {
  std::this_thread::sleep_for(std::chrono::milliseconds(counted ? 200 : 20));
}

class Caller {
 public:
  explicit Caller(const Profiler& profiler) : profiler_(profiler) {
    if (profiler_.init(&context_, 0x1234, &mask_, "", 1, 8, 0, nullptr) != 0) std::abort();
  }
  ~Caller() {
    if (context_ != nullptr) profiler_.finalize(context_);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  int mask() const { return mask_; }

  // NCCL's rules: events by the mask, whose absence costs a branch; no stop without a handle.
  void all_reduce() {
    const std::size_t count = kCounts[done_++ % std::size(kCounts)];
    constexpr int kAny = kGroup | kColl | kGroupApi | kCollApi | kKernelLaunch;
    if ((mask_ & kAny) == 0) return;
    DescriptorV5 d{};
    d.type = kGroupApi;
    d.group_api.group_depth = 1;
    start(&group_api_, &d);
    record(group_api_, 23);
    if ((mask_ & (kCollApi | kColl)) != 0) {
      d = {};
      d.type = kCollApi;
      d.parent = group_api_;
      d.coll_api = {"AllReduce", count, "ncclBfloat16", 0, this, false};
      start(&coll_api_, &d);
      stop(coll_api_);
    }
    record(group_api_, 24);
    if ((mask_ & kKernelLaunch) != 0) {
      d = {};
      d.type = kKernelLaunch;
      d.parent = group_api_;
      d.kernel_launch.stream = this;
      start(&kernel_launch_, &d);
      stop(kernel_launch_);
    }
    if ((mask_ & (kGroup | kColl)) != 0) {
      d = {};
      d.type = kGroup;
      start(&group_, &d);
      if ((mask_ & kColl) != 0) {
        d = {};
        d.type = kColl;
        d.parent = coll_api_;
        d.coll = {0, "AllReduce", buffer_, buffer_, count, 0, "ncclBfloat16", 8, 16, "RING", "SIMPLE", group_};
        start(&coll_, &d);
        stop(coll_);
      }
      stop(group_);
    }
    stop(group_api_);
  }

 private:
  void start(void** handle, DescriptorV5* d) { profiler_.start_event(context_, handle, d); }
  void stop(void* handle) {
    if (handle != nullptr) profiler_.stop_event(handle);
  }
  void record(void* handle, int state) {
    if (handle != nullptr) profiler_.record_event_state(handle, state, nullptr);
  }

  const Profiler& profiler_;
  void* context_ = nullptr;
  int mask_ = 0;
  std::size_t done_ = 0;
  void *group_api_ = nullptr, *coll_api_ = nullptr, *kernel_launch_ = nullptr, *group_ = nullptr, *coll_ = nullptr;
  char buffer_[64] = {};
};

// So many that the plugin has found the steps, also where it takes nothing but the losses.
void warm_up(Caller* caller, bool counted = false) {
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < kSettle; i++) caller->all_reduce();
    pause(counted);
  }
}

unsigned long launches() {
  using Count = unsigned long (*)();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto count = driver != nullptr ? reinterpret_cast<Count>(dlsym(driver, "null_cuda_launches")) : nullptr;
  return count != nullptr ? count() : 0;
}

}  // namespace

extern "C" __attribute__((noinline)) void drive_counted(Caller* caller, int all_reduces) {
  for (int i = 0; i < all_reduces; i++) caller->all_reduce();
}

namespace {

int count(const Profiler& profiler, int all_reduces, int others) {
  std::vector<std::unique_ptr<Caller>> open;
  for (int i = 0; i < others; i++) open.push_back(std::make_unique<Caller>(profiler));
  Caller caller(profiler);
  warm_up(&caller, true);
  const unsigned long before = launches();
  drive_counted(&caller, all_reduces);
  std::printf("mask %d, launches %lu of %d\n", caller.mask(), launches() - before, all_reduces);
  return 0;
}

void time(benchmark::State& state, const Profiler& profiler) {
  Caller caller(profiler);
  warm_up(&caller);
  while (state.KeepRunningBatch(kSettle)) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSettle; i++) caller.all_reduce();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(took.count());
    pause();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s PLUGIN [--count N [OTHERS] | options of Google Benchmark]\n", argv[0]);
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const void* found = dlsym(library, "ncclProfiler_v6");
  if (found == nullptr) found = dlsym(library, "ncclProfiler_v5");
  if (found == nullptr) {
    std::fprintf(stderr, "%s has neither ncclProfiler_v6 nor ncclProfiler_v5\n", argv[1]);
    return 2;
  }
  const auto& profiler = *static_cast<const Profiler*>(found);
  if ((argc == 4 || argc == 5) && std::strcmp(argv[2], "--count") == 0)
    return count(profiler, std::atoi(argv[3]), argc == 5 ? std::atoi(argv[4]) : 0);

  argv[1] = argv[0];
  argc--;
  argv++;
  benchmark::RegisterBenchmark("all_reduce", [&](benchmark::State& s) { time(s, profiler); })
      ->UseManualTime()
      ->Iterations(8 * kSettle);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
