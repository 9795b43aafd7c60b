// The plugin inside NCCL (the stand-in): every mode of calling collectives, and every mode in which NCCL then calls the
// plugin. What each record must say is known from the host: the norm of the input before the reduction.
#include <gtest/gtest.h>
#include <nccl.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

constexpr int kRanks = 3;

#define NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << #call
#define CUDA_OK(call) ASSERT_EQ(call, CUDA_SUCCESS) << #call

// What a rank put into one collective, in the order of its API calls.
struct Expected {
  std::uint64_t count = 0;
  double sum_squares = 0;
  int replays = 1;
};

struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr, other_stream = nullptr;
  std::vector<Expected> expected;
  std::mt19937 random;

  // A device buffer filled with this rank's own values; notes the expectation for a collective over it.
  CUdeviceptr input(std::size_t count, ncclDataType_t type = ncclFloat32) {
    CUdeviceptr p = 0;
    const std::size_t size = type == ncclFloat32 ? 4 : 2;
    EXPECT_EQ(cuMemAlloc(&p, count * size), CUDA_SUCCESS);
    std::normal_distribution<float> normal(0, 0.1f * static_cast<float>(rank + 1));
    std::vector<float> f(count);
    std::vector<std::uint16_t> h(count);
    Expected e{count, 0, 1};
    for (std::size_t i = 0; i < count; i++) {
      f[i] = normal(random);
      if (type == ncclBfloat16) {
        std::uint32_t bits;
        std::memcpy(&bits, &f[i], 4);
        h[i] = static_cast<std::uint16_t>(bits >> 16);
        bits &= 0xffff0000u;
        std::memcpy(&f[i], &bits, 4);
      } else if (type == ncclFloat16) {
        // An exponent of 2^-3 and ten random bits: exact in both formats without a rounding rule of our own.
        const auto mantissa = static_cast<std::uint16_t>(random() & 0x3ffu);
        h[i] = static_cast<std::uint16_t>((12u << 10) | mantissa);
        f[i] = std::ldexp(1.0f + static_cast<float>(mantissa) / 1024.0f, -3);
      }
      e.sum_squares += static_cast<double>(f[i]) * static_cast<double>(f[i]);
    }
    const void* host = type == ncclFloat32 ? static_cast<const void*>(f.data()) : h.data();
    EXPECT_EQ(cuMemcpyHtoD(p, host, count * size), CUDA_SUCCESS);
    expected.push_back(e);
    return p;
  }
  static void* ptr(CUdeviceptr p) { return reinterpret_cast<void*>(p); }
  ncclResult_t in_place(CUdeviceptr p, std::size_t count, ncclDataType_t type = ncclFloat32) {
    return ncclAllReduce(ptr(p), ptr(p), count, type, ncclSum, comm, stream);
  }
};

class Nccl : public ::testing::Test {
 protected:
  // Runs `work` for every rank on a thread of its own and checks each rank's records.
  void run(const std::function<void(Rank&)>& work, bool blocking = true) {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    std::vector<Rank> ranks(kRanks);
    std::vector<std::thread> threads;
    for (int i = 0; i < kRanks; i++) {
      ranks[static_cast<std::size_t>(i)].rank = i;
      ranks[static_cast<std::size_t>(i)].random.seed(static_cast<unsigned>(i));
      threads.emplace_back([&, i] { rank_main(&ranks[static_cast<std::size_t>(i)], id, work, blocking); });
    }
    for (std::thread& t : threads) t.join();
    check(ranks);
  }

  void rank_main(Rank* r, const ncclUniqueId& id, const std::function<void(Rank&)>& work, bool blocking) {
    CUdevice device = 0;
    CUDA_OK(cuDeviceGet(&device, r->rank));
    CUDA_OK(cuDevicePrimaryCtxRetain(&r->context, device));
    CUDA_OK(cuCtxSetCurrent(r->context));
    CUDA_OK(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuStreamCreate(&r->other_stream, CU_STREAM_NON_BLOCKING));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    const ncclResult_t started = ncclCommInitRankConfig(&r->comm, kRanks, id, r->rank, &config);
    ASSERT_TRUE(started == ncclSuccess || started == ncclInProgress);
    wait(r);
    work(*r);
    wait(r);
    CUDA_OK(cuStreamSynchronize(r->stream));
    CUDA_OK(cuStreamSynchronize(r->other_stream));
    if (blocking) {
      NCCL_OK(ncclCommDestroy(r->comm));
    } else {
      ncclCommFinalize(r->comm);
      wait(r);
      NCCL_OK(ncclCommDestroy(r->comm));
    }
  }

  static void wait(Rank* r) {
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      NCCL_OK(ncclCommGetAsyncError(r->comm, &state));
      if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void check(const std::vector<Rank>& ranks) {
    std::vector<std::map<std::uint64_t, std::vector<Record>>> by_op(kRanks);
    for (const std::string& file : folder_.files()) {
      auto opened = RingReader::open(file);
      ASSERT_TRUE(opened.reader) << opened.error;
      RingCursor cursor(*opened.reader);
      for (Record r; cursor.next(r) == Next::record;)
        if (r.has_body()) by_op[opened.reader->header().rank][r.head.op].push_back(r);
    }
    for (const Rank& rank : ranks) {
      const auto& mine = by_op[static_cast<std::size_t>(rank.rank)];
      ASSERT_EQ(mine.size(), rank.expected.size()) << "rank " << rank.rank;
      for (std::size_t op = 0; op < rank.expected.size(); op++) {
        const Expected& e = rank.expected[op];
        const auto& records = mine.at(op);
        ASSERT_EQ(records.size(), static_cast<std::size_t>(e.replays)) << "rank " << rank.rank << " op " << op;
        for (const Record& r : records) {
          EXPECT_EQ(r.head.collective.count, e.count) << "rank " << rank.rank << " op " << op;
          EXPECT_EQ(static_cast<Missed>(r.head.missed), allowed_) << "rank " << rank.rank << " op " << op;
          if (r.head.missed != 0) continue;
          EXPECT_NEAR(r.head.collective.sum_squares / e.sum_squares, 1, 1e-7) << "rank " << rank.rank << " op " << op;
        }
      }
    }
    // The same collective has the same sketch key on all ranks, and no two collectives share one.
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> keys;
    for (const auto& rank : by_op)
      for (const auto& [op, records] : rank)
        for (const Record& r : records)
          if (r.head.missed == 0) {
            const auto inserted = keys.try_emplace(r.head.collective.sketch_key, std::pair{op, r.head.replay});
            EXPECT_EQ(inserted.first->second, (std::pair{op, r.head.replay}));
          }
  }

  void SetUp() override { setenv("NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE, 1); }

  Missed allowed_ = Missed::none;
  RingFolder folder_;
};

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
  const CUdeviceptr scatter = r.input(3000 * kRanks);
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
  r.expected.back().replays = 3;
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
          wait(&r);
        }
      },
      false);
}
TEST_F(Nccl, LaunchBlockingIsMissedAndSaysSo) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  allowed_ = Missed::launch_blocking;
  run(plain);
}
TEST_F(Nccl, CapturedUnderLaunchBlockingIsMeasured) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  run(captured);
}

TEST_F(Nccl, ResultsAreBitwiseThoseWithoutThePlugin) {
  const auto result = [&](const char* plugin) {
    setenv("NCCL_PROFILER_PLUGIN", plugin, 1);
    std::vector<std::vector<float>> out(kRanks);
    std::vector<std::thread> threads;
    ncclUniqueId id;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < kRanks; i++)
      threads.emplace_back([&, i] {
        Rank r;
        r.rank = i;
        r.random.seed(static_cast<unsigned>(i) + 77);
        rank_main(
            &r, id,
            [&](Rank& me) {
              const CUdeviceptr p = me.input(30000);
              NCCL_OK(me.in_place(p, 30000));
              CUDA_OK(cuStreamSynchronize(me.stream));
              out[static_cast<std::size_t>(i)].resize(30000);
              CUDA_OK(cuMemcpyDtoH(out[static_cast<std::size_t>(i)].data(), p, 30000 * sizeof(float)));
            },
            true);
      });
    for (std::thread& t : threads) t.join();
    return out;
  };
  const auto with = result(GRADPROBE_PLUGIN_FILE);
  EXPECT_EQ(folder_.files().size(), static_cast<std::size_t>(kRanks));
  const auto without = result("none");
  EXPECT_EQ(with, without);
}

}  // namespace
}  // namespace gradprobe::test
