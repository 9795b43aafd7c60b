// A long training in every mode of calling: nothing grows, and of every collective it is known what became of it.
#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

std::size_t entries(const char* folder) {
  std::size_t n = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) n++;
  if (dir != nullptr) closedir(dir);
  return n;
}

// What a process can leak.
struct Usage {
  std::size_t resident = 0;  // bytes
  std::size_t allocated = 0;
  std::size_t threads = 0, descriptors = 0;

  static Usage now() {
    Usage u;
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    u.resident = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    u.allocated = mallinfo2().uordblks;
    u.threads = entries("/proc/self/task");
    u.descriptors = entries("/proc/self/fd");
    return u;
  }
};

class Soak : public ::testing::Test {
 protected:
  Soak() {
    mallopt(M_ARENA_MAX, 1);              // so that mallinfo2() sees all
    setenv("GRADPROBE_RING_MB", "1", 1);  // soon filled: its pages count as resident once they are written
    setenv("GRADPROBE_SKETCH", "256", 1);
    setenv("GRADPROBE_RESULT", "1", 1);
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  }

  // One all-reduce, then `more` in one group and launch; with host callbacks their buffers are told before the launch.
  void group(FakeComm* comm, int n, bool callback) const {
    std::vector<void*> calls(static_cast<std::size_t>(n));
    void* api = comm->group_api_start();
    for (void*& call : calls) call = comm->coll_api(api, tiny_.count(), stream_);
    const auto tell = [&] {
      void* group = comm->group_start();
      for (void* call : calls) comm->coll(call, group, tiny_.pointer(), tiny_.pointer(), tiny_.count());
      comm->stop(group);
    };
    if (callback) std::thread(tell).join();
    void* launch = comm->launch_start(api, stream_);
    nccl_kernel(tiny_, stream_);
    comm->stop(launch);
    if (!callback) tell();
    comm->stop(api);
  }

  // A graph of one all-reduce.
  CUgraphExec capture(FakeComm* comm) const {
    EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    void* api = comm->group_api_start(true);
    void* call = comm->coll_api(api, bucket_.count(), stream_, "AllReduce", "ncclFloat32", true);
    void* launch = comm->launch_start(api, stream_);
    nccl_kernel(bucket_, stream_);
    comm->stop(launch);
    void* group = comm->group_start();
    comm->coll(call, group, bucket_.pointer(), bucket_.pointer(), bucket_.count());
    comm->stop(group);
    comm->stop(api);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
  }

  void synchronize() const { EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS); }

  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
  Bucket bucket_{100}, tiny_{4};
};

TEST_F(Soak, AHundredThousandCollectivesLeaveNothingBehind) {
  constexpr int kRounds = 250, kSettled = 50;
  constexpr int kInline = 5, kGroup = 300, kCallback = 80, kReplays = 15;  // 400 a round
  auto comm = std::make_unique<FakeComm>();
  const CUgraphExec graph = capture(comm.get());
  Usage settled;
  for (int round = 0; round < kRounds; round++) {
    for (int i = 0; i < kInline; i++) comm->all_reduce(bucket_, stream_);
    group(comm.get(), kGroup, false);
    group(comm.get(), kCallback, true);
    for (int i = 0; i < kReplays; i++) EXPECT_EQ(cuGraphLaunch(graph, stream_), CUDA_SUCCESS);
    synchronize();
    if (round == kSettled) settled = Usage::now();
  }
  const Usage end = Usage::now();
  EXPECT_LT(end.resident, settled.resident + (1u << 20));
  EXPECT_LT(end.allocated, settled.allocated + (64u << 10));
  EXPECT_EQ(end.threads, settled.threads);
  EXPECT_EQ(end.descriptors, settled.descriptors);
  comm->finalize();

  const LiveCounters c = folder_.counters();
  constexpr std::uint64_t kDirect = std::uint64_t{kRounds} * (kInline + kGroup + kCallback);
  constexpr std::uint64_t kReplayed = std::uint64_t{kRounds} * kReplays;
  EXPECT_EQ(c.announced, kDirect + 1);  // the captured call is announced once
  std::uint64_t missed = 0;
  for (const std::uint64_t n : c.missed) missed += n;
  EXPECT_EQ(c.measured + missed, kDirect + kReplayed);
  EXPECT_EQ(missed, c.missed[static_cast<std::size_t>(Missed::result_lost)]);  // the collector may fall behind

  auto opened = RingReader::open(folder_.files().at(0));
  ASSERT_TRUE(opened.reader);
  const std::uint64_t capacity = opened.reader->header().capacity;
  EXPECT_GT(c.written, c.measured + c.results);  // steps besides
  RingCursor cursor(*opened.reader);
  std::uint64_t read = 0;
  for (Record r; cursor.next(r) == Next::record;) read++;
  EXPECT_EQ(read, capacity);
  EXPECT_EQ(cursor.losses().overwritten, c.written - capacity);
  EXPECT_EQ(cursor.losses().torn_count + cursor.losses().corrupt_count, 0u);
  cuGraphExecDestroy(graph);
}

TEST_F(Soak, GraphsComeAndGo) {
  constexpr int kRounds = 2000;
  FakeComm comm;
  Usage settled;
  for (int round = 0; round < kRounds; round++) {
    const CUgraphExec graph = capture(&comm);
    EXPECT_EQ(cuGraphLaunch(graph, stream_), CUDA_SUCCESS);
    synchronize();
    EXPECT_EQ(cuGraphExecDestroy(graph), CUDA_SUCCESS);
    if (round == kRounds / 5) settled = Usage::now();
  }
  const Usage end = Usage::now();
  EXPECT_LT(end.resident, settled.resident + (1u << 20));
  EXPECT_LT(end.allocated, settled.allocated + (64u << 10));
  EXPECT_EQ(end.descriptors, settled.descriptors);
  comm.finalize();
  const LiveCounters c = folder_.counters();
  EXPECT_EQ(c.missed[static_cast<std::size_t>(Missed::backlog)], 0u);
  EXPECT_EQ(c.measured, static_cast<std::uint64_t>(kRounds));
}

TEST_F(Soak, CommunicatorsComeAndGo) {
  constexpr int kRounds = 60;
  Usage settled;
  for (int round = 0; round < kRounds; round++) {
    FakeComm comm(static_cast<std::uint64_t>(round) + 1);
    for (int i = 0; i < 3; i++) comm.all_reduce(bucket_, stream_);
    synchronize();
    comm.finalize();
    for (const std::string& file : folder_.files()) unlink(file.c_str());
    if (round == kRounds / 4) settled = Usage::now();
  }
  const Usage end = Usage::now();
  EXPECT_EQ(end.threads, settled.threads);
  EXPECT_EQ(end.descriptors, settled.descriptors);
  // The object of a closed communicator stays until its place is used again, in case another thread is about to leave
  // it.
  EXPECT_LT(end.resident, settled.resident + (std::size_t{kRounds} * 192 << 10));
}

}  // namespace
}  // namespace gradprobe::test
