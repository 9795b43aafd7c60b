#include "child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gradprobe::tool {
namespace {

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

// While it lives the forwarded signals and SIGCHLD wait to be fetched.
class FetchedSignals {
 public:
  FetchedSignals() {
    sigemptyset(&set_);
    for (const int signal : kForwarded) sigaddset(&set_, signal);
    sigaddset(&set_, SIGCHLD);
    // Inherited as ignored, SIGCHLD would make the command's exit status vanish.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &usual, &child_before_);
    sigprocmask(SIG_BLOCK, &set_, &mask_before_);
  }
  ~FetchedSignals() {
    // What came together with the command's end was meant for the command.
    const timespec now{};
    siginfo_t info;
    while (sigtimedwait(&set_, &info, &now) > 0) continue;
    restore();
  }
  FetchedSignals(const FetchedSignals&) = delete;
  FetchedSignals& operator=(const FetchedSignals&) = delete;

  void restore() const {
    sigaction(SIGCHLD, &child_before_, nullptr);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }
  siginfo_t fetch() const {
    siginfo_t info{};
    while (sigwaitinfo(&set_, &info) < 0 && errno == EINTR) continue;
    return info;
  }

 private:
  sigset_t set_, mask_before_;
  struct sigaction child_before_ {};
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

CommandEnd not_started(const std::string& command, int error) {
  CommandEnd end;
  end.exit_code = error == ENOENT ? 127 : 126;
  const bool on_path = command.find('/') == std::string::npos;
  end.error = command + ": " + (error == ENOENT && on_path ? "no such command on PATH" : std::strerror(error));
  return end;
}

}  // namespace

CommandEnd run_command(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  const std::vector<char*> argv = pointers(words), envp = pointers(environment);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return not_started(words[0], errno);
  std::fflush(nullptr);
  const FetchedSignals signals;
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(report[0]);
    ::close(report[1]);
    return not_started(words[0], error);
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    signals.restore();
    // main() ignores it for this tool's own output.
    ::signal(SIGPIPE, SIG_DFL);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    if (::write(report[1], &error, sizeof error) != sizeof error) ::_exit(126);
    ::_exit(127);
  }
  ::close(report[1]);
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(report[0], &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  ::close(report[0]);
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) break;
    const siginfo_t info = signals.fetch();
    // From the kernel, as for a key typed at the terminal: the command got its own.
    if (info.si_signo != SIGCHLD && info.si_code <= 0) ::kill(pid, info.si_signo);
  }
  if (n == sizeof error) return not_started(words[0], error);
  CommandEnd end;
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace gradprobe::tool
