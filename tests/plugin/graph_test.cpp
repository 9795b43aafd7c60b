// CUDA graphs: every replay of a captured collective is a record of its own, whatever becomes of the graph and whatever
// runs beside it.
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "plugin_fixture.hpp"

namespace gradprobe::test {
namespace {

class Captured : public PluginTest {
 protected:
  // Captures one in-place all-reduce of `b`; the Coll events follow at capture when `inline_events`.
  CUgraphExec capture(FakeComm* comm, const Bucket& b, bool inline_events, void** call) {
    cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    void* api = comm->group_api_start(true);
    *call = comm->coll_api(api, b.count(), stream_, "AllReduce", "ncclFloat32", true);
    comm->launch(api, stream_, {{*call, &b}});
    if (inline_events) comm->tell({{*call, &b}});
    comm->stop(api);
    CUgraph graph = nullptr;
    cuStreamEndCapture(stream_, &graph);
    CUgraphExec exec = nullptr;
    cuGraphInstantiate(&exec, graph, 0);
    cuGraphDestroy(graph);
    return exec;
  }
};

TEST_F(Captured, EveryReplayIsARecord) {
  Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  CUgraphExec exec = capture(&comm, b, true, &call);
  ASSERT_NE(exec, nullptr);
  for (int i = 0; i < 3; i++) {
    b.refill();
    cuGraphLaunch(exec, stream_);
    cuStreamSynchronize(stream_);
  }
  cuGraphExecDestroy(exec);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 3u);
  for (std::uint32_t i = 0; i < 3; i++) {
    expect_measured(records[i], b);
    EXPECT_EQ(records[i].head.replay, i + 1);
    EXPECT_TRUE(records[i].has(kFlagCaptured));
  }
  EXPECT_NE(records[0].head.collective.sketch_key, records[1].head.collective.sketch_key);
}

TEST_F(Captured, AGroupsReplaysAreInTheOrderOfCalls) {
  Bucket large(60000, 1), small(300, 2), loss(1, 3);
  const std::array<Bucket*, 3> buckets = {&large, &small, &loss};
  FakeComm comm;
  cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  void* api = comm.group_api_start(true);
  Parts parts;
  for (Bucket* b : buckets)
    parts.insert(parts.begin(), Part{comm.coll_api(api, b->count(), stream_, "AllReduce", "ncclFloat32", true), b});
  comm.launch_inline(api, stream_, parts);
  comm.stop(api);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  cuStreamEndCapture(stream_, &graph);
  cuGraphInstantiate(&exec, graph, 0);
  for (int i = 0; i < 20; i++) {
    for (Bucket* b : buckets) b->refill();
    cuGraphLaunch(exec, stream_);
    cuStreamSynchronize(stream_);
  }
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
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

TEST_F(Captured, HostCallbackTellsTheBuffersAtEachReplay) {
  Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  CUgraphExec exec = capture(&comm, b, false, &call);
  ASSERT_NE(exec, nullptr);
  for (int i = 0; i < 3; i++) {
    b.refill();
    comm.tell_by_callback({{call, &b}});
    cuGraphLaunch(exec, stream_);
    cuStreamSynchronize(stream_);
  }
  cuGraphExecDestroy(exec);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 3u);
  for (const Record& r : records) expect_measured(r, b);
}

TEST_F(Captured, GraphOutlivesTheCommunicator) {
  Bucket b(5000);
  FakeComm comm;
  void* call = nullptr;
  CUgraphExec exec = capture(&comm, b, true, &call);
  cuGraphLaunch(exec, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  b.refill();
  EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(folder_.collectives().size(), 1u);
}

TEST_F(Captured, ReplayWithOtherAddressesIsNotMeasured) {
  Bucket b(5000, 1), other(5000, 2);
  FakeComm comm;
  void* call = nullptr;
  CUgraphExec exec = capture(&comm, b, false, &call);
  comm.tell_by_callback({{call, &b}});
  cuGraphLaunch(exec, stream_);
  cuStreamSynchronize(stream_);
  comm.tell_by_callback({{call, &other}});
  cuGraphLaunch(exec, stream_);
  cuStreamSynchronize(stream_);
  cuGraphExecDestroy(exec);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 1u);
  expect_measured(records[0], b);
  EXPECT_EQ(folder_.counters().missed[static_cast<int>(Missed::ambiguous)], 1u);
}

}  // namespace
}  // namespace gradprobe::test
