// How a program can come by its NCCL, and what the preload library then finds.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ranks.hpp"

namespace gradprobe::test {
namespace {

struct Outcome {
  int status = -1;
  std::string text;  // stdout and stderr
};

Outcome run_host(const std::string& arguments, const std::string& environment = "") {
  const std::string command = "env ASAN_OPTIONS=verify_asan_link_order=0 NCCL_PROFILER_PLUGIN=none LD_PRELOAD=" +
                              std::string(GRADPROBE_PRELOAD_FILE) + " " + environment + " " + PRELOAD_HOST + " " +
                              arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (std::size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

constexpr double kSumSquares[] = {5000, 20000};  // of framework.cpp's ranks

class PreloadLoading : public testing::Test {
 protected:
  void check_rings(RingState state, std::uint32_t profiler_abi = 0) {
    const Rings rings = read(folder_);
    EXPECT_EQ(rings.rings.size(), 2u);
    for (int rank = 0; rank < 2; rank++) {
      const Rings::Ring& ring = rings.only("", rank);
      EXPECT_EQ(ring.header.profiler_abi, profiler_abi);
      EXPECT_EQ(ring.counters.state, static_cast<std::uint64_t>(state));
      ASSERT_EQ(ring.inputs.size(), 1u);
      EXPECT_EQ(ring.inputs[0].head.missed, 0);
      EXPECT_EQ(ring.inputs[0].head.collective.sum_squares, kSumSquares[rank]);
    }
  }
  RingFolder folder_;
};

TEST_F(PreloadLoading, NcclOfOneLibraryOnly) {
  const Outcome outcome = run_host("framework " PRELOAD_FRAMEWORK " destroy");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  check_rings(RingState::finalized);
}

TEST_F(PreloadLoading, ExitWithOpenCommunicators) {
  const Outcome outcome = run_host("framework " PRELOAD_FRAMEWORK " leave");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  check_rings(RingState::exited);
}

TEST_F(PreloadLoading, AForkedChildDoesNothing) {
  const Outcome outcome = run_host("framework " PRELOAD_FRAMEWORK " fork");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  check_rings(RingState::finalized);
}

TEST_F(PreloadLoading, SwitchedOff) {
  const Outcome outcome = run_host("framework " PRELOAD_FRAMEWORK " destroy", "GRADPROBE=0");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_TRUE(folder_.files().empty());
}

// Calls that no other library can come before are the plugin's to see.
TEST_F(PreloadLoading, NcclThatCantBeInterposedIsThePlugins) {
#ifdef GRADPROBE_SANITIZED
  GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  const Outcome outcome = run_host("deep " PRELOAD_FRAMEWORK " destroy",
                                   "NCCL_PROFILER_PLUGIN=" GRADPROBE_PLUGIN_FILE " STANDIN_NCCL_VERSION=2.28.9");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  check_rings(RingState::finalized, 5);
}

TEST_F(PreloadLoading, NoNcclAtAll) {
  const Outcome outcome = run_host("call ncclGroupStart");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("returned 3"), std::string::npos) << outcome.text;  // ncclInternalError
  EXPECT_NE(outcome.text.find("ncclGroupStart was called, but no NCCL is loaded"), std::string::npos) << outcome.text;
}

TEST_F(PreloadLoading, AFunctionThatThisNcclLacks) {
  const Outcome outcome = run_host("call ncclCommShrink " PRELOAD_FRAMEWORK, "LD_LIBRARY_PATH=" OLD_NCCL);
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("returned 5"), std::string::npos) << outcome.text;  // ncclInvalidUsage
  EXPECT_NE(outcome.text.find("ncclCommShrink was called, but this process's NCCL has no such function"),
            std::string::npos)
      << outcome.text;
}

TEST_F(PreloadLoading, AProgramWithoutNcclNoticesNothing) {
  const Outcome outcome = run_host("nothing");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.text, "");
  EXPECT_TRUE(folder_.files().empty());
}

}  // namespace
}  // namespace gradprobe::test
