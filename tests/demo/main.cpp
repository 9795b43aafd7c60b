// gradprobe-demo-train: starts one process a rank and waits for them.
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda_driver.hpp"
#include "options.hpp"
#include "shared_state.hpp"
#include "trainer.hpp"

namespace gradprobe::demo {

namespace {

// After a rank has ended badly, the others have this long to abort their communicators.
constexpr std::chrono::seconds kGrace(30);

template <class Body>
pid_t fork_process(Body body) {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(fmt::format("fork: {}", std::strerror(errno)));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(kExitFailed);
  const int status = body();
  std::fflush(nullptr);
  std::exit(status);
}

// Devices, counted in a child: a process that has initialised CUDA must not fork ranks.
int probe_devices() {
  const pid_t pid = fork_process([] {
    try {
      return std::clamp(device_count(), 0, kMaxRanks);
    } catch (const std::exception& error) {
      fmt::print(stderr, "gradprobe-demo-train: {}\n", error.what());
      return kMaxRanks + 1;
    }
  });
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) > kMaxRanks) return -1;
  return WEXITSTATUS(status);
}

class Launcher {
 public:
  explicit Launcher(const Options& options) : options_(options), shared_(make_shared_state()) {}

  int run() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      processes_.push_back(fork_process([&] { return run_rank(options_, rank, *shared_); }));
    }
    int running = options_.ranks;
    while (running > 0) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, shared_->stop ? WNOHANG : 0);
      if (pid == 0) {
        enforce_grace();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      if (pid < 0 && errno == EINTR) continue;
      if (pid < 0) throw std::runtime_error(fmt::format("waitpid: {}", std::strerror(errno)));
      --running;
      ended(pid, status);
    }
    if (!failed_) check_weights();
    return failed_ ? 1 : 0;
  }

 private:
  void ended(pid_t pid, int status) {
    const auto at = std::find(processes_.begin(), processes_.end(), pid);
    const auto rank = static_cast<std::size_t>(at - processes_.begin());
    *at = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOk) return;
    if (WIFSIGNALED(status) && !killed_) {
      fmt::print(stderr, "gradprobe-demo-train: rank {} ended in step {} by signal {} ({}); stopping the other ranks\n",
                 rank, shared_->step[rank].load(), WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    failed_ = true;
    stop_others();
  }

  void stop_others() {
    shared_->stop = true;
    if (deadline_ == Clock::time_point{}) deadline_ = Clock::now() + kGrace;
  }

  void enforce_grace() {
    stop_others();
    if (killed_ || Clock::now() < deadline_) return;
    fmt::print(stderr, "gradprobe-demo-train: ranks still running {} s later were killed\n", kGrace.count());
    for (const pid_t pid : processes_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    killed_ = true;
  }

  // All ranks applied the same averaged gradients to the same weights.
  void check_weights() {
    for (int rank = 1; rank < options_.ranks; ++rank) {
      if (shared_->weight_hash[rank] == shared_->weight_hash[0]) continue;
      fmt::print(stderr, "gradprobe-demo-train: rank {} ended with other weights than rank 0\n", rank);
      failed_ = true;
    }
  }

  using Clock = std::chrono::steady_clock;
  const Options& options_;
  std::unique_ptr<SharedState, Unmap> shared_;
  std::vector<pid_t> processes_;  // by rank; 0 once ended
  Clock::time_point deadline_{};
  bool failed_ = false;
  bool killed_ = false;
};

}  // namespace
}  // namespace gradprobe::demo

int main(int argc, char** argv) {
  using namespace gradprobe::demo;
  Options options;
  if (const auto status = parse_options(argc, argv, options)) return *status;
  try {
    if (options.ranks == 0) {
      const int devices = probe_devices();
      if (devices < 0) return 1;
      options.ranks = std::min(8, devices);
      if (options.ranks == 0) throw std::runtime_error("the CUDA driver shows no device");
    }
    return Launcher(options).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradprobe-demo-train: {}\n", error.what());
    return 1;
  }
}
