// Work in child processes: what it says comes back, and neither a crash nor a hang reaches the tool.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "run_tool.hpp"
#include "subprocess.hpp"

namespace gradprobe::test {
namespace {

using tool::ChildOutcome;
using tool::in_child;
using tool::run_program;
constexpr std::chrono::seconds kLong(60);

TEST(Subprocess, ReturnsWhatWasSaid) {
  const ChildOutcome o = in_child(kLong, [] { return std::string(100000, 'x'); });
  EXPECT_TRUE(o.ok());
  EXPECT_EQ(o.output, std::string(100000, 'x'));
  EXPECT_EQ(run_program(kLong, "/bin/echo", {"a b", ""}, {}).output, "a b \n");
  EXPECT_EQ(run_program(kLong, "/bin/sh", {"-c", "echo $A; echo lost >&2"}, {"A=b"}).output, "b\n");
}

TEST(Subprocess, TellsHowItEnded) {
  EXPECT_EQ(tool::describe(in_child(kLong, []() -> std::string { std::abort(); }), kLong), "crashed (Aborted)");
  EXPECT_EQ(tool::describe(in_child(kLong, []() -> std::string { _exit(3); }), kLong), "ended with exit code 3");
  EXPECT_EQ(run_program(kLong, "/nonexistent", {}, {}).code, 127);
}

TEST(Subprocess, EndsWhatHangs) {
  const ChildOutcome o = in_child(std::chrono::seconds(1), []() -> std::string {
    pause();
    return {};
  });
  EXPECT_EQ(o.end, ChildOutcome::End::timed_out);
}

// A program that has ended while its own child keeps the pipe open: that one is ended, too.
TEST(Subprocess, EndsWhatIsLeftBehind) {
  TemporaryFolder folder;
  const ChildOutcome o =
      run_program(std::chrono::seconds(5), "/bin/sh",
                  {"-c", "sleep 600 & echo $! >" + (folder / "pid") + "; echo said"}, {"PATH=/bin:/usr/bin"});
  EXPECT_EQ(o.output, "said\n");
  const std::string pid = contents(folder / "pid");
  ASSERT_FALSE(pid.empty());
  const auto gone = [&] {
    std::ifstream in("/proc/" + std::to_string(std::stoi(pid)) + "/stat");
    std::string word, state;
    return !(in >> word >> word >> state) || state == "Z";
  };
  for (int i = 0; i < 1000 && !gone(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(gone());
}

// More than is kept: the child is told that nobody reads on.
TEST(Subprocess, KeepsALimitedAmount) {
  const ChildOutcome o = run_program(kLong, "/bin/sh", {"-c", "cat /dev/zero"}, {"PATH=/bin:/usr/bin"});
  EXPECT_FALSE(o.ok());
  EXPECT_LT(o.output.size(), std::size_t{2} << 20);
}

}  // namespace
}  // namespace gradprobe::test
