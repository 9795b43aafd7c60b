// CUDA graphs: every replay of a captured collective is a record of its own, whatever becomes of the graph and whatever
// runs beside it.
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "plugin_fixture.hpp"

namespace gradprobe::test {
namespace {

// A captured graph and its executable; both go with the object.
class Replayable {
 public:
  Replayable(CUstream stream, const std::function<void()>& work) {
    cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    work();
    EXPECT_EQ(cuStreamEndCapture(stream, &graph_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiate(&exec_, graph_, 0), CUDA_SUCCESS);
  }
  ~Replayable() {
    cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
  }
  Replayable(const Replayable&) = delete;
  Replayable& operator=(const Replayable&) = delete;
  void launch(CUstream stream) const { EXPECT_EQ(cuGraphLaunch(exec_, stream), CUDA_SUCCESS); }
  // The executable now runs what `other` captured.
  CUresult update(const Replayable& other) {
    CUgraphExecUpdateResultInfo info;
    return cuGraphExecUpdate(exec_, other.graph_, &info);
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

class Captured : public PluginTest {
 protected:
  // Captures one in-place all-reduce of `b`; the Coll events follow at capture when `inline_events`.
  std::unique_ptr<Replayable> capture(FakeComm* comm, const Bucket& b, bool inline_events, void** call,
                                      CUstream stream = nullptr) {
    const CUstream on = stream != nullptr ? stream : stream_;
    return std::make_unique<Replayable>(on, [&] {
      cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), on);
      void* api = comm->group_api_start(true);
      *call = comm->coll_api(api, b.count(), on, "AllReduce", "ncclFloat32", true);
      comm->launch(api, on, {{*call, &b}});
      if (inline_events) comm->tell({{*call, &b}});
      comm->stop(api);
    });
  }
  // Replays 1, 2, ... of an op, all of `b`.
  void expect_replays(const std::vector<Record>& records, std::size_t replays, const Bucket& b) {
    ASSERT_EQ(records.size(), replays);
    for (std::uint32_t i = 0; i < records.size(); i++) {
      expect_measured(records[i], b);
      EXPECT_EQ(records[i].head.replay, i + 1);
      EXPECT_TRUE(records[i].has(kFlagCaptured));
    }
  }
};

TEST_F(Captured, EveryReplayIsARecord) {
  const Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  const auto graph = capture(&comm, b, true, &call);
  for (int i = 0; i < 3; i++) graph->launch(stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  expect_replays(records, 3, b);
  EXPECT_NE(records[0].head.collective.sketch_key, records[1].head.collective.sketch_key);
}

TEST_F(Captured, AGroupsReplaysAreInTheOrderOfCalls) {
  Bucket large(60000, 1), small(300, 2), loss(1, 3);
  const std::array<Bucket*, 3> buckets = {&large, &small, &loss};
  FakeComm comm;
  const Replayable graph(stream_, [&] {
    void* api = comm.group_api_start(true);
    Parts parts;
    for (Bucket* b : buckets)
      parts.insert(parts.begin(), Part{comm.coll_api(api, b->count(), stream_, "AllReduce", "ncclFloat32", true), b});
    comm.launch_inline(api, stream_, parts);
    comm.stop(api);
  });
  for (int i = 0; i < 20; i++) {
    for (Bucket* b : buckets) b->refill();
    graph.launch(stream_);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 60u);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(records[i].head.op, i % 3);
    EXPECT_EQ(records[i].head.replay, i / 3 + 1);
    expect_measured(records[i], *buckets[i % 3]);
    EXPECT_TRUE(records[i].head.step == kNone || records[i].head.step == i / 3) << records[i].head.step;
  }
  EXPECT_EQ(records.back().head.step, 19u);
}

// A captured call that NCCL launches without a word still waits when a call that is left out is launched, in another
// group and not captured: that launch isn't its own, and no gate may wait in front of it.
TEST_F(Captured, ALaunchOutsideTheCaptureIsNotOfACapturedCall) {
  setenv("GRADPROBE_MIN_COUNT", "1000", 1);
  setenv("GRADPROBE_GATE_TIMEOUT", "2000", 1);
  const Bucket captured(5000), left_out(500);
  FakeComm comm;
  const Replayable graph(stream_, [&] {
    void* api = comm.group_api_start(true);
    comm.coll_api(api, captured.count(), stream_, "AllReduce", "ncclFloat32", true);
    comm.stop(api);
  });
  const auto begin = std::chrono::steady_clock::now();
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, left_out.count(), stream_);
  comm.launch(api, stream_, {{call, &left_out}});
  cuStreamSynchronize(stream_);
  comm.tell({{call, &left_out}});
  comm.stop(api);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
  comm.finalize();
  EXPECT_TRUE(folder_.collectives().empty());
}

TEST_F(Captured, HostCallbackTellsTheBuffersAtEachReplay) {
  const Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  const auto graph = capture(&comm, b, false, &call);
  for (int i = 0; i < 3; i++) {
    comm.tell_by_callback({{call, &b}});
    graph->launch(stream_);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  expect_replays(folder_.collectives(), 3, b);
}

TEST_F(Captured, GraphOutlivesTheCommunicator) {
  const Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  auto graph = capture(&comm, b, true, &call);
  graph->launch(stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  graph->launch(stream_);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  graph.reset();
  EXPECT_EQ(folder_.collectives().size(), 1u);
  // Another communicator may have the place of the first, whose graph's end is told late.
  FakeComm next(0x5678);
  next.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  next.finalize();
  EXPECT_EQ(folder_.collectives().size(), 2u);
}

TEST_F(Captured, ReplayWithOtherAddressesIsNotMeasured) {
  const Bucket b(5000, 1), other(5000, 2);
  FakeComm comm;
  void* call = nullptr;
  const auto graph = capture(&comm, b, false, &call);
  for (const Bucket* told : {&b, &other}) {
    comm.tell_by_callback({{call, told}});
    graph->launch(stream_);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(static_cast<Missed>(records[1].head.missed), Missed::ambiguous);
  EXPECT_EQ(records[1].head.replay, 2u);
  records.pop_back();
  expect_replays(records, 1, b);
  EXPECT_EQ(missed(Missed::ambiguous), 1u);
}

// A graph's end is told by a thread of the driver.
TEST_F(Captured, DestroyedWhileTheCommunicatorLives) {
  const Bucket b(5000, 1), later(6000, 2);
  FakeComm comm;
  void* call = nullptr;
  for (int i = 0; i < 20; i++) {
    const auto graph = capture(&comm, b, true, &call);
    for (int replay = 0; replay < 2; replay++) graph->launch(stream_);
    cuStreamSynchronize(stream_);
  }
  comm.all_reduce(later, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto ops = by_op();
  ASSERT_EQ(ops.size(), 21u);
  for (std::uint64_t op = 0; op < 20; op++) expect_replays(ops.at(op), 2, b);
  expect_measured(ops.at(20)[0], later);
}

// While the first launch of a graph is on its way the graph is destroyed: CUDA keeps it until it has run.
TEST_F(Captured, DestroyedWhileItRuns) {
  const Bucket b(200'000);
  FakeComm comm;
  void* call = nullptr;
  for (int i = 0; i < 5; i++) {
    const auto graph = capture(&comm, b, true, &call);
    graph->launch(stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto ops = by_op();
  ASSERT_EQ(ops.size(), 5u);
  for (const auto& [op, records] : ops) expect_replays(records, 1, b);
}

// Frameworks capture anew and update the executable: it runs the new graph's kernels from then on, so its slot.
TEST_F(Captured, UpdatedGraphs) {
  const Bucket a(5000, 1), b(70'000, 2);
  FakeComm comm;
  void* call = nullptr;
  const auto first = capture(&comm, a, true, &call);
  first->launch(stream_);
  for (const Bucket* bucket : {&b, &a}) {
    const auto other = capture(&comm, *bucket, true, &call);
    ASSERT_EQ(first->update(*other), CUDA_SUCCESS) << "a capture must always give the same nodes";
    for (int i = 0; i < 2; i++) first->launch(stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto ops = by_op();
  ASSERT_EQ(ops.size(), 3u);
  expect_replays(ops.at(0), 1, a);
  expect_replays(ops.at(1), 2, b);
  expect_replays(ops.at(2), 2, a);
}

// The kernels are in the graph whatever the counts and types are, and whichever collectives aren't measured.
TEST_F(Captured, UpdatedGraphsWithResults) {
  setenv("GRADPROBE_RESULT", "2", 1);
  const Bucket a(5000, 1), b(300'000, 2), one(1, 3);
  FakeComm comm;
  void* call = nullptr;
  const auto first = capture(&comm, a, true, &call);
  for (const Bucket* bucket : {&b, &one, &a}) {
    const auto other = capture(&comm, *bucket, true, &call);
    ASSERT_EQ(first->update(*other), CUDA_SUCCESS) << bucket->count();
    first->launch(stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  EXPECT_EQ(folder_.collectives().size(), 3u);
  EXPECT_EQ(of_kind(RecordKind::result).size(), 3u);
}

class Interleaved : public Captured, public ::testing::WithParamInterface<std::tuple<bool, bool>> {};
std::string name_of(const ::testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  const auto [two_streams, inline_events] = info.param;
  return std::string(two_streams ? "TwoStreams_" : "OneStream_") + (inline_events ? "Inline" : "ByCallback");
}
INSTANTIATE_TEST_SUITE_P(StreamsAndEvents, Interleaved, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         name_of);

TEST_P(Interleaved, TwoGraphsAndUncapturedWork) {
  const auto [two_streams, inline_events] = GetParam();
  constexpr int kRounds = 10;
  const Bucket a(5000, 1), b(40'000, 2), c(7000, 3);
  CUstream other = nullptr;
  CUevent event = nullptr;
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  // NCCL puts a communicator's launches in order, whatever streams they are on.
  const auto in_order = [&](CUstream before, CUstream after) {
    if (before == after) return;
    cuEventRecord(event, before);
    cuStreamWaitEvent(after, event, 0);
  };
  FakeComm comm;
  void *call_a = nullptr, *call_b = nullptr;
  const auto first = capture(&comm, a, inline_events, &call_a);
  const auto second = capture(&comm, b, inline_events, &call_b, other);
  const CUstream seconds = two_streams ? other : stream_;
  for (int i = 0; i < kRounds; i++) {
    if (!inline_events) comm.tell_by_callback({{call_a, &a}});
    first->launch(stream_);
    in_order(stream_, seconds);
    if (!inline_events) comm.tell_by_callback({{call_b, &b}});
    second->launch(seconds);
    in_order(seconds, stream_);
    // Right behind the replays, before they are done.
    cuMemcpyHtoDAsync(c.address(), c.host().data(), c.count() * sizeof(float), stream_);
    comm.all_reduce(c, stream_);
  }
  cuStreamSynchronize(stream_);
  cuStreamSynchronize(other);
  comm.finalize();
  const auto ops = by_op();
  ASSERT_EQ(ops.size(), 2u + kRounds);
  expect_replays(ops.at(0), kRounds, a);
  expect_replays(ops.at(1), kRounds, b);
  for (std::uint64_t op = 2; op < 2 + kRounds; op++) {
    ASSERT_EQ(ops.at(op).size(), 1u);
    expect_measured(ops.at(op)[0], c);
    EXPECT_EQ(ops.at(op)[0].head.replay, 0u);
  }
  EXPECT_EQ(folder_.counters().measured, 3u * kRounds);
  cuEventDestroy(event);
  cuStreamDestroy(other);
}

// One launch inline at capture, the other by a callback at every replay.
TEST_F(Captured, MixedTelling) {
  setenv("GRADPROBE_RESULT", "1", 1);
  const Bucket a(3000, 1), b(6000, 2);
  for (const bool inline_first : {true, false}) {
    FakeComm comm(inline_first ? 1 : 2);
    Part called{.input = &b}, inlined{.input = &a};
    const Replayable graph(stream_, [&] {
      for (const Bucket* x : {&a, &b}) cuMemcpyHtoDAsync(x->address(), x->host().data(), x->count() * 4, stream_);
      void* api = comm.group_api_start(true);
      inlined.call = comm.coll_api(api, a.count(), stream_, "AllReduce", "ncclFloat32", true);
      called.call = comm.coll_api(api, b.count(), stream_, "AllReduce", "ncclFloat32", true);
      if (!inline_first) comm.launch(api, stream_, {called});
      comm.launch_inline(api, stream_, {inlined});
      if (inline_first) comm.launch(api, stream_, {called});
      comm.stop(api);
    });
    for (int i = 0; i < 3; i++) {
      comm.tell_by_callback({called});
      graph.launch(stream_);
      cuStreamSynchronize(stream_);
    }
    comm.finalize();
  }
  std::map<std::pair<bool, std::uint64_t>, std::vector<Record>> ops;
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 12u);
  for (const Record& r : records) expect_measured(r, r.head.op == 0 ? a : b);
  for (const Record& r : of_kind(RecordKind::result)) {
    EXPECT_EQ(missed(r), Missed::none);
    EXPECT_EQ(r.head.collective.sum_squares, 0) << "NCCL's kernel left zeros";
  }
}

// What NCCL never tells (a symmetric kernel in the same group) costs one time-out, not one a replay.
TEST_F(Captured, CallsWithoutEventsInACapturedGroup) {
  setenv("GRADPROBE_GATE_TIMEOUT", "400", 1);
  const Bucket symmetric(3000, 1), b(6000, 2);
  FakeComm comm;
  Part part{.input = &b};
  const Replayable graph(stream_, [&] {
    cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), stream_);
    void* api = comm.group_api_start(true);
    comm.coll_api(api, symmetric.count(), stream_, "AllReduce", "ncclFloat32", true);
    part.call = comm.coll_api(api, b.count(), stream_, "AllReduce", "ncclFloat32", true);
    comm.launch(api, stream_, {part});
    comm.stop(api);
  });
  constexpr std::uint64_t kReplays = 6;
  for (std::uint64_t i = 0; i < kReplays; i++) {
    comm.tell_by_callback({part});
    graph.launch(stream_);
    cuStreamSynchronize(stream_);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the collector's turn
  }
  comm.finalize();
  const auto records = folder_.collectives();
  std::size_t measured = 0;
  for (const Record& r : records) {
    if (static_cast<Missed>(r.head.missed) == Missed::timeout) continue;
    expect_measured(r, b);
    measured++;
  }
  EXPECT_GE(measured, 1u);
  EXPECT_EQ(records.back().head.replay, kReplays);
  EXPECT_EQ(static_cast<Missed>(records.back().head.missed), Missed::none);
  EXPECT_LT(missed(Missed::timeout), 2 * kReplays);
  EXPECT_EQ(missed(Missed::no_events), 1u);
}

}  // namespace
}  // namespace gradprobe::test
