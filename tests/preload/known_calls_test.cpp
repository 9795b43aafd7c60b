// The core's order of calls in which buffers come first: records wait for what NCCL says to the call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "fake_nccl.hpp"
#include "process.hpp"

namespace gradprobe::test {
namespace {

class KnownCalls : public testing::Test {
 protected:
  void SetUp() override {
    setenv("GRADPROBE_RESULT", "1", 1);
    setenv("GRADPROBE_RING_MB", "16", 1);
    InitCall call;
    call.comm_id = 1;
    call.nranks = 2;
    int mask = 0;
    context_ = Process::get().open(call, &mask);
    comm_ = Process::get().find(Handle(context_), HandleType::context);
    ASSERT_NE(comm_, nullptr);
    ASSERT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  BegunCalls begin(const Bucket& bucket, bool captured = false, CUstream on = nullptr) {
    const KnownCall call{Function::all_reduce, Datatype::f32, bucket.count(), 0, bucket.pointer(), bucket.pointer()};
    return comm_->begin_calls({&call, 1}, captured, true, on != nullptr ? on : stream_);
  }
  void close() {
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    Process::get().close(context_);
  }

  RingFolder folder_;
  Device device_;
  void* context_ = nullptr;
  Communicator* comm_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(KnownCalls, NoRecordBeforeTheCallHasReturned) {
  const Bucket bucket(1000);
  const BegunCalls refused = begin(bucket);
  ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the collector, which must not write
  EXPECT_TRUE(folder_.collectives().empty());
  comm_->end_calls(refused, CallOutcome::refused, stream_);
  comm_->end_calls(begin(bucket), CallOutcome::launched, stream_);
  close();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(static_cast<Missed>(records[0].head.missed), Missed::no_events);
  EXPECT_EQ(records[1].head.missed, 0);
  EXPECT_NEAR(records[1].head.collective.sum_squares / bucket.sum_squares(), 1, 1e-7);
  std::vector<std::uint64_t> results;
  for (const Record& r : folder_.records(RecordKind::result)) results.push_back(r.head.op);
  EXPECT_EQ(results, std::vector<std::uint64_t>{1});
}

TEST_F(KnownCalls, AGroupsCallsEndEachForItself) {
  const Bucket first(1000, 1), second(2000, 2), third(3000, 3);
  const BegunCalls a = begin(first), b = begin(second), c = begin(third);
  comm_->end_calls(a, CallOutcome::launched, stream_);
  comm_->end_calls(b, CallOutcome::refused, stream_);
  comm_->end_calls(c, CallOutcome::launching, stream_);
  close();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NEAR(records[0].head.collective.sum_squares / first.sum_squares(), 1, 1e-7);
  EXPECT_EQ(static_cast<Missed>(records[1].head.missed), Missed::no_events);
  EXPECT_NEAR(records[2].head.collective.sum_squares / third.sum_squares(), 1, 1e-7);
}

// Passes that overlap finish their results in any order.
TEST_F(KnownCalls, PassesOnSeveralStreamsLoseNothing) {
  constexpr std::size_t kRounds = 100, kStreams = 4;
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::vector<CUstream> streams(kStreams);
  for (std::size_t i = 0; i < kStreams; i++) {
    buckets.push_back(std::make_unique<Bucket>(10000 * i + 3, static_cast<unsigned>(i)));
    ASSERT_EQ(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  for (std::size_t round = 0; round < kRounds; round++) {
    std::vector<BegunCalls> begun;
    for (std::size_t i = 0; i < kStreams; i++) begun.push_back(begin(*buckets[i], false, streams[i]));
    for (std::size_t i = 0; i < kStreams; i++) comm_->end_calls(begun[i], CallOutcome::launched, streams[i]);
  }
  for (CUstream stream : streams) ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  close();
  std::size_t inputs = 0, results = 0;
  for (const Record& r : folder_.records()) {
    const bool result = r.head.kind == static_cast<std::uint16_t>(RecordKind::result);
    if (!r.has_body() && !result) continue;
    EXPECT_EQ(r.head.missed, 0) << "op " << r.head.op;
    (result ? results : inputs)++;
  }
  EXPECT_EQ(inputs, kStreams * kRounds);
  EXPECT_EQ(results, kStreams * kRounds);
}

// The pass of a refused call is in the graph all the same; its replays are no collectives.
TEST_F(KnownCalls, ReplaysOfARefusedCapturedCallAreNotRecorded) {
  const Bucket bucket(1000);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  comm_->end_calls(begin(bucket, true), CallOutcome::refused, stream_);
  comm_->end_calls(begin(bucket, true), CallOutcome::launched, stream_);
  ASSERT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  close();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].head.op, 1u);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// Results that found the ring full are counted once, also where their slot goes from one graph to the next.
TEST_F(KnownCalls, DroppedReplaysOfASlotThatIsUsedAgain) {
  const Bucket bucket(1000);
  const auto capture = [&](CUgraph* graph) {
    ASSERT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    comm_->end_calls(begin(bucket, true), CallOutcome::launched, stream_);
    ASSERT_EQ(cuStreamEndCapture(stream_, graph), CUDA_SUCCESS);
  };
  // As the device does.
  const auto drop = [&](std::uint32_t slot) {
    std::atomic_ref<std::uint32_t>(comm_->channel()->slot(slot).dropped).fetch_add(1);
    std::atomic_ref<std::uint64_t>(comm_->channel()->control().dropped).fetch_add(1);
  };
  const auto expect_lost = [&](std::uint64_t lost) {
    const auto now = [&] { return folder_.counters().missed[static_cast<std::size_t>(Missed::result_lost)]; };
    for (int i = 0; i < 1000 && now() != lost; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(now(), lost);
  };
  const auto drained = [&] { return comm_->tables().slots_drained.load(); };
  CUgraph first = nullptr, second = nullptr, third = nullptr;
  capture(&first);
  capture(&second);
  drop(kDirectSlots);
  drop(kDirectSlots);
  expect_lost(2);
  ASSERT_EQ(cuGraphDestroy(first), CUDA_SUCCESS);
  for (int i = 0; i < 1000 && drained() == 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(drained(), 1u);
  drop(kDirectSlots + 1);
  expect_lost(3);
  capture(&third);  // has the first one's slot
  drop(kDirectSlots + 1);
  expect_lost(4);
  drop(kDirectSlots);
  expect_lost(5);
  close();
  EXPECT_EQ(cuGraphDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(third), CUDA_SUCCESS);
}

class BlockingKnownCalls : private LaunchesBlock, public KnownCalls {};

// A pass ends before the call that launches it returns, when nobody can know its number yet.
TEST_F(BlockingKnownCalls, ResultsOfPassesThatEndBeforeTheirLaunchReturns) {
  constexpr std::size_t kCalls = 300;
  const Bucket bucket(1000);
  for (std::size_t i = 0; i < kCalls; i++) comm_->end_calls(begin(bucket), CallOutcome::launched, stream_);
  close();
  const auto results = folder_.records(RecordKind::result);
  EXPECT_EQ(results.size(), kCalls);
  for (const Record& r : results) EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none) << "op " << r.head.op;
  EXPECT_EQ(folder_.collectives().size(), kCalls);
}

}  // namespace
}  // namespace gradprobe::test
