// No callback makes a system call or allocates, apart from the kernel launch itself. Proven by running the callbacks on
// a thread on which every system call, and so every sleep on a lock and every growth of the heap, raises SIGSYS, with
// malloc counted besides.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "fake_nccl.hpp"

extern "C" void* __libc_malloc(std::size_t);

namespace {
thread_local bool t_counting = false;
std::atomic<int> g_allocations{0};
std::atomic<int> g_system_calls{0};
}  // namespace

// The plugin's calls come here too: the executable's symbol goes before libc's.
extern "C" void* malloc(std::size_t bytes) {
  if (t_counting) g_allocations++;
  return __libc_malloc(bytes);
}

namespace gradprobe::test {
namespace {

// Every system call of this thread raises SIGSYS, from here to its end.
bool forbid_system_calls() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `work` without system calls on a thread of its own and waits for it. The thread never ends, since its end would
// need system calls: it spins until the process does. False where seccomp is not available.
template <typename Work>
bool run_without_system_calls(const Work& work) {
  enum : int { kRunning, kDone, kUnavailable };
  std::atomic<int> state{kRunning};
  std::thread([&] {
    if (!forbid_system_calls()) {
      state = kUnavailable;
      return;
    }
    t_counting = true;
    work();
    t_counting = false;
    state = kDone;
    for (volatile bool forever = true; forever;) __builtin_ia32_pause();
  }).detach();
  while (state == kRunning) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return state == kDone;
}

void on_system_call(int) {
  g_system_calls++;
}

TEST(HotPath, TheFilterCatchesASystemCall) {
  std::signal(SIGSYS, on_system_call);
  g_system_calls = 0;
  if (!run_without_system_calls([] { syscall(SYS_getppid); })) GTEST_SKIP() << "seccomp is not available here";
  EXPECT_EQ(g_system_calls.load(), 1);
}

TEST(HotPath, CallbacksMakeNoSystemCallAndAllocateNothing) {
  const RingFolder folder;
  const Device device;
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  const Bucket b(3000);
  FakeComm comm;
  std::signal(SIGSYS, on_system_call);
  g_system_calls = 0;
  g_allocations = 0;
  constexpr int kOps = 50;
  void* calls[kOps] = {};
  void* api = comm.group_api_start();
  const bool ran = run_without_system_calls([&] {
    // A launch with nothing to gate first: every part of the launch's callbacks but the launch itself.
    void* unsupported = comm.coll_api(api, b.count(), stream, "AllReduce", "ncclInt64");
    comm.stop(comm.launch_start(api, stream));
    comm.stop(unsupported);
    for (void*& call : calls) call = comm.coll_api(api, b.count(), stream);
  });
  if (!ran) GTEST_SKIP() << "seccomp is not available here";
  void* launch = comm.launch_start(api, stream);
  nccl_kernel(b, stream);
  comm.stop(launch);
  run_without_system_calls([&] {
    void* group = comm.group_start();
    for (void* call : calls) comm.coll(call, group, b.pointer(), b.pointer(), b.count());
    comm.stop(group);
    comm.stop(api);
  });
  cuStreamSynchronize(stream);
  comm.finalize();
  EXPECT_EQ(g_system_calls.load(), 0);
  EXPECT_EQ(g_allocations.load(), 0);
  EXPECT_EQ(folder.counters().measured, static_cast<std::uint64_t>(kOps));
}

}  // namespace
}  // namespace gradprobe::test
