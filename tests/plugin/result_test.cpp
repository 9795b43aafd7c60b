// GRADPROBE_RESULT: what NCCL's kernel left in the output is measured behind it, with a fingerprint of its bits; of
// several launches that may have completed it the last one counts; what can't be measured says why.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

// The sum of the content's 32-bit words.
std::uint64_t fingerprint_of(const float* data, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; i++) {
    std::uint32_t word = 0;
    std::memcpy(&word, data + i, sizeof word);
    sum += word;
  }
  return sum;
}

double sum_squares_of(const float* data, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; i++) sum += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  return sum;
}

class Results : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("GRADPROBE_RESULT", "1", 1);
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  }
  void TearDown() override { cuStreamDestroy(stream_); }

  // The inline order of one collective.
  void collective(FakeComm* comm, const Bucket& input, const Bucket& output, const Bucket& reduced, CUstream stream,
                  const char* function = "AllReduce", std::size_t count = 0) {
    comm->collective({.input = &input, .output = &output, .reduced = &reduced, .count = count}, stream, function);
  }

  std::vector<Record> of_kind(RecordKind kind) const { return folder_.records(kind); }
  std::vector<Record> inputs() const { return of_kind(RecordKind::collective); }
  std::vector<Record> results() const { return of_kind(RecordKind::result); }

  void expect_result(const Record& r, const Bucket& reduced, std::size_t count) {
    EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none) << "op " << r.head.op;
    const CollectiveBody& body = r.head.collective;
    EXPECT_EQ(body.count, count) << "op " << r.head.op;
    EXPECT_EQ(body.fingerprint, fingerprint_of(reduced.host().data(), count)) << "op " << r.head.op;
    const double want = sum_squares_of(reduced.host().data(), count);
    EXPECT_NEAR(body.sum_squares, want, 1e-7 * want) << "op " << r.head.op;
    EXPECT_EQ(r.sketch.size(), 1024u);
  }
  void expect_input(const Record& r, const Bucket& input) {
    EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none) << "op " << r.head.op;
    EXPECT_NEAR(r.head.collective.sum_squares / input.sum_squares(), 1.0, 1e-7) << "op " << r.head.op;
    EXPECT_EQ(r.head.collective.fingerprint, 0u);
  }

  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
};

TEST_F(Results, InPlace) {
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  collective(&comm, b, b, reduced, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.records();
  ASSERT_EQ(inputs().size(), 1u);
  ASSERT_EQ(results().size(), 1u);
  expect_input(inputs()[0], b);
  expect_result(results()[0], reduced, 5000);
  EXPECT_EQ(records[0].kind(), RecordKind::collective) << "the result's record follows that of its input";
  // One sketch for both: so the cosine of a gradient with the mean gradient can be estimated.
  EXPECT_EQ(inputs()[0].head.collective.sketch_key, results()[0].head.collective.sketch_key);
  EXPECT_EQ(folder_.counters().measured, 1u);
  EXPECT_EQ(folder_.counters().results, 1u);
  EXPECT_EQ(folder_.counters().announced, 1u);
}

TEST_F(Results, OutOfPlaceAndFollowedByWhatReusesTheBuffers) {
  const Bucket b(70000, 1), output(70000, 2), reduced(70000, 3);
  FakeComm comm;
  for (int i = 0; i < 20; i++) {
    collective(&comm, b, output, reduced, stream_);
    cuMemsetD32Async(output.address(), 0, output.count(), stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(results().size(), 20u);
  for (std::size_t i = 0; i < 20; i++) {
    expect_input(inputs()[i], b);
    expect_result(results()[i], reduced, 70000);
    EXPECT_EQ(results()[i].head.op, i);
    EXPECT_EQ(results()[i].head.step, inputs()[i].head.step);
  }
}

TEST_F(Results, OffByDefault) {
  unsetenv("GRADPROBE_RESULT");
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  collective(&comm, b, b, reduced, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  EXPECT_EQ(inputs().size(), 1u);
  EXPECT_EQ(results().size(), 0u);
}

TEST_F(Results, ReduceScatterMeasuresItsOwnShard) {
  const Bucket b(8000, 1), shard(2000, 2), reduced(2000, 3);
  FakeComm comm(5, 4, 1);
  collective(&comm, b, shard, reduced, stream_, "ReduceScatter", 2000);
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(results().size(), 1u);
  expect_input(inputs()[0], b);
  EXPECT_EQ(inputs()[0].head.collective.count, 8000u);
  expect_result(results()[0], reduced, 2000);
}

TEST_F(Results, TinyResultsKeepTheirValues) {
  const Bucket b(1, 1), reduced(1, 2);
  FakeComm comm;
  collective(&comm, b, b, reduced, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = results();
  ASSERT_EQ(records.size(), 1u);
  const CollectiveBody& body = records[0].head.collective;
  EXPECT_EQ(body.raw_count, 1u);
  float value = 0;
  std::memcpy(&value, body.raw, sizeof value);
  EXPECT_EQ(value, reduced.host()[0]);
  EXPECT_EQ(body.fingerprint, fingerprint_of(reduced.host().data(), 1));
}

// An all-gather's output is no reduction.
TEST_F(Results, OnlyReductionsHaveResults) {
  const Bucket b(4, 1), reduced(4, 2);
  FakeComm comm;
  collective(&comm, b, b, reduced, stream_, "AllGather");
  cuStreamSynchronize(stream_);
  comm.finalize();
  EXPECT_EQ(of_kind(RecordKind::scalar).size(), 1u);
  EXPECT_EQ(results().size(), 0u);
}

// Steps of three buckets and a loss that is gathered: two in three steps go without.
TEST_F(Results, EveryThirdStep) {
  setenv("GRADPROBE_RESULT", "3", 1);
  const Bucket large(4000, 1), middle(3000, 2), small(2000, 3), loss(1, 4), reduced(4000, 5);
  FakeComm comm;
  constexpr std::uint64_t kSteps = 60;
  for (std::uint64_t step = 0; step < kSteps; step++) {
    for (const Bucket* b : {&large, &middle, &small}) collective(&comm, *b, *b, reduced, stream_);
    collective(&comm, loss, loss, reduced, stream_, "AllGather");
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(inputs().size(), 3 * kSteps);
  // Until the steps are known every result is measured; which is so after at most 12 steps of four.
  std::array<bool, 4 * kSteps> measured{};
  for (const Record& r : results()) measured[r.head.op] = true;
  for (std::uint64_t op = 48; op < 4 * kSteps; op++) EXPECT_EQ(measured[op], op % 4 != 3 && op / 4 % 3 == 0) << op;
  for (const Record& r : results()) EXPECT_TRUE(r.head.step == kNone || r.head.step == r.head.op / 4) << r.head.op;
}

TEST_F(Results, SeveralLaunchesEachForItsOwnCollectives) {
  const Bucket a(3000, 1), b(90000, 2), reduced_a(3000, 3), reduced_b(90000, 4);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call_a = comm.coll_api(api, a.count(), stream_);
  void* call_b = comm.coll_api(api, b.count(), stream_);
  comm.launch_inline(api, stream_, {{.call = call_a, .input = &a, .reduced = &reduced_a}});
  comm.launch_inline(api, stream_, {{.call = call_b, .input = &b, .reduced = &reduced_b}});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(results().size(), 2u);
  expect_result(results()[0], reduced_a, 3000);
  expect_result(results()[1], reduced_b, 90000);
}

// Buffers told by host callbacks before the launches: nobody says which launch completes which result, so only what is
// seen behind the last one counts.
TEST_F(Results, OfSeveralLaunchesTheLastCounts) {
  const Bucket a(3000, 1), b(6000, 2), reduced_a(3000, 3), reduced_b(6000, 4);
  FakeComm comm;
  for (int round = 0; round < 3; round++) {
    a.refill();
    b.refill();
    void* api = comm.group_api_start();
    const Part part_a{.call = comm.coll_api(api, a.count(), stream_), .input = &a, .reduced = &reduced_a};
    const Part part_b{.call = comm.coll_api(api, b.count(), stream_), .input = &b, .reduced = &reduced_b};
    comm.tell_by_callback({part_a, part_b});
    comm.launch(api, stream_, {part_b});
    cuStreamSynchronize(stream_);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the collector sees the half-made state
    comm.launch(api, stream_, {part_a});
    comm.stop(api);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  ASSERT_EQ(inputs().size(), 6u);
  ASSERT_EQ(results().size(), 6u);
  for (std::size_t i = 0; i < 6; i++) {
    EXPECT_EQ(results()[i].head.op, i);
    expect_result(results()[i], i % 2 ? reduced_b : reduced_a, i % 2 ? 6000 : 3000);
  }
}

// The stand-in reads the variable when it is initialised, which is when the fixture's device is made.
template <int kNth>
struct NthLaunchFails {
  NthLaunchFails() {
    setenv("STANDIN_CUDA_FAIL", ("cuLaunchKernel/gradprobe_measure_f32:" + std::to_string(kNth)).c_str(), 1);
  }
};
// Launches: the warm-up, then input and result in turn.
class RefusedResults : private NthLaunchFails<5>, public Results {};
// Of the first collective's two launches, the result pass behind the second.
class RefusedLastResult : private NthLaunchFails<4>, public Results {};

TEST_F(RefusedResults, AreSaidAndTrainingGoesOn) {
  const Bucket b(5000, 1), reduced(5000, 2);
  take_log();
  {
    FakeComm comm;
    for (int i = 0; i < 4; i++) {
      collective(&comm, b, b, reduced, stream_);
      EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    }
  }
  const auto log = take_log();
  EXPECT_EQ(std::count_if(log.begin(), log.end(), [](const std::string& l) { return l.starts_with("WARN"); }), 1);
  ASSERT_EQ(inputs().size(), 4u);
  ASSERT_EQ(results().size(), 2u);
  expect_result(results()[0], reduced, 5000);
  EXPECT_EQ(static_cast<Missed>(results()[1].head.missed), Missed::launch_failed);
  EXPECT_EQ(results()[1].head.op, 1u);
  for (std::size_t i = 0; i < 4; i++)
    EXPECT_EQ(static_cast<Missed>(inputs()[i].head.missed), i < 2 ? Missed::none : Missed::launch_failed) << i;
}

// What was measured behind the first launch is half-made.
TEST_F(RefusedLastResult, LeavesNone) {
  const Bucket b(3000, 1), half_made(3000, 2), reduced(3000, 3);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, b.count(), stream_);
  comm.tell_by_callback({{call, &b}});
  for (const Bucket* content : {&half_made, &reduced}) {
    comm.launch(api, stream_, {{.call = call, .input = &b, .reduced = content}});
    cuStreamSynchronize(stream_);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  comm.stop(api);
  comm.finalize();
  ASSERT_EQ(inputs().size(), 1u);
  expect_input(inputs()[0], b);
  ASSERT_EQ(results().size(), 1u);
  EXPECT_EQ(static_cast<Missed>(results()[0].head.missed), Missed::launch_failed);
}

// They are launched without a call that NCCL announces, when the buffers of earlier collectives may be gone.
TEST_F(Results, SendsAndReceivesCompleteNone) {
  auto b = std::make_unique<Bucket>(3000, 1);
  const Bucket reduced(3000, 2), other(5000, 3);
  FakeComm comm;
  for (const bool freed : {false, true}) {
    b->refill();
    void* api = comm.group_api_start();
    const Part part{.call = comm.coll_api(api, b->count(), stream_), .input = b.get(), .reduced = &reduced};
    comm.tell_by_callback({part});
    comm.launch(api, stream_, {part});
    comm.stop(api);
    cuStreamSynchronize(stream_);
    if (freed) {
      b.reset();
    } else {
      b->refill();  // no longer the result
    }
    comm.send_receive(stream_);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
  comm.finalize();
  ASSERT_EQ(inputs().size(), 2u);
  ASSERT_EQ(results().size(), 2u);
  for (const Record& r : results()) expect_result(r, reduced, 3000);
}

TEST_F(Results, NoneWithoutItsInput) {
  setenv("GRADPROBE_GATE_TIMEOUT", "30", 1);
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  const Part part{.call = comm.coll_api(api, b.count(), stream_), .input = &b, .reduced = &reduced};
  comm.launch(api, stream_, {part});
  cuStreamSynchronize(stream_);  // the gate has timed out
  comm.tell({part});
  comm.stop(api);
  collective(&comm, b, b, reduced, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(inputs().size(), 2u);
  EXPECT_EQ(static_cast<Missed>(inputs()[0].head.missed), Missed::timeout);
  ASSERT_EQ(results().size(), 1u);
  EXPECT_EQ(results()[0].head.op, 1u);
  expect_result(results()[0], reduced, 5000);
}

class CapturedResults : public Results, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(CapturedResults, OfEveryNthReplay) {
  const std::uint32_t every = GetParam();
  setenv("GRADPROBE_RESULT", std::to_string(every).c_str(), 1);
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  void* api = comm.group_api_start(true);
  void* call = comm.coll_api(api, b.count(), stream_, "AllReduce", "ncclFloat32", true);
  comm.launch_inline(api, stream_, {{.call = call, .input = &b, .reduced = &reduced}});
  comm.stop(api);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  cuStreamEndCapture(stream_, &graph);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  cuGraphDestroy(graph);
  for (std::uint32_t replay = 0; replay < 10; replay++) {
    b.refill();
    cuGraphLaunch(exec, stream_);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  cuGraphExecDestroy(exec);
  ASSERT_EQ(inputs().size(), 10u);
  const auto records = results();
  ASSERT_EQ(records.size(), (10 + every - 1) / every);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(records[i].head.replay, 1 + i * every);
    EXPECT_TRUE(records[i].has(kFlagCaptured));
    expect_result(records[i], reduced, 5000);
  }
  for (const Record& r : inputs()) expect_input(r, b);
}
INSTANTIATE_TEST_SUITE_P(Every, CapturedResults, ::testing::Values(1u, 3u), ::testing::PrintToStringParamName());

class Workspaces : public Results {
 protected:
  void SetUp() override {
    Results::SetUp();
    unsetenv("GRADPROBE_RESULT");
    for (CUstream& s : streams_) cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  }
  void TearDown() override {
    for (CUstream s : streams_) cuStreamDestroy(s);
    Results::TearDown();
  }
  std::array<CUstream, 5> streams_{};
};

// NCCL puts a communicator's launches in order across its streams, as the waiting here does: then any number of streams
// can be used.
TEST_F(Workspaces, MoreStreamsThanWorkspacesInTurn) {
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  for (int i = 0; i < 25; i++) {
    b.refill();
    collective(&comm, b, b, reduced, streams_[static_cast<std::size_t>(i) % streams_.size()]);
    cuStreamSynchronize(streams_[static_cast<std::size_t>(i) % streams_.size()]);
  }
  comm.finalize();
  ASSERT_EQ(inputs().size(), 25u);
  for (const Record& r : inputs()) expect_input(r, b);
}

TEST_F(Workspaces, StreamsAtTheSameTimeHaveTheirOwn) {
  std::array<std::unique_ptr<Bucket>, 4> buckets;
  for (unsigned i = 0; i < 4; i++) buckets[i] = std::make_unique<Bucket>(400'000, i + 1);
  const Bucket reduced(400'000, 9);
  FakeComm comm;
  for (std::size_t i = 0; i < 4; i++) collective(&comm, *buckets[i], *buckets[i], reduced, streams_[i]);
  for (std::size_t i = 0; i < 4; i++) cuStreamSynchronize(streams_[i]);
  comm.finalize();
  ASSERT_EQ(inputs().size(), 4u);
  for (std::size_t i = 0; i < 4; i++) expect_input(inputs()[i], *buckets[i]);
}

// The fifth stream shares the first one's workspace, which is in use: missed, not waited for.
TEST_F(Workspaces, OneStreamTooManyAtTheSameTimeIsMissed) {
  const Bucket large(20'000'000, 1), small(3000, 2);
  std::array<std::unique_ptr<Bucket>, 3> others;
  for (auto& b : others) b = std::make_unique<Bucket>(3000, 3);
  FakeComm comm;
  collective(&comm, large, large, large, streams_[0]);
  for (std::size_t i = 0; i < 3; i++) collective(&comm, *others[i], *others[i], *others[i], streams_[1 + i]);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the large one has begun
  collective(&comm, small, small, small, streams_[4]);
  const auto begin = std::chrono::steady_clock::now();
  cuStreamSynchronize(streams_[4]);
  const auto waited = std::chrono::steady_clock::now() - begin;
  for (CUstream s : streams_) cuStreamSynchronize(s);
  comm.finalize();
  const std::vector<Record> records = inputs();
  ASSERT_EQ(records.size(), 5u);
  const RecordHead &first = records[0].head, &last = records[4].head;
  if (last.missed == 0 && last.collective.gpu_start_ns >= first.collective.gpu_end_ns)
    GTEST_SKIP() << "the large measurement ended before the small one began";
  EXPECT_LT(waited, std::chrono::seconds(5));
  for (std::size_t i = 0; i < 4; i++) EXPECT_EQ(static_cast<Missed>(records[i].head.missed), Missed::none) << i;
  EXPECT_EQ(static_cast<Missed>(last.missed), Missed::workspace);
  EXPECT_EQ(folder_.counters().missed[static_cast<int>(Missed::workspace)], 1u);
}

}  // namespace
}  // namespace gradprobe::test
