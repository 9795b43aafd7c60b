// NCCL before 2.28 (profiler structs 1 to 4), which tells nothing before the launch: every collective gets a record
// that says so, in a ring of its communicator, and one line in the log names the way out.
#include <cuda.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kRanks = 2;
constexpr std::size_t kElements = 1 << 17;

#define NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << #call
#define CUDA_OK(call) ASSERT_EQ(call, CUDA_SUCCESS) << #call

struct Rank {
  std::uint32_t rank = 0;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr a = 0, b = 0;

  void all_reduce(std::size_t count, ncclDataType_t type = ncclFloat32) {
    NCCL_OK(ncclAllReduce(reinterpret_cast<void*>(a), reinterpret_cast<void*>(b), count, type, ncclSum, comm, stream));
  }
};

struct Release {
  const char* nccl;
  std::uint32_t abi;
};
void PrintTo(const Release& release, std::ostream* out) {
  *out << release.nccl;
}
constexpr Release kReleases[] = {{"2.23.4", 1}, {"2.24.3", 2}, {"2.25.1", 2}, {"2.26.2", 3}, {"2.27.7", 4}};

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
  return n;
}

class OldNccl : public ::testing::TestWithParam<Release> {
 protected:
  void SetUp() override {
    setenv("NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE, 1);
    setenv("STANDIN_NCCL_VERSION", GetParam().nccl, 1);
    setenv("GRADPROBE_LOG", "stderr", 1);
  }

  // `work` on each rank's thread of one communicator; returns what the plugin said.
  template <typename Work>
  std::string run(const Work& work) {
    ::testing::internal::CaptureStderr();
    train(work);
    std::string said, all = ::testing::internal::GetCapturedStderr();
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
      if (all.compare(at, 11, "gradprobe: ") == 0) said += all.substr(at, end - at);
      at = end;
    }
    return said;
  }

  template <typename Work>
  void train(const Work& work) {
    CUDA_OK(cuInit(0));
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kRanks; i++) threads.emplace_back([&, i] { rank_main(i, id, work); });
    for (std::thread& t : threads) t.join();
  }

  template <typename Work>
  void rank_main(std::uint32_t i, const ncclUniqueId& id, const Work& work) {
    Rank r;
    r.rank = i;
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUDA_OK(cuDeviceGet(&device, static_cast<int>(i)));
    CUDA_OK(cuDevicePrimaryCtxRetain(&context, device));
    CUDA_OK(cuCtxSetCurrent(context));
    CUDA_OK(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuMemAlloc(&r.a, kElements * 8));
    CUDA_OK(cuMemAlloc(&r.b, kElements * 8 * kRanks));
    CUDA_OK(cuMemsetD32(r.a, 0, kElements * 2));
    NCCL_OK(ncclCommInitRank(&r.comm, kRanks, id, static_cast<int>(i)));
    work(r);
    CUDA_OK(cuStreamSynchronize(r.stream));
    NCCL_OK(ncclCommDestroy(r.comm));
  }

  // Each rank's records of one communicator, by the rank in the ring's header.
  std::map<std::uint32_t, std::vector<Record>> rings() const {
    std::map<std::uint32_t, std::vector<Record>> all;
    std::uint64_t id = 0;
    for (const std::string& file : folder_.files()) {
      auto opened = RingReader::open(file);
      EXPECT_TRUE(opened.reader) << opened.error;
      if (!opened.reader) continue;
      const FileHeader& h = opened.reader->header();
      EXPECT_EQ(h.profiler_abi, GetParam().abi);
      EXPECT_EQ(h.nranks, GetParam().abi == 4 ? kRanks : 0);
      if (id == 0) id = h.comm_id;
      EXPECT_EQ(h.comm_id, id);
      EXPECT_NE(h.comm_id, 0u);
      auto& records = all[h.rank];
      RingCursor cursor(*opened.reader);
      for (Record r; cursor.next(r) == Next::record;)
        if (r.has_body()) records.push_back(r);
    }
    return all;
  }

  RingFolder folder_;
};

struct Call {
  Function function;
  Datatype datatype;
  std::uint64_t count;
  Missed missed;
  bool operator==(const Call&) const = default;
};

Call call_of(const Record& r) {
  const CollectiveBody& body = r.head.collective;
  return {static_cast<Function>(body.function), static_cast<Datatype>(body.datatype), body.count,
          static_cast<Missed>(r.head.missed)};
}

TEST_P(OldNccl, EveryCollectiveHasARecordThatSaysWhy) {
  const std::string said = run([](Rank& r) {
    r.all_reduce(10000);
    r.all_reduce(777, ncclBfloat16);
    NCCL_OK(ncclReduceScatter(reinterpret_cast<void*>(r.a), reinterpret_cast<void*>(r.b), 3000, ncclFloat32, ncclSum,
                              r.comm, r.stream));
    r.all_reduce(1);
    r.all_reduce(500, ncclInt64);
    NCCL_OK(ncclAllGather(reinterpret_cast<void*>(r.a), reinterpret_cast<void*>(r.b), 5000, ncclFloat32, r.comm,
                          r.stream));  // not measured by any release: no record
    NCCL_OK(ncclGroupStart());
    for (const std::size_t count : {4096u, 65536u, 16384u}) r.all_reduce(count);
    NCCL_OK(ncclGroupEnd());
  });
  EXPECT_EQ(occurrences(said, "not measured: NCCL < 2.28, use the preload library (libgradprobe-preload.so)"), 1u)
      << said;

  const auto all = rings();
  ASSERT_EQ(all.size(), kRanks);
  constexpr Missed kWhy = Missed::unsupported_nccl;
  // Where NCCL doesn't tell the number of ranks, only one rank's part of a reduce-scatter is known.
  const std::uint64_t scattered = GetParam().abi == 4 ? 3000 * kRanks : 3000;
  const std::vector<Call> expected = {{Function::all_reduce, Datatype::f32, 10000, kWhy},
                                      {Function::all_reduce, Datatype::bf16, 777, kWhy},
                                      {Function::reduce_scatter, Datatype::f32, scattered, kWhy},
                                      {Function::all_reduce, Datatype::f32, 1, kWhy},
                                      {Function::all_reduce, Datatype::i64, 500, Missed::unsupported_datatype}};
  std::vector<std::uint64_t> grouped_of_rank_0;
  for (const auto& [rank, records] : all) {
    ASSERT_EQ(records.size(), expected.size() + 3) << rank;
    for (std::size_t i = 0; i < expected.size(); i++) {
      EXPECT_EQ(records[i].head.op, i);
      EXPECT_EQ(call_of(records[i]), expected[i]) << "rank " << rank << " op " << i;
    }
    // Of a group NCCL tells the collectives in its own order, on all ranks in the same.
    std::vector<std::uint64_t> grouped;
    for (std::size_t i = expected.size(); i < records.size(); i++) {
      EXPECT_EQ(records[i].head.op, i + 1);  // the all-gather has a number, too
      EXPECT_EQ(static_cast<Missed>(records[i].head.missed), kWhy);
      grouped.push_back(records[i].head.collective.count);
    }
    if (rank == 0) grouped_of_rank_0 = grouped;
    EXPECT_EQ(grouped, grouped_of_rank_0);
    std::sort(grouped.begin(), grouped.end());
    EXPECT_EQ(grouped, (std::vector<std::uint64_t>{4096, 16384, 65536}));
  }
}

TEST_P(OldNccl, ReplaysWithAHostCallbackAreNewCollectives) {
  setenv("STANDIN_NCCL_HOST_CALLBACK", "1", 1);
  run([](Rank& r) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUDA_OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    r.all_reduce(2000);
    CUDA_OK(cuStreamEndCapture(r.stream, &graph));
    CUDA_OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) CUDA_OK(cuGraphLaunch(exec, r.stream));
    CUDA_OK(cuStreamSynchronize(r.stream));
    CUDA_OK(cuGraphExecDestroy(exec));
    CUDA_OK(cuGraphDestroy(graph));
  });
  const auto all = rings();
  ASSERT_EQ(all.size(), kRanks);
  for (const auto& [rank, records] : all) {
    ASSERT_EQ(records.size(), 3u) << rank;
    for (std::size_t i = 0; i < 3; i++) {
      EXPECT_EQ(records[i].head.op, i);
      EXPECT_EQ(call_of(records[i]), (Call{Function::all_reduce, Datatype::f32, 2000, Missed::unsupported_nccl}));
    }
  }
}

TEST_P(OldNccl, WithoutCollectivesNothingIsClaimed) {
  run([](Rank&) {});
  const auto all = rings();
  EXPECT_EQ(all.size(), GetParam().abi == 4 ? kRanks : 0u);  // 1 to 3: whose ring it would be is never told
  for (const auto& [rank, records] : all) EXPECT_TRUE(records.empty()) << rank;
}

TEST_P(OldNccl, ARingThatCannotBeMadeIsNamed) {
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "x";
  setenv("GRADPROBE_DIR", (file + "/below").c_str(), 1);
  const std::string said = run([](Rank& r) { r.all_reduce(1000); });
  EXPECT_GE(occurrences(said, file), 1u) << said;
  std::filesystem::remove(file);
  EXPECT_TRUE(folder_.files().empty());
}

TEST_P(OldNccl, SwitchedOffNothingIsAskedFor) {
  setenv("GRADPROBE", "0", 1);
  const std::string said = run([](Rank& r) { r.all_reduce(1000); });
  EXPECT_EQ(said, "");
  EXPECT_TRUE(folder_.files().empty());
}

INSTANTIATE_TEST_SUITE_P(, OldNccl, ::testing::ValuesIn(kReleases), [](const auto& release) {
  std::string name = release.param.nccl;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace gradprobe::test
