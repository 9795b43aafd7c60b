// Results of collectives under the preload library: bit for bit what the host computes, or none.
#include <cstdlib>
#include <cstring>
#include <latch>
#include <mutex>

#include "ranks.hpp"

namespace gradprobe::test {
namespace {

// Sum of the 32-bit words, the definition in docs/FORMAT.md.
std::uint64_t fingerprint(const std::vector<float>& values) {
  std::uint64_t sum = 0;
  for (const float value : values) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    sum += word;
  }
  return sum;
}

// What all ranks put into each all-reduce of one communicator, in the order of the calls.
class Inputs {
 public:
  void add(int rank, const Input& in) {
    const std::lock_guard lock(mutex_);
    of_[rank].push_back(in.host);
  }
  // The stand-in adds in the order of the ranks.
  std::vector<float> reduced(std::size_t op) const {
    std::vector<float> sum = of_.at(0).at(op);
    for (int rank = 1; rank < kRanks; rank++)
      for (std::size_t i = 0; i < sum.size(); i++) sum[i] += of_.at(rank).at(op)[i];
    return sum;
  }
  std::size_t ops() const { return of_.at(0).size(); }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::vector<float>>> of_;
};

class PreloadResults : public testing::Test {
 protected:
  void SetUp() override {
    setenv("STANDIN_NCCL_VERSION", "2.27.7", 1);
    setenv("GRADPROBE_RESULT", "1", 1);
  }

  ncclResult_t all_reduce(Rank& r, const Input& in, CUstream on = nullptr) {
    inputs_.add(r.rank, in);
    return r.all_reduce("dp", in, on);
  }

  void check_results(const std::vector<Rank>& ranks, std::uint32_t replays) {
    check(ranks, folder_);
    const Rings rings = read(folder_);
    for (int rank = 0; rank < kRanks; rank++) {
      const std::vector<Record>& results = rings.only("dp", rank).results;
      EXPECT_EQ(results.size(), inputs_.ops() * replays);
      for (const Record& r : results) {
        EXPECT_EQ(r.head.missed, 0) << "op " << r.head.op;
        EXPECT_EQ(r.head.collective.fingerprint, fingerprint(inputs_.reduced(r.head.op)))
            << "rank " << rank << " op " << r.head.op;
      }
    }
  }

  Inputs inputs_;
  RingFolder folder_;
};

TEST_F(PreloadResults, AreTheReducedValues) {
  check_results(run([this](Rank& r) {
                  r.init("dp");
                  NCCL_OK(all_reduce(r, r.input(10000)));
                  NCCL_OK(all_reduce(r, r.input(3)));
                  for (int round = 0; round < 2; round++) {
                    const Input in[] = {r.input(4000), r.input(3000), r.input(2000)};
                    NCCL_OK(ncclGroupStart());
                    NCCL_OK(all_reduce(r, in[0]));
                    NCCL_OK(ncclGroupStart());
                    NCCL_OK(all_reduce(r, in[1], r.other_stream));
                    NCCL_OK(ncclGroupEnd());
                    NCCL_OK(all_reduce(r, in[2]));
                    NCCL_OK(ncclGroupEnd());
                  }
                  r.destroy("dp");
                }),
                1);
}

// NCCL may launch a group's collectives by several kernels: the result pass is behind all of them.
TEST_F(PreloadResults, AreThoseBehindAllLaunchesOfAGroup) {
  setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", "1", 1);
  check_results(run([this](Rank& r) {
                  r.init("dp");
                  const Input in[] = {r.input(65536), r.input(4096), r.input(16384)};
                  NCCL_OK(ncclGroupStart());
                  for (const Input& i : in) NCCL_OK(all_reduce(r, i));
                  NCCL_OK(ncclGroupEnd());
                  r.destroy("dp");
                }),
                1);
}

TEST_F(PreloadResults, OfReplays) {
  check_results(run([this](Rank& r) {
                  r.init("dp");
                  const Input in[] = {r.input(20000), r.input(5000)};
                  CUgraph graph = nullptr;
                  CUgraphExec exec = nullptr;
                  CUDA_OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
                  for (const Input& i : in) NCCL_OK(all_reduce(r, i));
                  CUDA_OK(cuStreamEndCapture(r.stream, &graph));
                  CUDA_OK(cuGraphInstantiate(&exec, graph, 0));
                  for (Expected& e : r.comms["dp"].expected) e.replays = 3;
                  for (int replay = 0; replay < 3; replay++) {
                    for (const Input& i : in)
                      CUDA_OK(cuMemcpyHtoDAsync(i.address, i.host.data(), 4 * i.count, r.stream));
                    CUDA_OK(cuGraphLaunch(exec, r.stream));
                    CUDA_OK(cuStreamSynchronize(r.stream));
                  }
                  CUDA_OK(cuGraphExecDestroy(exec));
                  CUDA_OK(cuGraphDestroy(graph));
                  r.destroy("dp");
                }),
                3);
}

// Where NCCL launches on a thread of its own, nothing on the stream is known to be behind its kernel.
TEST_F(PreloadResults, NoneOfCommunicatorsThatDontBlock) {
  check(run([](Rank& r) {
          r.init("dp", 0, false);
          for (int i = 0; i < 5; i++) {
            const ncclResult_t result = r.all_reduce("dp", r.input(1000));
            EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress);
            r.wait("dp");
          }
          r.destroy("dp");
        }),
        folder_);
  const Rings rings = read(folder_);
  for (int rank = 0; rank < kRanks; rank++) EXPECT_TRUE(rings.only("dp", rank).results.empty());
}

// An aborted collective leaves half-made values in its output.
TEST_F(PreloadResults, NoneOfAbortedCollectives) {
  std::latch aborted(1);  // rank 0's end would end the others' collectives
  check(run([&aborted](Rank& r) {
          r.init("dp");
          NCCL_OK(r.all_reduce("dp", r.input(1000)));
          r.synchronize();
          if (r.rank != 0) {
            aborted.wait();
            NCCL_OK(ncclCommAbort(r.comms["dp"].comm));
            return;
          }
          EXPECT_EQ(r.all_reduce("dp", r.input(50000)), ncclSuccess);
          EXPECT_EQ(ncclCommAbort(r.comms["dp"].comm), ncclSuccess);
          aborted.count_down();
          r.synchronize();
        }),
        folder_);
  const Rings rings = read(folder_);
  EXPECT_FALSE(rings.only("dp", 0).results.empty());
  for (const Record& r : rings.only("dp", 0).results) {
    if (r.head.op != 1) continue;
    EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::ambiguous);
  }
}

}  // namespace
}  // namespace gradprobe::test
