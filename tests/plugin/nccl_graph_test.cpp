// CUDA graphs inside NCCL (the stand-in): with and without proxy work, beside other graphs and uncaptured collectives,
// updated, and gone before or after their communicator.
#include <array>
#include <string_view>

#include "nccl_fixture.hpp"

namespace gradprobe::test {
namespace {

// A captured graph and its executable; both go with the object.
class Graph {
 public:
  Graph(CUstream stream, const std::function<void()>& work) {
    EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    work();
    EXPECT_EQ(cuStreamEndCapture(stream, &graph_), CUDA_SUCCESS);
    EXPECT_EQ(cuGraphInstantiate(&exec_, graph_, 0), CUDA_SUCCESS);
  }
  ~Graph() {
    cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(CUstream stream) const { EXPECT_EQ(cuGraphLaunch(exec_, stream), CUDA_SUCCESS); }
  CUresult update(const Graph& other) {
    CUgraphExecUpdateResultInfo info;
    return cuGraphExecUpdate(exec_, other.graph_, &info);
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

// A rank's bucket whose content is put back in front of each collective, as the next step's gradient would be.
struct Bucket {
  CUdeviceptr data = 0, original = 0;
  std::size_t count = 0;
  void restore(CUstream stream) const {
    EXPECT_EQ(cuMemcpyDtoDAsync(data, original, count * sizeof(float), stream), CUDA_SUCCESS);
  }
};
Bucket bucket(Rank* r, std::size_t count) {
  const Bucket b{r->input(count), Rank::buffer(count * sizeof(float)), count};
  EXPECT_EQ(cuMemcpyDtoD(b.original, b.data, count * sizeof(float)), CUDA_SUCCESS);
  return b;
}

// STANDIN_NCCL_HOST_CALLBACK: without proxy work; with, but uncaptured collectives inline; all by callbacks.
class Graphs : public Nccl, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    setenv("STANDIN_NCCL_HOST_CALLBACK", GetParam(), 1);
    setenv("GRADPROBE_RING_MB", "16", 1);
  }
};
std::string name_of(const ::testing::TestParamInfo<const char*>& info) {
  const std::string_view setting = info.param;
  return setting == "0" ? "WithoutProxyWork" : setting == "1" ? "UncapturedInline" : "AllByCallbacks";
}
INSTANTIATE_TEST_SUITE_P(Nccl, Graphs, ::testing::Values("0", "1", "2"), name_of);

TEST_P(Graphs, TwoInterleavedOnTwoStreamsAndUncapturedOnes) {
  run([](Rank& r) {
    constexpr int kRounds = 6;
    const Bucket a = bucket(&r, 5000), b = bucket(&r, 40'000);
    const auto all_reduce = [&](const Bucket& x, CUstream stream) {
      x.restore(stream);
      NCCL_OK(ncclAllReduce(Rank::ptr(x.data), Rank::ptr(x.data), x.count, ncclFloat32, ncclSum, r.comm, stream));
    };
    const Graph first(r.stream, [&] { all_reduce(a, r.stream); });
    const Graph second(r.stream, [&] { all_reduce(b, r.stream); });
    r.expected[0].replays = r.expected[1].replays = kRounds;
    for (int i = 0; i < kRounds; i++) {
      first.launch(r.stream);
      second.launch(i % 2 == 0 ? r.stream : r.other_stream);
      const Bucket c = bucket(&r, 3000 + static_cast<std::size_t>(i));
      all_reduce(c, i % 3 == 0 ? r.other_stream : r.stream);
    }
    r.synchronize();
  });
}

// Right behind a replay NCCL may turn to callbacks for uncaptured work: a hundred collectives in one group.
TEST_P(Graphs, AHundredCollectivesBehindAReplay) {
  for (const char* per_launch : {"0", "1", "7"}) {
    SCOPED_TRACE(per_launch);
    setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", per_launch, 1);
    const RingFolder folder;
    const auto ranks = run_ranks([](Rank& r) {
      const Bucket captured = bucket(&r, 30'000);
      const Graph graph(r.stream, [&] {
        captured.restore(r.stream);
        NCCL_OK(r.in_place(captured.data, captured.count));
      });
      r.last().replays = 2;
      for (int round = 0; round < 2; round++) {
        std::array<CUdeviceptr, 100> p{};
        for (CUdeviceptr& x : p) x = r.input(700);
        graph.launch(r.stream);
        NCCL_OK(ncclGroupStart());
        for (const CUdeviceptr x : p) NCCL_OK(r.in_place(x, 700));
        NCCL_OK(ncclGroupEnd());
      }
      r.synchronize();
    });
    for (const std::string& file : folder.files()) {
      auto opened = RingReader::open(file);
      ASSERT_TRUE(opened.reader);
      const LiveCounters live = opened.reader->counters();
      EXPECT_EQ(live.announced, 201u);
      EXPECT_EQ(live.measured, 202u);
      for (const std::uint64_t missed : live.missed) EXPECT_EQ(missed, 0u);
    }
    check_in(folder, ranks);
  }
}

// Capture, update the first executable, go on with it.
TEST_P(Graphs, Updated) {
  run([](Rank& r) {
    const std::array<Bucket, 3> buckets = {bucket(&r, 5000), bucket(&r, 90'000), bucket(&r, 300)};
    const auto capture = [&](const Bucket& b) {
      return std::make_unique<Graph>(r.stream, [&] {
        b.restore(r.stream);
        NCCL_OK(r.in_place(b.data, b.count));
      });
    };
    const auto graph = capture(buckets[0]);
    graph->launch(r.stream);
    for (std::uint64_t op : {1u, 2u}) {
      const auto other = capture(buckets[op]);
      ASSERT_EQ(graph->update(*other), CUDA_SUCCESS);
      r.expected[op].replays = 2;
      for (int i = 0; i < 2; i++) graph->launch(r.stream);
      r.synchronize();
    }
  });
}

// Many graphs that come and go: more than there are places for captured launches at a time.
TEST_P(Graphs, ComeAndGo) {
  const int graphs = std::string_view(GetParam()) == "0" ? 600 : 100;
  run([graphs](Rank& r) {
    for (int i = 0; i < graphs; i++) {
      const Bucket b = bucket(&r, 64);
      const Graph graph(r.stream, [&] {
        b.restore(r.stream);
        NCCL_OK(r.in_place(b.data, b.count));
      });
      graph.launch(r.stream);
      r.synchronize();
      cuMemFree(b.original);
    }
  });
}

// An aborted communicator doesn't wait for its graphs; what is left of them must do no harm.
TEST_P(Graphs, OutliveAnAbortedCommunicator) {
  run([](Rank& r) {
    const Bucket b = bucket(&r, 5000);
    const Graph graph(r.stream, [&] {
      b.restore(r.stream);
      NCCL_OK(r.in_place(b.data, b.count));
    });
    graph.launch(r.stream);
    r.synchronize();
    NCCL_OK(ncclCommAbort(r.comm));
    r.comm = nullptr;
  });
}

}  // namespace
}  // namespace gradprobe::test
