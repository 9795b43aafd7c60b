#include "ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

namespace ranks {
namespace {

ncclUniqueId new_id() {
  ncclUniqueId id = {};
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

template <typename F>
pid_t spawn(F child) {
  fflush(stdout);
  fflush(stderr);
  pid_t pid = fork();
  if (pid) return pid;
  child();
  fflush(stdout);
  fflush(stderr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

Processes::Processes(int ranks, const Body& body, const std::function<void(int)>& setup) {
  id_ = new_id();
  for (int r = 0; r < ranks; r++)
    pids_.push_back(spawn([&] {
      if (setup) setup(r);
      use_device(r);
      body(r, ranks, id_);
    }));
}

Processes::~Processes() {
  for (pid_t pid : pids_) {
    if (pid <= 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

int Processes::wait(int rank, int seconds) {
  pid_t& pid = pids_[static_cast<size_t>(rank)];
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "rank " << rank << " did not end within " << seconds << " s";
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  pid = 0;
  return status;
}

void Processes::expect_success(int seconds) {
  for (size_t r = 0; r < pids_.size(); r++) EXPECT_EQ(wait(static_cast<int>(r), seconds), 0) << "rank " << r;
}

void run(int ranks, const Body& body, const std::function<void(int)>& setup) {
  Processes(ranks, body, setup).expect_success();
}

void run_threads(int ranks, const Body& body, const std::function<void(int)>& setup) {
  Processes one(
      1,
      [&](int, int, const ncclUniqueId& id) {
        std::vector<std::thread> threads;
        for (int r = 0; r < ranks; r++)
          threads.emplace_back([&, r] {
            use_device(r);
            body(r, ranks, id);
          });
        for (auto& t : threads) t.join();
      },
      setup);
  one.expect_success();
}

void use_device(int device) {
  ASSERT_CU(cuInit(0));
  int devices = 0;
  ASSERT_CU(cuDeviceGetCount(&devices));
  CUcontext context = nullptr;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&context, device % devices));
  ASSERT_CU(cuCtxSetCurrent(context));
}

}  // namespace ranks
