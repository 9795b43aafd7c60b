// The plugin inside NCCL (the stand-in): the usual ways of calling collectives, and every mode in which NCCL then calls
// the plugin.
#include "nccl_fixture.hpp"

namespace gradprobe::test {
namespace {

// One collective after another: in place, out of place, three datatypes, two streams.
void plain(Rank& r) {
  for (const auto& [count, type] : {std::pair<std::size_t, ncclDataType_t>{10000, ncclFloat32},
                                    {1, ncclFloat32},
                                    {40001, ncclBfloat16},
                                    {777, ncclFloat16}}) {
    NCCL_OK(r.in_place(r.input(count, type), count, type));
  }
  const CUdeviceptr in = r.input(5000);
  CUdeviceptr out = 0;
  CUDA_OK(cuMemAlloc(&out, 5000 * sizeof(float)));
  NCCL_OK(ncclAllReduce(Rank::ptr(in), Rank::ptr(out), 5000, ncclFloat32, ncclAvg, r.comm, r.stream));
  const CUdeviceptr elsewhere = r.input(6000);
  NCCL_OK(
      ncclAllReduce(Rank::ptr(elsewhere), Rank::ptr(elsewhere), 6000, ncclFloat32, ncclMax, r.comm, r.other_stream));
  const CUdeviceptr scatter = r.input(3000 * static_cast<std::size_t>(r.ranks));
  NCCL_OK(ncclReduceScatter(Rank::ptr(scatter), Rank::ptr(scatter + 4 * 3000 * static_cast<unsigned>(r.rank)), 3000,
                            ncclFloat32, ncclSum, r.comm, r.stream));
}

void grouped(Rank& r) {
  for (int round = 0; round < 3; round++) {
    const std::size_t counts[] = {4096, 65536, 16384};
    CUdeviceptr p[3];
    for (int i = 0; i < 3; i++) p[i] = r.input(counts[i]);
    NCCL_OK(ncclGroupStart());
    NCCL_OK(r.in_place(p[0], counts[0]));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(r.in_place(p[1], counts[1]));
    NCCL_OK(ncclGroupEnd());
    NCCL_OK(r.in_place(p[2], counts[2]));
    NCCL_OK(ncclGroupEnd());
  }
}

void captured(Rank& r) {
  const std::size_t count = 20000;
  const CUdeviceptr p = r.input(count);
  std::vector<float> host(count);
  CUDA_OK(cuMemcpyDtoH(host.data(), p, count * sizeof(float)));
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  NCCL_OK(r.in_place(p, count));
  CUDA_OK(cuStreamEndCapture(r.stream, &graph));
  CUDA_OK(cuGraphInstantiate(&exec, graph, 0));
  r.last().replays = 3;
  for (int i = 0; i < 3; i++) {
    CUDA_OK(cuMemcpyHtoDAsync(p, host.data(), count * sizeof(float), r.stream));
    CUDA_OK(cuGraphLaunch(exec, r.stream));
    CUDA_OK(cuStreamSynchronize(r.stream));
  }
  CUDA_OK(cuGraphExecDestroy(exec));
  CUDA_OK(cuGraphDestroy(graph));
}

TEST_F(Nccl, Plain) {
  run(plain);
}
TEST_F(Nccl, Grouped) {
  run(grouped);
}
TEST_F(Nccl, Captured) {
  run(captured);
}
TEST_F(Nccl, V6Plain) {
  setenv("STANDIN_NCCL_VERSION", "2.30.7", 1);
  run(plain);
}
TEST_F(Nccl, V6Grouped) {
  setenv("STANDIN_NCCL_VERSION", "2.30.7", 1);
  run(grouped);
}
TEST_F(Nccl, SeveralLaunchesPerGroup) {
  setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", "1", 1);
  run(grouped);
}
TEST_F(Nccl, HostCallbackPlain) {
  setenv("STANDIN_NCCL_HOST_CALLBACK", "2", 1);
  run(plain);
}
TEST_F(Nccl, HostCallbackGrouped) {
  setenv("STANDIN_NCCL_HOST_CALLBACK", "2", 1);
  run(grouped);
}
TEST_F(Nccl, HostCallbackSeveralLaunchesPerGroup) {
  setenv("STANDIN_NCCL_HOST_CALLBACK", "2", 1);
  setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", "2", 1);
  run(grouped);
}
TEST_F(Nccl, HostCallbackCaptured) {
  setenv("STANDIN_NCCL_HOST_CALLBACK", "1", 1);
  run(captured);
}
TEST_F(Nccl, NonBlocking) {
  run(
      [](Rank& r) {
        for (const std::size_t count : {10000u, 500u}) {
          const CUdeviceptr p = r.input(count);
          const ncclResult_t result = r.in_place(p, count);
          ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress);
          r.wait();
        }
      },
      false);
}
TEST_F(Nccl, LaunchBlockingIsMissedAndSaysSo) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  run([](Rank& r) {
    plain(r);
    for (auto& [op, expected] : r.expected) expected.missed = Missed::launch_blocking;
  });
}
TEST_F(Nccl, CapturedUnderLaunchBlockingIsMeasured) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  run(captured);
}

TEST_F(Nccl, ResultsAreBitwiseThoseWithoutThePlugin) {
  const auto result = [&](const char* plugin) {
    setenv("NCCL_PROFILER_PLUGIN", plugin, 1);
    std::vector<std::vector<float>> out(kRanks);
    run_ranks([&](Rank& r) {
      const CUdeviceptr p = r.input(30000);
      NCCL_OK(r.in_place(p, 30000));
      CUDA_OK(cuStreamSynchronize(r.stream));
      auto& mine = out[static_cast<std::size_t>(r.rank)];
      mine.resize(30000);
      CUDA_OK(cuMemcpyDtoH(mine.data(), p, 30000 * sizeof(float)));
    });
    return out;
  };
  const auto with = result(GRADPROBE_PLUGIN_FILE);
  EXPECT_EQ(folder_.files().size(), static_cast<std::size_t>(kRanks));
  const auto without = result("none");
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace gradprobe::test
