// Every call of the CUDA driver and of libc that the plugin makes and that can fail, made to fail once, one after
// another, on one of three ranks: the training ends with the weights that it has without the plugin, and the plugin
// says in one line what failed, unless the failure costs nothing.
#include <gradprobe/ring_reader.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <ostream>

#include "ranks.hpp"

namespace gradprobe::faults {
namespace {

constexpr int kFaulty = 1;  // not rank 0, which has a banner

// How a failure is told.
enum class Line {
  one,         // always, in one line that has `text`
  none,        // never: it costs nothing that a user would miss
  at_most_one  // depends on which call of the name it is
};
struct Call {
  const char* name;
  Line line;
  const char* text;  // in the line
  // Every n-th of its calls only, from this one on: the rest is in tests of their own.
  unsigned first = 1, every = 1;
};

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name << " from " << call.first << " by " << call.every;
}

const Call kCuda[] = {
    // First of a communicator: no context. Later: the plugin pushes its context, needed or not.
    {"cuCtxGetCurrent", Line::at_most_one, "cuCtxGetCurrent"},
    {"cuCtxGetDevice", Line::none, ""},  // the ring's header lacks the device's name
    {"cuDeviceGetName", Line::none, ""},
    {"cuDeviceGetUuid_v2", Line::none, ""},
    // A slot of a captured launch is not used again after the graph's end.
    {"cuGraphRetainUserObject", Line::none, ""},
    {"cuStreamGetCaptureInfo_v3", Line::none, ""},
    {"cuUserObjectCreate", Line::none, ""},
    {"cuLaunchKernel", Line::one, "cuLaunchKernel"},
    {"cuMemAlloc_v2", Line::one, "cuMemAlloc"},
    {"cuMemHostGetDevicePointer_v2", Line::one, "cuMemHostGetDevicePointer"},
    {"cuMemHostRegister_v2", Line::one, "cuMemHostRegister"},
    {"cuMemsetD8Async", Line::one, "cuMemsetD8Async"},
    {"cuModuleGetFunction", Line::one, "cuModuleGetFunction"},
    {"cuModuleLoadData", Line::one, "cuModuleLoadData"},
    {"cuStreamCreate", Line::one, "cuStreamCreate"},
    {"cuStreamDestroy_v2", Line::none, ""},
    {"cuStreamSynchronize", Line::one, "cuStreamSynchronize"},
    // Matters only while another thread captures.
    {"cuThreadExchangeStreamCaptureMode", Line::none, ""},
};

constexpr const char* kNoMemory = "Cannot allocate memory";
const Call kLibc[] = {
    {"__cxa_atexit", Line::none, ""},  // the ring of a process that destroys nothing stays "running"
    {"__register_atfork", Line::one, "pthread_atfork"},
    {"dlopen", Line::one, "libcuda.so.1"},
    {"dlsym", Line::at_most_one, "libcuda.so.1 has no cu"},  // the last ones are of functions that it can do without
    {"gethostname", Line::none, ""},
    {"madvise", Line::none, ""},  // a forked child is kept off by other means as well
    {"malloc", Line::at_most_one, "out of memory", 1, 4},
    {"malloc", Line::at_most_one, "out of memory", 2, 4},
    {"malloc", Line::at_most_one, "out of memory", 3, 4},
    {"malloc", Line::at_most_one, "out of memory", 4, 4},
    {"mkdir", Line::at_most_one, kNoMemory},  // of a folder that exists
    {"mmap", Line::one, kNoMemory},
    {"munmap", Line::none, ""},
    {"open", Line::at_most_one, kNoMemory},  // of the ring, or of what tells the boot's id
    {"posix_fallocate", Line::one, kNoMemory},
    {"pthread_create", Line::one, "collector thread"},
    {"pthread_setname_np", Line::none, ""},
    {"pthread_sigmask", Line::none, ""},
    {"read", Line::none, ""},
    {"stat", Line::at_most_one, kNoMemory},
};

// How often the plugin makes each call in a training in which none fails.
std::map<std::string, unsigned> counted() {
  Job job;
  job.one[kFaulty] = {{"STANDIN_CUDA_COUNT", "nccl-profiler-gradprobe:FOLDER/cuda"},
                      {"FAULTS_COUNT", "FOLDER/libc"},
                      {"LD_PRELOAD", FAULTS_LIBC}};
  Running running(job);
  const std::vector<Rank> ranks = running.wait();
  expect_trained(ranks, "no failure");
  EXPECT_TRUE(ranks[kFaulty].plugin_lines.empty());
  std::map<std::string, unsigned> counts = read_counts(running.folder() / "cuda");
  counts.merge(read_counts(running.folder() / "libc"));
  return counts;
}

// What is left of a rank's files can be read and has an end; what wasn't measured leaves none.
void expect_whole_rings(const std::string& folder, const std::string& what) {
  if (!std::filesystem::exists(folder)) return;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    auto opened = RingReader::open(entry.path());
    ASSERT_TRUE(opened.reader) << what << ": " << opened.error;
    const LiveCounters counters = opened.reader->counters();
    EXPECT_EQ(counters.state, static_cast<std::uint64_t>(RingState::finalized)) << what;
    // Of every call it is known what became of it; one of the calls was captured, and counts once for each replay.
    std::uint64_t known = counters.measured;
    for (const std::uint64_t n : counters.missed) known += n;
    EXPECT_GE(known + 1, counters.announced) << what;
    EXPECT_LE(known, counters.announced + 1) << what;
  }
}

// Fails the n-th call for n = 1, 2, ... until one more doesn't occur.
void fail_each(const Call& call, const char* variable, const std::string& library) {
  const unsigned count = counted()[call.name];
  EXPECT_GT(count, 0u) << "nothing to fail";
  for (unsigned n = call.first; n <= count; n += call.every) {
    const std::string what = std::string(call.name) + ":" + std::to_string(n);
    Job job;
    // Of the others, all have the plugin in the first run only: it costs them nothing and the test much time.
    if (n > 1) job.all["NCCL_PROFILER_PLUGIN"] = "none";
    job.one[kFaulty] = {{"NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE},
                        {variable, std::string(call.name) + library + ":" + std::to_string(n)},
                        {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    const std::vector<Rank> ranks = running.wait();
    expect_trained(ranks, what);
    expect_whole_rings(running.rings(), what);
    const std::vector<std::string>& lines = ranks[kFaulty].plugin_lines;
    if (call.line == Line::one)
      EXPECT_EQ(lines.size(), 1u) << what << "\n" << ranks[kFaulty].err;
    else
      EXPECT_LE(lines.size(), call.line == Line::none ? 0u : 1u) << what << "\n" << ranks[kFaulty].err;
    for (const std::string& line : lines) {
      EXPECT_NE(line.find(call.text), std::string::npos) << what << ": " << line;
      EXPECT_NE(line.find("measur"), std::string::npos) << what << ": " << line;
    }
  }
}

class CudaCall : public ::testing::TestWithParam<Call> {};
class LibcCall : public ::testing::TestWithParam<Call> {};

TEST_P(CudaCall, Fails) {
  fail_each(GetParam(), "STANDIN_CUDA_FAIL", "@nccl-profiler-gradprobe");
}
TEST_P(LibcCall, Fails) {
  fail_each(GetParam(), "FAULTS_FAIL", "");
}

const auto name_of = [](const ::testing::TestParamInfo<Call>& info) {
  std::string name = info.param.name;
  name = name.substr(name.find_first_not_of('_'));
  return info.param.every == 1 ? name : name + std::to_string(info.param.first);
};
INSTANTIATE_TEST_SUITE_P(Injection, CudaCall, ::testing::ValuesIn(kCuda), name_of);
INSTANTIATE_TEST_SUITE_P(Injection, LibcCall, ::testing::ValuesIn(kLibc), name_of);

// No call is made that the tests above don't know.
TEST(Injection, EveryCallIsKnown) {
  std::map<std::string, unsigned> counts = counted();
  counts.erase("time_on_main_thread");  // no failure of it: see exit_in_signal_handler
  for (const Call& call : kCuda) counts.erase(call.name);
  for (const Call& call : kLibc) counts.erase(call.name);
  for (const auto& [name, n] : counts) ADD_FAILURE() << name << " is called " << n << " times, and never made to fail";
}

// A file system that lets signals interrupt the allocation is asked again, but not for ever.
TEST(Injection, InterruptedAllocation) {
  for (const char* fault : {"posix_fallocate:1:4", "posix_fallocate:1+:4"}) {
    const bool for_ever = std::string(fault).find('+') != std::string::npos;
    Job job;
    job.all = {{"NCCL_PROFILER_PLUGIN", "none"}};
    job.one[kFaulty] = {
        {"NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE}, {"FAULTS_FAIL", fault}, {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    const std::vector<Rank> ranks = running.wait();
    expect_trained(ranks, fault);
    expect_whole_rings(running.rings(), fault);
    EXPECT_EQ(ranks[kFaulty].plugin_lines.size(), for_ever ? 2u : 0u) << ranks[kFaulty].err;  // of two communicators
  }
}

// The default folder's owner is looked at, and the ring's size depends on the file system's.
TEST(Injection, DefaultFolderAndSize) {
  for (const char* fault : {"", "lstat:1", "lstat:2", "fstatvfs:1"}) {
    Job job;
    job.all = {{"NCCL_PROFILER_PLUGIN", "none"}};
    job.one[kFaulty] = {{"NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE},
                        {"GRADPROBE_DIR", ""},
                        {"GRADPROBE_RING_MB", ""},
                        {"GRADPROBE_JOB", "gradprobe-faults-" + std::to_string(getpid())},
                        {"FAULTS_FAIL", fault},
                        {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    const std::vector<Rank> ranks = running.wait();
    expect_trained(ranks, fault);
    EXPECT_LE(ranks[kFaulty].plugin_lines.size(), 1u) << ranks[kFaulty].err;
    const bool foreign = std::string(fault).starts_with("lstat");  // it can't tell that the folder is the user's
    EXPECT_EQ(ranks[kFaulty].plugin_lines.empty(), !foreign) << fault;
  }
  std::error_code ignored;
  std::filesystem::remove_all(
      "/dev/shm/gradprobe-" + std::to_string(getuid()) + "/gradprobe-faults-" + std::to_string(getpid()), ignored);
}

}  // namespace
}  // namespace gradprobe::faults
