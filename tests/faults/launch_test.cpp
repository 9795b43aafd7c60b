// NCCL's own launch fails when the plugin's kernel already waits on the stream: the gate ends by its time-out, and what
// follows is measured as ever.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

constexpr int kAfter = 4;

class FailedLaunch : public ::testing::Test {
 protected:
  FailedLaunch() {
    setenv("GRADPROBE_GATE_TIMEOUT", "2500", 1);
    setenv("GRADPROBE_RESULT", "1", 1);
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  }

  // A group of `n` all-reduces of which NCCL reports nothing behind the launch.
  void fail(FakeComm* comm, int n) const {
    void* api = comm->group_api_start();
    for (int i = 0; i < n; i++) comm->coll_api(api, bucket_.count(), stream_);
    comm->stop(comm->launch_start(api, stream_));
    comm->stop(api);
  }

  void expect(int failed) const {
    const auto records = folder_.collectives();
    std::uint64_t op = 0;
    for (const Record& r : records) {
      if (static_cast<RecordKind>(r.head.kind) == RecordKind::result) continue;
      EXPECT_EQ(r.head.op, op);
      EXPECT_EQ(static_cast<Missed>(r.head.missed),
                op < static_cast<std::uint64_t>(failed) ? Missed::timeout : Missed::none);
      if (r.head.missed == 0) {
        EXPECT_NEAR(r.head.collective.sum_squares / bucket_.sum_squares(), 1, 1e-7);
      }
      op++;
    }
    EXPECT_EQ(op, static_cast<std::uint64_t>(failed + kAfter));
  }

  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
  Bucket bucket_{3000};
};

TEST_F(FailedLaunch, OfOneOrAGroupEndsWithTheGatesTimeOut) {
  FakeComm comm;
  fail(&comm, 1);
  fail(&comm, 20);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (int i = 0; i < kAfter; i++) {
    bucket_.refill();
    comm.all_reduce(bucket_, stream_);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  comm.finalize();
  expect(21);
}

TEST_F(FailedLaunch, WithoutAnythingBehindItFinalizesInTime) {
  FakeComm comm;
  fail(&comm, 3);
  const auto begin = std::chrono::steady_clock::now();
  comm.finalize();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  const LiveCounters c = folder_.counters();
  EXPECT_EQ(c.measured, 0u);
  EXPECT_EQ(c.missed[static_cast<std::size_t>(Missed::timeout)], 3u);
}

}  // namespace
}  // namespace gradprobe::test
