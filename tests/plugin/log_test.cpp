// Warnings reach the user exactly once: through NCCL's logger where that prints them, else on stderr.
#include "log.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace gradprobe {
namespace {

int g_from_nccl = 0;
void logger(int level, unsigned long, const char*, int, const char*, ...) {
  g_from_nccl += level == 2 ? 1 : 0;
}

struct Case {
  const char* nccl_debug;
  LogTarget target;
  bool to_nccl_printed;  // NCCL's own rule: WARN lines need NCCL_DEBUG=WARN or more
};

TEST(Log, AWarningIsSeenExactlyOnce) {
  const Case cases[] = {
      {nullptr, LogTarget::automatic, false}, {"VERSION", LogTarget::automatic, false},
      {"WARN", LogTarget::automatic, true},   {"info", LogTarget::automatic, true},
      {"TRACE", LogTarget::automatic, true},  {"WARN", LogTarget::stderr_only, false},
  };
  for (const Case& c : cases) {
    if (c.nccl_debug == nullptr)
      unsetenv("NCCL_DEBUG");
    else
      setenv("NCCL_DEBUG", c.nccl_debug, 1);
    g_from_nccl = 0;
    const Log log(logger, c.target);
    testing::internal::CaptureStderr();
    log.warn("%s", "something");
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text, c.to_nccl_printed ? "" : "gradprobe: something\n");
    EXPECT_TRUE(!c.to_nccl_printed || g_from_nccl == 1) << g_from_nccl;
  }
}

TEST(Log, OffIsOff) {
  unsetenv("NCCL_DEBUG");
  g_from_nccl = 0;
  const Log log(logger, LogTarget::off);
  testing::internal::CaptureStderr();
  log.warn("x");
  log.notice("x");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(g_from_nccl, 0);
}

TEST(Log, WithoutNcclsLoggerWarningsGoToStderr) {
  const Log log(nullptr, LogTarget::automatic);
  testing::internal::CaptureStderr();
  log.warn("%d", 7);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "gradprobe: 7\n");
}

TEST(Log, APipeThatNobodyReadsEndsNoProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(2);
    close(ends[0]);
    close(ends[1]);
    const Log log(nullptr, LogTarget::automatic);
    log.warn("one");
    log.warn("two");
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gradprobe
