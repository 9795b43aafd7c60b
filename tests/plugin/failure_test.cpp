// What goes wrong around the plugin must not reach the training run: one clear line, no measurement, NCCL goes on.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

class Failure : public ::testing::Test {
 protected:
  void SetUp() override { take_log(); }
  static std::size_t warnings(const std::vector<std::string>& log) {
    return static_cast<std::size_t>(
        std::count_if(log.begin(), log.end(), [](const std::string& l) { return l.starts_with("WARN"); }));
  }
};

// A record for each collective that says why it has no values.
void expect_no_cuda(const RingFolder& folder, std::size_t collectives) {
  const auto records = folder.collectives();
  ASSERT_EQ(records.size(), collectives);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(records[i].head.op, i);
    EXPECT_EQ(static_cast<Missed>(records[i].head.missed), Missed::no_cuda);
    EXPECT_EQ(records[i].head.collective.count, 3000u);
    EXPECT_EQ(static_cast<Function>(records[i].head.collective.function), Function::all_reduce);
    EXPECT_EQ(static_cast<Datatype>(records[i].head.collective.datatype), Datatype::f32);
  }
  EXPECT_EQ(folder.counters().missed[static_cast<int>(Missed::no_cuda)], collectives);
  EXPECT_EQ(folder.counters().measured, 0u);
}

// What a training process has. Made after the test has set its variables: the stand-in driver reads them when it
// starts, so each of these tests is a process of its own (see CMakeLists.txt).
struct Training {
  RingFolder folder;
  Device device;
  CUstream stream = nullptr;
  Bucket bucket{3000};

  Training() { cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }

  // Returns the number of all-reduces whose NCCL kernel ran.
  int train(FakeComm* comm, int steps) const {
    int reduced = 0;
    for (int i = 0; i < steps; i++) {
      comm->all_reduce(bucket, stream);
      if (cuStreamSynchronize(stream) == CUDA_SUCCESS) reduced++;
    }
    return reduced;
  }
};

using InjectedFailure = Failure;

TEST_F(InjectedFailure, LaunchFailsInMidRun) {
  setenv("STANDIN_CUDA_FAIL", "cuLaunchKernel/gradprobe_measure_f32:5", 1);
  Training t;
  FakeComm comm;
  EXPECT_EQ(t.train(&comm, 10), 10);
  const auto begin = std::chrono::steady_clock::now();
  comm.finalize();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  const auto log = take_log();
  EXPECT_EQ(warnings(log), 1u);
  const auto records = t.folder.collectives();
  ASSERT_EQ(records.size(), 10u);
  // The first of the five launches is the warm-up in init.
  for (std::size_t i = 0; i < 10; i++) {
    EXPECT_EQ(records[i].head.op, i);
    EXPECT_EQ(static_cast<Missed>(records[i].head.missed), i < 3 ? Missed::none : Missed::launch_failed) << i;
  }
  EXPECT_EQ(t.folder.counters().missed[static_cast<int>(Missed::launch_failed)], 7u);
}

TEST_F(InjectedFailure, SetUpFails) {
  setenv("STANDIN_CUDA_FAIL", "cuModuleLoadData:1", 1);
  Training t;
  FakeComm comm;
  EXPECT_NE(comm.context(), nullptr);
  EXPECT_EQ(comm.mask(), 512);  // CollApi alone: the rest could only serve to measure
  EXPECT_EQ(t.train(&comm, 3), 3);
  comm.finalize();
  const auto log = take_log();
  EXPECT_EQ(warnings(log), 1u);
  EXPECT_NE(log.at(0).find("not measured"), std::string::npos);
  expect_no_cuda(t.folder, 3);
}

TEST_F(InjectedFailure, WarmUpCannotBeWaitedFor) {
  setenv("STANDIN_CUDA_FAIL", "cuStreamSynchronize:1:700", 1);
  Training t;
  FakeComm comm;
  EXPECT_EQ(t.train(&comm, 3), 3);  // the warm-up's kernels still found their memory
  comm.finalize();
  EXPECT_EQ(warnings(take_log()), 1u);
  expect_no_cuda(t.folder, 3);
}

TEST_F(InjectedFailure, LaunchBlockingIsNotGated) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  Training t;
  FakeComm comm;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(t.train(&comm, 20), 20);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));  // 20 time-outs would be 100 s
  comm.finalize();
  const auto records = t.folder.collectives();
  ASSERT_EQ(records.size(), 20u);
  for (const Record& r : records) EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::launch_blocking);
}

TEST_F(InjectedFailure, SerialisingToolSwitchesGatingOff) {
  // As under a debugger, launches block although no variable says so when the plugin looks.
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  Training t;
  setenv("GRADPROBE_GATE_TIMEOUT", "50", 1);
  unsetenv("CUDA_LAUNCH_BLOCKING");
  FakeComm comm;
  const auto missed = [&](Missed reason) { return t.folder.counters().missed[static_cast<int>(reason)]; };
  for (int i = 0; i < 5; i++) comm.all_reduce(t.bucket, t.stream);
  comm.finalize();
  EXPECT_EQ(warnings(take_log()), 1u);
  EXPECT_EQ(missed(Missed::timeout), 2u);  // the time it cost to find out
  EXPECT_EQ(missed(Missed::switched_off), 3u);
}

TEST_F(Failure, FolderCannotBeWritten) {
  const RingFolder folder;
  const Device device;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "x";
  setenv("GRADPROBE_DIR", (file + "/below").c_str(), 1);
  FakeComm comm;
  EXPECT_EQ(comm.context(), nullptr);
  const auto log = take_log();
  ASSERT_EQ(warnings(log), 1u);
  EXPECT_NE(log.at(0).find(file), std::string::npos);
  EXPECT_NE(log.at(0).find("GRADPROBE_DIR"), std::string::npos);
}

TEST_F(Failure, FullFileSystem) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const RingFolder folder;
  const Device device;
  const std::string small = folder.path() + "/small";
  ASSERT_EQ(mkdir(small.c_str(), 0700), 0);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "mount is not allowed here";
  setenv("GRADPROBE_DIR", small.c_str(), 1);
  unsetenv("GRADPROBE_RING_MB");
  {
    FakeComm comm;
    EXPECT_EQ(comm.context(), nullptr);
    const auto log = take_log();
    EXPECT_EQ(warnings(log), 1u);
    EXPECT_NE(log.at(0).find("No space left"), std::string::npos) << log.at(0);
  }
  umount(small.c_str());
}

TEST_F(Failure, SmallFileSystemGetsASmallerRing) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const RingFolder folder;
  const Device device;
  const std::string small = folder.path() + "/small";
  ASSERT_EQ(mkdir(small.c_str(), 0700), 0);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=3m") != 0) GTEST_SKIP() << "mount is not allowed here";
  setenv("GRADPROBE_DIR", small.c_str(), 1);
  unsetenv("GRADPROBE_RING_MB");
  {
    FakeComm comm;
    EXPECT_NE(comm.context(), nullptr);
  }
  umount(small.c_str());
}

TEST_F(Failure, BadSettingsAreNamedAndDefaultsUsed) {
  const RingFolder folder;
  const Device device;
  setenv("GRADPROBE_SKETCH", "1000", 1);
  setenv("GRADPROBE_GATE_TIMEOUT", "fast", 1);
  FakeComm comm;
  comm.finalize();
  unsetenv("GRADPROBE_SKETCH");
  unsetenv("GRADPROBE_GATE_TIMEOUT");
  const auto log = take_log();
  EXPECT_EQ(warnings(log), 2u);
  auto opened = RingReader::open(folder.files().at(0));
  ASSERT_TRUE(opened.reader);
  EXPECT_EQ(opened.reader->header().sketch_floats, 1024u);
}

TEST_F(Failure, SwitchedOffByTheUser) {
  const RingFolder folder;
  const Device device;
  setenv("GRADPROBE", "0", 1);
  FakeComm comm;
  unsetenv("GRADPROBE");
  EXPECT_EQ(comm.mask(), 0);
  EXPECT_EQ(comm.context(), nullptr);
  EXPECT_TRUE(folder.files().empty());
}

TEST_F(Failure, ExitWithoutDestroyingKeepsEverything) {
  const RingFolder folder;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Device device;
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    const Bucket b(3000);
    auto* comm = new FakeComm;  // as scripts do: never destroyed
    for (int i = 0; i < 7; i++) comm->all_reduce(b, stream);
    cuStreamSynchronize(stream);
    std::exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(folder.collectives().size(), 7u);
  EXPECT_EQ(folder.counters().state, static_cast<std::uint64_t>(RingState::exited));
}

TEST_F(Failure, DefaultRingLeavesRoomOnASmallFileSystem) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const RingFolder folder;
  const Device device;
  const std::string small = folder.path() + "/small";
  ASSERT_EQ(mkdir(small.c_str(), 0700), 0);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=64m") != 0) GTEST_SKIP() << "mount is not allowed here";
  setenv("GRADPROBE_DIR", small.c_str(), 1);
  unsetenv("GRADPROBE_RING_MB");
  {
    std::vector<std::unique_ptr<FakeComm>> ranks;
    for (int rank = 0; rank < 8; rank++) ranks.push_back(std::make_unique<FakeComm>(1, 8, rank));
    struct statvfs status {};
    ASSERT_EQ(statvfs(small.c_str(), &status), 0);
    EXPECT_GE(status.f_bavail * status.f_frsize, 32u << 20);
    for (const auto& r : ranks) EXPECT_NE(r->context(), nullptr);
  }
  umount(small.c_str());
}

TEST_F(Failure, ForkedChildWritesNothing) {
  Training t;
  FakeComm comm;
  comm.all_reduce(t.bucket, t.stream);
  cuStreamSynchronize(t.stream);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // What a data loader's worker might inherit and do: nothing of it may reach the parent's ring, or crash.
    void* api = comm.group_api_start();
    void* call = comm.coll_api(api, 10, t.stream);
    comm.stop(call);
    comm.finalize();
    _exit(api == nullptr && call == nullptr ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  comm.all_reduce(t.bucket, t.stream);
  cuStreamSynchronize(t.stream);
  comm.finalize();
  EXPECT_EQ(t.folder.collectives().size(), 2u);
  EXPECT_EQ(t.folder.counters().measured, 2u);
}

}  // namespace
}  // namespace gradprobe::test
