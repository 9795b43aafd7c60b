// Every call of the CUDA driver and of libc that the plugin makes and that can fail, made to fail once, one after
// another, on one of three ranks: the training ends with the weights that it has without the plugin, and the plugin
// says in one line what failed, unless the failure costs nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ranks.hpp"

namespace gradprobe::faults {
namespace {

constexpr int kFaulty = 1;  // not rank 0, which has a banner

// Calls whose failure costs nothing that the user would miss (what it costs is told in docs/ARCHITECTURE.md, "When
// things fail"), so no line is asked for.
const std::set<std::string> kHarmless = {"cuCtxPopCurrent_v2", "cuDeviceGetName", "cuDeviceGetUuid_v2",
                                         "cuCtxGetDevice"};

struct Counted {
  std::map<std::string, unsigned> cuda, libc;
};

// How often the plugin makes each call in a training in which none fails.
const Counted& counted() {
  static const Counted counts = [] {
    Job job;
    job.one[kFaulty] = {{"STANDIN_CUDA_COUNT", "nccl-profiler-gradprobe:FOLDER/cuda"},
                        {"FAULTS_COUNT", "FOLDER/libc"},
                        {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    const std::vector<Rank> ranks = running.wait();
    expect_trained(ranks, "no failure");
    EXPECT_TRUE(ranks[kFaulty].plugin_lines.empty());
    return Counted{read_counts(running.folder() / "cuda"), read_counts(running.folder() / "libc")};
  }();
  return counts;
}

TEST(Injection, Count) {
  for (const auto& [name, n] : counted().cuda) std::printf("%s %u\n", name.c_str(), n);
  for (const auto& [name, n] : counted().libc) std::printf("%s %u\n", name.c_str(), n);
}

TEST(Injection, All) {
  const auto one = [](const std::string& what, const Environment& e) {
    Job job;
    job.one[kFaulty] = e;
    const auto ranks = run(job);
    expect_trained(ranks, what);
    std::printf("%s: %zu %s\n", what.c_str(), ranks[kFaulty].plugin_lines.size(),
                ranks[kFaulty].plugin_lines.empty() ? "" : ranks[kFaulty].plugin_lines[0].c_str());
    fflush(stdout);
  };
  for (const auto& [name, count] : counted().cuda)
    for (unsigned n = 1; n <= count; n++)
      one(name + ":" + std::to_string(n),
          {{"STANDIN_CUDA_FAIL", name + "@nccl-profiler-gradprobe:" + std::to_string(n)}});
  for (const auto& [name, count] : counted().libc)
    for (unsigned n = 1; n <= count && n < 100; n++)
      one(name + ":" + std::to_string(n),
          {{"FAULTS_FAIL", name + ":" + std::to_string(n)}, {"LD_PRELOAD", FAULTS_LIBC}});
}

}  // namespace
}  // namespace gradprobe::faults
