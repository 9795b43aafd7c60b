#include "subprocess.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

namespace gradprobe::tool {
namespace {

constexpr std::size_t kMostOutput = 1 << 20;
using Clock = std::chrono::steady_clock;

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

// `body(write end)` runs in the child and must not return.
template <class Body>
ChildOutcome supervise(std::chrono::seconds limit, Body body) {
  ChildOutcome outcome;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return outcome;
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return outcome;
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::setpgid(0, 0);
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0)
      for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
    body(ends[1]);
    ::_exit(1);
  }
  ::setpgid(pid, pid);
  ::close(ends[1]);
  const auto deadline = Clock::now() + limit;
  bool timed_out = false;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      timed_out = true;
      break;
    }
    pollfd wait{ends[0], POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left)) < 0 && errno != EINTR) break;
    if (wait.revents == 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(ends[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || outcome.output.size() > kMostOutput) break;
    outcome.output.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  // The pipe is closed and the process may still be about to exit: a last moment for it.
  int status = 0;
  pid_t ended = 0;
  while (!timed_out && (ended = ::waitpid(pid, &status, WNOHANG)) == 0) {
    if (Clock::now() >= deadline) timed_out = true;
    ::usleep(1000);
  }
  ::kill(-pid, SIGKILL);
  if (ended == 0) {
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  }
  if (timed_out) {
    outcome.end = ChildOutcome::End::timed_out;
  } else if (WIFSIGNALED(status)) {
    outcome.end = ChildOutcome::End::signalled;
    outcome.code = WTERMSIG(status);
  } else {
    outcome.end = ChildOutcome::End::exited;
    outcome.code = WEXITSTATUS(status);
  }
  return outcome;
}

}  // namespace

std::string describe(const ChildOutcome& outcome, std::chrono::seconds limit) {
  switch (outcome.end) {
    case ChildOutcome::End::exited:
      return fmt::format("ended with exit code {}", outcome.code);
    case ChildOutcome::End::signalled:
      return fmt::format("crashed ({})", strsignal(outcome.code));
    case ChildOutcome::End::timed_out:
      return fmt::format("did not answer within {} s", limit.count());
    case ChildOutcome::End::not_started:
      break;
  }
  return "could not be started";
}

ChildOutcome in_child(std::chrono::seconds limit, const std::function<std::string()>& work) {
  return supervise(limit, [&](int to) {
    write_all(to, work());
    ::_exit(0);
  });
}

ChildOutcome run_program(std::chrono::seconds limit, const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> argv = pointers(words), envp = pointers(environment);
  return supervise(limit, [&](int to) {
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(to, STDOUT_FILENO);
    ::execve(path.c_str(), argv.data(), envp.data());
    ::_exit(127);
  });
}

}  // namespace gradprobe::tool
