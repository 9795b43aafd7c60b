// A profiler plugin around gradprobe's: forwards every call, and once, between NCCL's launch and the moment at which
// gradprobe is told the buffers, stops the host.
//
// FAULTS_INNER    gradprobe's library
// FAULTS_STOP     "n:process": SIGSTOP after the n-th launch (from 1). "n:thread": this thread stays until the files
//                 done0 and done2 are in FAULTS_FOLDER, which the other ranks write when they have the collective's
//                 result, or for 20 s.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "fake_nccl.hpp"

namespace {

using gradprobe::test::Descriptor;
using gradprobe::test::Logger;
using gradprobe::test::ProfilerV5;

constexpr std::uint64_t kKernelLaunch = 2048;

const ProfilerV5& inner() {
  static const auto* profiler = static_cast<const ProfilerV5*>(
      dlsym(dlopen(std::getenv("FAULTS_INNER"), RTLD_NOW | RTLD_LOCAL), "ncclProfiler_v5"));
  return *profiler;
}

void wait_for_the_others() {
  const std::string folder = std::getenv("FAULTS_FOLDER");
  for (int i = 0; i < 20000; i++) {
    if (access((folder + "/done0").c_str(), F_OK) == 0 && access((folder + "/done2").c_str(), F_OK) == 0) {
      std::ofstream(folder + "/others_were_first") << "x";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void stop_here() {
  static int launches = 0;
  const char* text = std::getenv("FAULTS_STOP");
  if (text == nullptr || ++launches != std::atoi(text)) return;
  if (std::strstr(text, ":process") != nullptr)
    raise(SIGSTOP);
  else
    wait_for_the_others();
}

thread_local void* t_launch = nullptr;

int init(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, Logger logger) {
  return inner().init(context, id, mask, name, nodes, ranks, rank, logger);
}
int start_event(void* context, void** handle, Descriptor* d) {
  const int result = inner().start_event(context, handle, d);
  if (d->type == kKernelLaunch) t_launch = *handle;
  return result;
}
int stop_event(void* handle) {
  const int result = inner().stop_event(handle);
  if (handle != nullptr && handle == t_launch) {
    t_launch = nullptr;
    stop_here();
  }
  return result;
}
int record_event_state(void* handle, int state, void* arguments) {
  return inner().record_event_state(handle, state, arguments);
}
int finalize(void* context) {
  return inner().finalize(context);
}

}  // namespace

extern "C" __attribute__((visibility("default")))
const ProfilerV5 ncclProfiler_v5 = {"stopping", init, start_event, stop_event, record_event_state, finalize};
