// Where data goes: every collective and send/receive, small and larger than the exchange buffers.
#include <numeric>

#include "ranks.h"

namespace {

constexpr int kRanks = 3;
constexpr float kGuard = -777;

// A communicator and a stream around `body`.
struct Session {
  Session(int rank, int n, const ncclUniqueId& id) { EXPECT_NCCL(ncclCommInitRank(&comm, n, id, rank)); }
  ~Session() { EXPECT_NCCL(ncclCommDestroy(comm)); }
  ncclComm_t comm = nullptr;
  ranks::StreamHandle stream;
};

// Distinct for each rank and element.
float value(int rank, size_t i) {
  return static_cast<float>(rank * 1000) + static_cast<float>(i % 997);
}
std::vector<float> values(int rank, size_t n, size_t from = 0) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = value(rank, from + i);
  return v;
}
// The buffer's first elements, and that those behind were left alone.
std::vector<float> guarded(const ranks::Buffer<float>& b, size_t n) {
  auto all = b.get();
  for (size_t i = n; i < all.size(); i++) EXPECT_EQ(all[i], kGuard) << "wrote behind the end, element " << i;
  all.resize(n);
  return all;
}
ranks::Buffer<float> buffer(size_t n) {
  return ranks::Buffer<float>(std::vector<float>(n + 8, kGuard));
}

class Sizes : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, Sizes, testing::Values(1, 2, 15, 1000, 300'001), testing::PrintToStringParamName());

TEST_P(Sizes, AllReduce) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam();
    ranks::Buffer<float> in(values(rank, count));
    auto out = buffer(count);
    ASSERT_NCCL(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, s.comm, s.stream));
    s.stream.synchronize();
    auto found = guarded(out, count);
    for (size_t i = 0; i < count; i++) ASSERT_EQ(found[i], value(0, i) + value(1, i) + value(2, i)) << i;
  });
}

TEST_P(Sizes, ReduceScatter) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam(), first = count * static_cast<size_t>(rank);
    for (bool in_place : {false, true}) {
      ranks::Buffer<float> in(values(rank, count * kRanks));
      auto out = buffer(count);
      float* to = in_place ? in.data() + first : out.data();
      ASSERT_NCCL(ncclReduceScatter(in.data(), to, count, ncclFloat, ncclSum, s.comm, s.stream));
      s.stream.synchronize();
      auto all = in_place ? in.get() : guarded(out, count);
      if (in_place) {
        for (size_t i = 0; i < all.size(); i++) {
          if (i < first || i >= first + count) {
            ASSERT_EQ(all[i], value(rank, i)) << "input changed, element " << i;
          }
        }
        all =
            std::vector<float>(all.begin() + static_cast<long>(first), all.begin() + static_cast<long>(first + count));
      }
      for (size_t i = 0; i < count; i++)
        ASSERT_EQ(all[i], value(0, first + i) + value(1, first + i) + value(2, first + i)) << i;
    }
  });
}

TEST_P(Sizes, AllGather) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam();
    for (bool in_place : {false, true}) {
      ranks::Buffer<float> in(values(rank, count));
      auto out = buffer(count * kRanks);
      float* from = in.data();
      if (in_place) {
        from = out.data() + count * static_cast<size_t>(rank);
        ASSERT_CU(
            cuMemcpyDtoD(reinterpret_cast<CUdeviceptr>(from), reinterpret_cast<CUdeviceptr>(in.data()), count * 4));
      }
      ASSERT_NCCL(ncclAllGather(from, out.data(), count, ncclFloat, s.comm, s.stream));
      s.stream.synchronize();
      auto found = guarded(out, count * kRanks);
      for (int r = 0; r < n; r++)
        for (size_t i = 0; i < count; i++)
          ASSERT_EQ(found[count * static_cast<size_t>(r) + i], value(r, i)) << r << " " << i;
    }
  });
}

TEST_P(Sizes, BroadcastFromEachRoot) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam();
    for (int root = 0; root < n; root++) {
      ranks::Buffer<float> in(values(rank, count));
      auto out = buffer(count);
      ASSERT_NCCL(ncclBroadcast(in.data(), out.data(), count, ncclFloat, root, s.comm, s.stream));
      ASSERT_NCCL(ncclBcast(in.data(), count, ncclFloat, root, s.comm, s.stream));
      s.stream.synchronize();
      EXPECT_EQ(guarded(out, count), values(root, count));
      EXPECT_EQ(in.get(), values(root, count));
    }
  });
}

TEST_P(Sizes, ReduceToEachRoot) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam();
    for (int root = 0; root < n; root++) {
      ranks::Buffer<float> in(values(rank, count));
      auto out = buffer(count);
      ASSERT_NCCL(ncclReduce(in.data(), out.data(), count, ncclFloat, ncclMax, root, s.comm, s.stream));
      s.stream.synchronize();
      EXPECT_EQ(in.get(), values(rank, count));
      if (rank == root)
        EXPECT_EQ(guarded(out, count), values(n - 1, count));
      else
        EXPECT_EQ(out.get(), std::vector<float>(count + 8, kGuard)) << "only the root receives";
    }
  });
}

TEST_P(Sizes, RingOfSendsAndReceives) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    size_t count = GetParam();
    int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    ranks::Buffer<float> in(values(rank, count));
    auto out = buffer(count);
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclSend(in.data(), count, ncclFloat, next, s.comm, s.stream));
    ASSERT_NCCL(ncclRecv(out.data(), count, ncclFloat, previous, s.comm, s.stream));
    ASSERT_NCCL(ncclGroupEnd());
    s.stream.synchronize();
    EXPECT_EQ(guarded(out, count), values(previous, count));
  });
}

TEST(PointToPoint, AllToAllWithSelf) {
  ranks::run(4, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    const size_t count = 70'000;
    size_t ranks = static_cast<size_t>(n);
    ranks::Buffer<float> in(values(rank, count * ranks)), out(count * ranks);
    ASSERT_NCCL(ncclGroupStart());
    for (int peer = 0; peer < n; peer++) {
      size_t at = count * static_cast<size_t>(peer);
      ASSERT_NCCL(ncclRecv(out.data() + at, count, ncclFloat, peer, s.comm, s.stream));
      ASSERT_NCCL(ncclSend(in.data() + at, count, ncclFloat, peer, s.comm, s.stream));
    }
    ASSERT_NCCL(ncclGroupEnd());
    s.stream.synchronize();
    auto found = out.get();
    for (int peer = 0; peer < n; peer++)
      for (size_t i = 0; i < count; i++)
        ASSERT_EQ(found[count * static_cast<size_t>(peer) + i], value(peer, count * static_cast<size_t>(rank) + i))
            << peer;
  });
}

TEST(PointToPoint, MessagesOfAPairKeepTheirOrder) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    const size_t sizes[] = {5, 200'000, 1, 3000};
    std::vector<std::unique_ptr<ranks::Buffer<float>>> buffers;
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
      buffers.push_back(
          std::make_unique<ranks::Buffer<float>>(rank ? std::vector<float>(sizes[i]) : values(i, sizes[i])));
      if (rank == 0) {
        ASSERT_NCCL(ncclSend(buffers.back()->data(), sizes[i], ncclFloat, 1, s.comm, s.stream));
      }
      if (rank == 1) {
        ASSERT_NCCL(ncclRecv(buffers.back()->data(), sizes[i], ncclFloat, 0, s.comm, s.stream));
      }
    }
    ASSERT_NCCL(ncclGroupEnd());
    s.stream.synchronize();
    for (int i = 0; i < 4; i++) EXPECT_EQ(buffers[static_cast<size_t>(i)]->get(), values(i, sizes[i])) << i;
  });
}

TEST(PointToPoint, OutsideAGroup) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::Buffer<float> data(values(rank, 100));
    for (int i = 0; i < 20; i++) {
      ASSERT_NCCL((i + rank) % 2 ? ncclSend(data.data(), 100, ncclFloat, 1 - rank, s.comm, s.stream)
                                 : ncclRecv(data.data(), 100, ncclFloat, 1 - rank, s.comm, s.stream));
    }
    s.stream.synchronize();
    EXPECT_EQ(data.get(), values(1, 100));
  });
}

TEST(Groups, MixedCallsOfDifferentSizesAndTypes) {
  ranks::run(kRanks, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::Buffer<float> a(values(rank, 10)), b(values(rank, 200'000)), c(values(rank, 3000));
    ranks::Buffer<int32_t> d(std::vector<int32_t>(50, rank + 1));
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclAllReduce(b.data(), b.data(), b.size(), ncclFloat, ncclMax, s.comm, s.stream));
    ASSERT_NCCL(ncclAllReduce(d.data(), d.data(), d.size(), ncclInt32, ncclProd, s.comm, s.stream));
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclBroadcast(c.data(), c.data(), c.size(), ncclFloat, 1, s.comm, s.stream));
    ASSERT_NCCL(ncclGroupEnd());
    ASSERT_NCCL(ncclAllReduce(a.data(), a.data(), a.size(), ncclFloat, ncclMin, s.comm, s.stream));
    ASSERT_NCCL(ncclGroupEnd());
    s.stream.synchronize();
    EXPECT_EQ(a.get(), values(0, 10));
    EXPECT_EQ(b.get(), values(n - 1, 200'000));
    EXPECT_EQ(c.get(), values(1, 3000));
    EXPECT_EQ(d.get(), std::vector<int32_t>(50, 6));
  });
}

// A communicator's work on two streams is done one after the other, in the order of the calls.
TEST(Groups, StreamsOfOneCommunicatorTakeTurns) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::StreamHandle other;
    ranks::Buffer<float> data(std::vector<float>(1000, 1));
    for (int i = 0; i < 20; i++)
      ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, i % 3 ? ncclAvg : ncclSum, s.comm,
                                i % 2 ? static_cast<CUstream>(other) : static_cast<CUstream>(s.stream)));
    s.stream.synchronize();
    other.synchronize();
    EXPECT_EQ(data.get(), std::vector<float>(1000, 128));  // seven sums double
  });
}

// Work on both of a group's streams before the group is waited for, and work after it waits.
TEST(Groups, TwoStreamsInOneGroup) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::StreamHandle other;
    const size_t count = 100'000;
    ranks::Buffer<float> a(count), b(count), copy(count);
    for (float v : {1.f, 2.f, 3.f}) {
      unsigned bits;
      memcpy(&bits, &v, 4);
      ASSERT_CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(a.data()), bits, count, s.stream));
      ASSERT_CU(cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(b.data()), bits, count, other));
      ASSERT_NCCL(ncclGroupStart());
      ASSERT_NCCL(ncclAllReduce(a.data(), a.data(), count, ncclFloat, ncclSum, s.comm, s.stream));
      ASSERT_NCCL(ncclAllReduce(b.data(), b.data(), count, ncclFloat, ncclSum, s.comm, other));
      ASSERT_NCCL(ncclGroupEnd());
      ASSERT_CU(cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(copy.data()), reinterpret_cast<CUdeviceptr>(b.data()),
                                  count * 4, s.stream));
      s.stream.synchronize();
      other.synchronize();
      EXPECT_EQ(a.get(), std::vector<float>(count, 2 * v));
      EXPECT_EQ(copy.get(), std::vector<float>(count, 2 * v));
    }
  });
}

TEST(Groups, FailedCallMeansNoLaunch) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::Buffer<float> data(values(rank, 100));
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 100, ncclFloat, ncclSum, s.comm, s.stream));
    EXPECT_EQ(ncclBroadcast(data.data(), data.data(), 100, ncclFloat, 2, s.comm, s.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    s.stream.synchronize();
    EXPECT_EQ(data.get(), values(rank, 100));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 100, ncclFloat, ncclSum, s.comm, s.stream));
    ASSERT_NCCL(ncclGroupSimulateEnd(&info));
    EXPECT_GE(info.estimatedTime, 0);
    s.stream.synchronize();
    EXPECT_EQ(data.get(), values(rank, 100));
  });
}

TEST(Graphs, ReplaysReduceAgain) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::Buffer<float> data(std::vector<float>(50'000, 1));
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuStreamBeginCapture(s.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, s.comm, s.stream));
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclAvg, s.comm, s.stream));
    ASSERT_CU(cuStreamEndCapture(s.stream, &graph));
    EXPECT_EQ(data.get(), std::vector<float>(50'000, 1));
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ranks::StreamHandle other;
    for (int i = 0; i < 4; i++) {
      ASSERT_CU(cuGraphLaunch(exec, s.stream));
      // Waits for the replay although it is on another stream.
      ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, s.comm, other));
      other.synchronize();
    }
    s.stream.synchronize();
    EXPECT_EQ(data.get(), std::vector<float>(50'000, 256));
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuGraphDestroy(graph));
  });
}

TEST(Faults, OnePlantedBit) {
  ranks::run(
      2,
      [](int rank, int n, const ncclUniqueId& id) {
        Session s(rank, n, id);
        for (int op = 0; op < 3; op++) {
          ranks::Buffer<float> x(std::vector<float>(10, 1.0f));
          ASSERT_NCCL(ncclAllReduce(x.data(), x.data(), 10, ncclFloat, ncclSum, s.comm, s.stream));
          s.stream.synchronize();
          std::vector<float> want(10, 2.0f);
          if (rank == 1 && op == 2) want[7] = 3.0f;  // 2 and 3 differ in the highest bit of the fraction
          EXPECT_EQ(x.get(), want) << rank << " " << op;
        }
      },
      [](int) { setenv("STANDIN_NCCL_FLIP", "1:2:7:22", 1); });
}

TEST(OneRank, Copies) {
  ranks::run(1, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    ranks::Buffer<float> in(values(0, 100)), out(100), gathered(100);
    ASSERT_NCCL(ncclAllReduce(in.data(), out.data(), 100, ncclFloat, ncclAvg, s.comm, s.stream));
    ASSERT_NCCL(ncclAllGather(in.data(), gathered.data(), 100, ncclFloat, s.comm, s.stream));
    s.stream.synchronize();
    EXPECT_EQ(out.get(), values(0, 100));
    EXPECT_EQ(gathered.get(), values(0, 100));
  });
}

TEST(Arguments, EmptyCallsAreDone) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    Session s(rank, n, id);
    EXPECT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, s.comm, s.stream));
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclNumTypes, ncclSum, s.comm, s.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclNumOps, s.comm, s.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, nullptr, s.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, -1, s.comm, s.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(nullptr, 1, ncclFloat, n, s.comm, s.stream), ncclInvalidArgument);
  });
}

TEST(Arguments, RanksThatDisagreeAreTold) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(values(rank, 100));
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), rank ? 99 : 100, ncclFloat, ncclSum, comm, stream));
    stream.synchronize();
    ncclResult_t r = ncclSuccess;
    ASSERT_NCCL(ncclCommGetAsyncError(comm, &r));
    EXPECT_EQ(r, ncclInvalidUsage);
    ASSERT_NCCL(ncclCommAbort(comm));
  });
}

}  // namespace
