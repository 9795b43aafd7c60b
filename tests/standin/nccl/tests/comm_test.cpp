// The life of communicators: ways to make them, what they know, errors, the end.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "ranks.h"

namespace {

std::vector<float> reduced(ncclComm_t comm, CUstream stream, float value) {
  ranks::Buffer<float> data(std::vector<float>(1000, value));
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream));
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  return data.get();
}
std::vector<float> all(float v) {
  return std::vector<float>(1000, v);
}

ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t r = ncclInProgress;
  while (ncclCommGetAsyncError(comm, &r) == ncclSuccess && r == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return r;
}

TEST(Comm, KnowsItsRankSizeAndDevice) {
  ranks::run(3, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    int value = -1;
    ASSERT_NCCL(ncclCommCount(comm, &value));
    EXPECT_EQ(value, 3);
    ASSERT_NCCL(ncclCommUserRank(comm, &value));
    EXPECT_EQ(value, rank);
    ASSERT_NCCL(ncclCommCuDevice(comm, &value));
    EXPECT_EQ(value, rank);
    EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommCount(nullptr, &value), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("ncclCommCount"), std::string::npos);
    ASSERT_NCCL(ncclCommDestroy(comm));
    EXPECT_NCCL(ncclCommDestroy(nullptr));
  });
}

TEST(Comm, BetweenThreads) {
  ranks::run_threads(4, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    for (int i = 0; i < 20; i++) EXPECT_EQ(reduced(comm, stream, static_cast<float>(rank)), all(6));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Comm, InitAllDrivenByOneThread) {
  ranks::run(1, [](int, int, const ncclUniqueId&) {
    ncclComm_t comms[3];
    const int devices[3] = {2, 0, 1};
    ASSERT_NCCL(ncclCommInitAll(comms, 3, devices));
    std::vector<std::unique_ptr<ranks::StreamHandle>> streams;
    std::vector<std::unique_ptr<ranks::Buffer<float>>> data;
    for (int i = 0; i < 3; i++) {
      int device = -1;
      ASSERT_NCCL(ncclCommCuDevice(comms[i], &device));
      EXPECT_EQ(device, devices[i]);
      ranks::use_device(device);
      streams.push_back(std::make_unique<ranks::StreamHandle>());
      data.push_back(std::make_unique<ranks::Buffer<float>>(all(static_cast<float>(i + 1))));
    }
    ASSERT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 3; i++)
      ASSERT_NCCL(ncclAllReduce(data[i]->data(), data[i]->data(), 1000, ncclFloat, ncclSum, comms[i], *streams[i]));
    ASSERT_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < 3; i++) {
      streams[i]->synchronize();
      EXPECT_EQ(data[i]->get(), all(6));
    }
    for (ncclComm_t c : comms) ASSERT_NCCL(ncclCommDestroy(c));
    const int missing[1] = {99};
    EXPECT_EQ(ncclCommInitAll(comms, 1, missing), ncclInvalidArgument);
  });
}

TEST(Comm, SplitByColourAndKey) {
  ranks::run(4, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr, child = nullptr, none = comm;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    // Even and odd ranks, in reverse order.
    ASSERT_NCCL(ncclCommSplit(comm, rank % 2, -rank, &child, nullptr));
    int value = -1;
    ASSERT_NCCL(ncclCommCount(child, &value));
    EXPECT_EQ(value, 2);
    ASSERT_NCCL(ncclCommUserRank(child, &value));
    EXPECT_EQ(value, rank < 2 ? 1 : 0);
    EXPECT_EQ(reduced(child, stream, static_cast<float>(rank)), all(rank % 2 ? 4 : 2));
    EXPECT_EQ(reduced(comm, stream, static_cast<float>(rank)), all(6));
    // Again, without rank 3.
    ASSERT_NCCL(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, nullptr));
    if (rank == 3) {
      EXPECT_EQ(none, nullptr);
    } else {
      EXPECT_EQ(reduced(none, stream, 1), all(3));
      ASSERT_NCCL(ncclCommDestroy(none));
    }
    ASSERT_NCCL(ncclCommDestroy(child));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Comm, ShrunkByTheRanksThatStay) {
  for (const int flags : {NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT}) {
    ranks::run(4, [flags](int rank, int n, const ncclUniqueId& id) {
      ncclComm_t whole = nullptr, part = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&whole, n, id, rank));
      ranks::StreamHandle stream;
      ranks::Buffer<float> x(std::vector<float>(100, static_cast<float>(rank)));
      if (rank != 2) {
        // Without rank 2 this one ends only because it is aborted.
        if (flags == NCCL_SHRINK_ABORT) {
          ASSERT_NCCL(ncclAllReduce(x.data(), x.data(), 100, ncclFloat, ncclSum, whole, stream));
        }
        int wrong = rank;
        EXPECT_EQ(ncclCommShrink(whole, &wrong, 1, &part, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
        int excluded = 2;
        ASSERT_NCCL(ncclCommShrink(whole, &excluded, 1, &part, nullptr, flags));
        int size = 0, mine = -1;
        ASSERT_NCCL(ncclCommCount(part, &size));
        ASSERT_NCCL(ncclCommUserRank(part, &mine));
        EXPECT_EQ(size, 3);
        EXPECT_EQ(mine, rank == 3 ? 2 : rank);
        x.put(std::vector<float>(100, static_cast<float>(rank)));
        ASSERT_NCCL(ncclAllReduce(x.data(), x.data(), 100, ncclFloat, ncclSum, part, stream));
        stream.synchronize();
        EXPECT_EQ(x.get(), std::vector<float>(100, 4.0f));
        ASSERT_NCCL(ncclCommDestroy(part));
      }
      ASSERT_NCCL(ncclCommAbort(whole));
    });
  }
}

TEST(Comm, NonBlocking) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    // Rank 0 comes late: the other's init must have returned before.
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(ncclCommInitRankConfig(&comm, n, id, rank, &config), ncclInProgress);
    if (rank == 1) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
      ncclResult_t r = ncclSuccess;
      ASSERT_NCCL(ncclCommGetAsyncError(comm, &r));
      EXPECT_EQ(r, ncclInProgress);
      int value;
      EXPECT_EQ(ncclCommCount(comm, &value), ncclInvalidArgument) << "not ready yet";
    }
    ASSERT_EQ(settled(comm), ncclSuccess);
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(all(2));
    ncclResult_t r = ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream);
    EXPECT_TRUE(r == ncclInProgress || r == ncclSuccess);
    ASSERT_EQ(settled(comm), ncclSuccess);
    stream.synchronize();
    EXPECT_EQ(data.get(), all(4));
    r = ncclCommFinalize(comm);
    EXPECT_TRUE(r == ncclInProgress || r == ncclSuccess);
    ASSERT_EQ(settled(comm), ncclSuccess);
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Comm, FinalizeWaitsForItsWork) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(all(1));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream));
    ASSERT_NCCL(ncclCommFinalize(comm));
    EXPECT_EQ(std::vector<float>(data.data(), data.data() + data.size()), all(2));
    EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidArgument);
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Comm, AbortEndsWorkThatWaits) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(all(1));
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream));
    stream.synchronize();
    if (rank == 0) {
      // The other rank never joins this one, and aborts.
      ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream));
      stream.synchronize();
      ncclResult_t r = ncclSuccess;
      ASSERT_NCCL(ncclCommGetAsyncError(comm, &r));
      EXPECT_EQ(r, ncclRemoteError);
      EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream), ncclRemoteError);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_NCCL(ncclCommAbort(comm));
  });
}

TEST(Comm, AbortOfARankThatWaitsItself) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(all(1));
    if (rank == 0) {
      ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 1000, ncclFloat, ncclSum, comm, stream));
    }
    ASSERT_NCCL(ncclCommAbort(comm));
    stream.synchronize();
  });
}

TEST(Comm, ImpossibleInitArguments) {
  ranks::run(1, [](int, int, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument);
    ncclConfig_t config = {};
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 2;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_EQ(comm, nullptr);
  });
}

TEST(Comm, RankThatComesNever) {
  ranks::run(
      1,
      [](int, int, const ncclUniqueId& id) {
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclRemoteError);
        EXPECT_EQ(comm, nullptr);
        EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("1 of 2 ranks"), std::string::npos);
      },
      [](int) { setenv("STANDIN_NCCL_JOIN_TIMEOUT", "1", 1); });
}

TEST(Library, VersionFromTheEnvironment) {
  int version = 0;
  ASSERT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, NCCL_VERSION(2, 28, 9));
  for (auto [text, code] : {std::pair("2.8.4", 2804), std::pair("2.9.6", 20906), std::pair("2.23.4", 22304),
                            std::pair("2.27.7", 22707), std::pair("2.30", 23000), std::pair("2.32.3", 23203)}) {
    setenv("STANDIN_NCCL_VERSION", text, 1);
    ASSERT_NCCL(ncclGetVersion(&version));
    EXPECT_EQ(version, code);
  }
  for (const char* wrong : {"2.7.8", "2.100", "3.1", "new", "2.28.9x", "2.28.", "2"}) {
    setenv("STANDIN_NCCL_VERSION", wrong, 1);
    EXPECT_EQ(ncclGetVersion(&version), ncclInvalidArgument) << wrong;
  }
  unsetenv("STANDIN_NCCL_VERSION");
}

TEST(Library, WrongSettingIsNamedOnce) {
  ranks::run(
      1,
      [](int, int, const ncclUniqueId& id) {
        ncclComm_t comm = nullptr;
        testing::internal::CaptureStderr();
        EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument);
        std::string line = testing::internal::GetCapturedStderr();
        EXPECT_NE(line.find("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH='few'"), std::string::npos) << line;
        EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
      },
      [](int) { setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", "few", 1); });
}

TEST(Library, ResultsHaveTexts) {
  std::vector<std::string> texts;
  for (int r = 0; r < ncclNumResults; r++) texts.push_back(ncclGetErrorString(static_cast<ncclResult_t>(r)));
  std::sort(texts.begin(), texts.end());
  EXPECT_EQ(std::unique(texts.begin(), texts.end()), texts.end());
  EXPECT_STREQ(ncclGetErrorString(ncclNumResults), "unknown result code");
}

TEST(Library, UniqueIdsDiffer) {
  ncclUniqueId a, b;
  ASSERT_NCCL(ncclGetUniqueId(&a));
  ASSERT_NCCL(ncclGetUniqueId(&b));
  EXPECT_NE(memcmp(&a, &b, sizeof a), 0);
  EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
}

TEST(Library, MemAlloc) {
  ranks::run(1, [](int, int, const ncclUniqueId&) {
    void* p = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&p, 4096));
    ASSERT_CU(cuMemsetD8(reinterpret_cast<CUdeviceptr>(p), 1, 4096));
    ASSERT_NCCL(ncclMemFree(p));
  });
}

}  // namespace
