// Ranks that are killed: the others end with an error in reasonable time, and nothing stays in /dev/shm.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "ranks.h"

namespace {

// Counters that parent and children see.
struct Shared {
  Shared() {
    at = static_cast<std::atomic<int>*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  ~Shared() { munmap(at, 4096); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  void wait_for(int value) const {
    for (int i = 0; at->load() < value && i < 5000; i++) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_GE(at->load(), value);
  }
  std::atomic<int>* at;
};

bool has_segment(const ncclUniqueId& id) {
  char name[64] = "/dev/shm/standin-nccl-";
  for (int i = 8; i < 24; i++) snprintf(name + strlen(name), 3, "%02x", static_cast<unsigned char>(id.internal[i]));
  return access(name, F_OK) == 0;
}

void all_reduce_for_ever(ncclComm_t comm, std::atomic<int>* steps, size_t count) {
  ranks::StreamHandle stream;
  ranks::Buffer<float> data(std::vector<float>(count, 0));
  ncclResult_t r = ncclSuccess;
  while (r == ncclSuccess) {
    r = ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, stream);
    stream.synchronize();
    if (r == ncclSuccess) {
      ASSERT_NCCL(ncclCommGetAsyncError(comm, &r));
    }
    (*steps)++;
  }
  EXPECT_EQ(r, ncclRemoteError);
}

TEST(Death, OfARankInMidRun) {
  Shared steps;
  ranks::Processes processes(4, [&](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    all_reduce_for_ever(comm, steps.at, 50'000);
    ASSERT_NCCL(ncclCommAbort(comm));
  });
  steps.wait_for(200);
  kill(processes.pid(2), SIGKILL);
  auto killed = std::chrono::steady_clock::now();
  for (int r : {0, 1, 3}) EXPECT_EQ(processes.wait(r, 20), 0) << "rank " << r;
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(10));
  EXPECT_EQ(processes.wait(2), SIGKILL);
}

TEST(Death, OfAStoppedRankThatOthersWaitFor) {
  Shared ready;
  ranks::Processes processes(2, [&](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    (*ready.at)++;
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(60));
      return;
    }
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(1000);
    ASSERT_NCCL(ncclRecv(data.data(), 1000, ncclFloat, 1, comm, stream));
    stream.synchronize();
    ncclResult_t r = ncclSuccess;
    ASSERT_NCCL(ncclCommGetAsyncError(comm, &r));
    EXPECT_EQ(r, ncclRemoteError);
    ASSERT_NCCL(ncclCommAbort(comm));
  });
  ready.wait_for(2);
  kill(processes.pid(1), SIGKILL);
  EXPECT_EQ(processes.wait(0, 20), 0);
}

TEST(Death, BeforeAllHaveJoined) {
  Shared ready;
  ranks::Processes processes(2, [&](int rank, int n, const ncclUniqueId& id) {
    (*ready.at)++;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclRemoteError);
    (void)n;
  });
  ready.wait_for(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(processes.pid(1), SIGKILL);
  EXPECT_EQ(processes.wait(0, 20), 0);
}

TEST(Death, OfAllLeavesNothingThatTheNextRunKeeps) {
  ncclUniqueId id, other;
  {
    ranks::Processes processes(2, [&](int rank, int, const ncclUniqueId& given) {
      ncclComm_t comm = nullptr;
      ncclCommInitRank(&comm, 3, given, rank);
    });
    id = processes.id();
    for (int i = 0; !has_segment(id) && i < 5000; i++) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_TRUE(has_segment(id));
    ASSERT_NCCL(ncclGetUniqueId(&other));
    EXPECT_TRUE(has_segment(id)) << "a segment in use was removed";
  }
  ASSERT_NCCL(ncclGetUniqueId(&other));
  EXPECT_FALSE(has_segment(id));
}

TEST(Death, NothingIsLeftWhileRunning) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    EXPECT_FALSE(has_segment(id));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
