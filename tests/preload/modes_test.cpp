// Every way of calling NCCL, as releases from the oldest to the newest that the stand-in knows. What a release doesn't
// have its library doesn't have either: ctest puts it on the library path.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "ranks.hpp"

namespace gradprobe::test {
namespace {

class Preload : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("STANDIN_NCCL_VERSION", GetParam(), 1);
    ASSERT_EQ(nccl_has("ncclCommInitRankConfig"), minor() >= 14) << "another release's library is loaded: use ctest";
    ASSERT_EQ(nccl_has("ncclCommShrink"), minor() >= 23) << "another release's library is loaded: use ctest";
  }
  static int minor() { return std::atoi(GetParam() + 2); }
  RingFolder folder_;
};
class SinceConfigurations : public Preload {};  // 2.14
class Newest : public Preload {};
class Older : public Preload {};  // than 2.22

// In place, out of place, on two streams, several datatypes and functions.
void plain(Rank& r) {
  r.init("dp");
  Comm& c = r.comms["dp"];
  for (const auto& [count, type] : {std::pair<std::size_t, ncclDataType_t>{10000, ncclFloat32}, {40001, ncclBfloat16}})
    NCCL_OK(r.all_reduce("dp", r.input(count, type)));
  const Input in = r.input(5000);
  c.expect(in);
  NCCL_OK(ncclAllReduce(in.pointer(), reinterpret_cast<void*>(Rank::buffer(20000)), 5000, ncclFloat32, ncclAvg, c.comm,
                        r.stream));
  NCCL_OK(r.all_reduce("dp", r.input(6000), r.other_stream));
  const Input scattered = r.input(3000 * kRanks);
  c.expect(scattered);
  NCCL_OK(ncclReduceScatter(scattered.pointer(), reinterpret_cast<void*>(Rank::buffer(12000)), 3000, ncclFloat32,
                            ncclSum, c.comm, r.stream));
  const Input reduced = r.input(7000);
  c.expect(reduced);
  NCCL_OK(ncclReduce(reduced.pointer(), reduced.pointer(), 7000, ncclFloat32, ncclSum, 1, c.comm, r.stream));
  // Large gathers and broadcasts carry no gradients.
  const Input gathered = r.input(1000);
  c.expect_nothing();
  NCCL_OK(ncclAllGather(gathered.pointer(), reinterpret_cast<void*>(Rank::buffer(4000 * kRanks)), 1000, ncclFloat32,
                        c.comm, r.stream));
  c.expect_nothing();
  NCCL_OK(ncclBcast(r.input(1000).pointer(), 1000, ncclFloat32, 0, c.comm, r.stream));
  // Tiny ones may be losses; a broadcast's input is the root's.
  const Input loss = r.input(1);
  c.expect(loss);
  NCCL_OK(ncclAllGather(loss.pointer(), reinterpret_cast<void*>(Rank::buffer(4 * kRanks)), 1, ncclFloat32, c.comm,
                        r.stream));
  const Input told = r.input(2);
  if (r.rank == 2)
    c.expect(told);
  else
    c.expect_nothing();
  NCCL_OK(ncclBcast(told.pointer(), 2, ncclFloat32, 2, c.comm, r.stream));
  // Nothing to do: no collective.
  NCCL_OK(ncclAllReduce(in.pointer(), in.pointer(), 0, ncclFloat32, ncclSum, c.comm, r.stream));
  NCCL_OK(r.all_reduce("dp", r.input(100)));
  r.destroy("dp");
}

TEST_P(Preload, Plain) {
  check(run(plain), folder_);
}

TEST_P(Preload, PlainWhereLaunchesBlock) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  check(run(plain), folder_);
}

// Kernels of which NCCL tells a profiler nothing.
TEST_P(Preload, PlainWithSymmetricMemoryKernels) {
  setenv("STANDIN_NCCL_SYMMETRIC", "1", 1);
  check(run(plain), folder_);
}

TEST_P(Preload, NestedGroups) {
  check(run([](Rank& r) {
          r.init("dp");
          for (int round = 0; round < 3; round++) {
            const Input a = r.input(4096), b = r.input(65536), c = r.input(16384);
            NCCL_OK(ncclGroupStart());
            NCCL_OK(r.all_reduce("dp", a));
            NCCL_OK(ncclGroupStart());
            NCCL_OK(r.all_reduce("dp", b));
            NCCL_OK(ncclGroupEnd());
            NCCL_OK(r.all_reduce("dp", c));
            NCCL_OK(ncclGroupEnd());
          }
          NCCL_OK(ncclGroupStart());
          NCCL_OK(ncclGroupEnd());
          r.destroy("dp");
        }),
        folder_);
}

// One stream fills its buffers late: a pass on the other one would see zeros, whether that comes last or first.
TEST_P(Preload, SeveralStreamsInAGroup) {
  check(run([](Rank& r) {
          r.init("dp");
          CUstream late = r.stream;
          for (const bool late_first : {true, false}) {
            std::vector<Input> in;
            std::vector<CUstream> streams;
            for (int i = 0; i < 4; i++) {
              in.push_back(r.input(1000 * static_cast<std::size_t>(4 - i)));
              streams.push_back((i % 2 == 0) == late_first ? late : r.other_stream);
            }
            for (std::size_t i = 0; i < in.size(); i++) {
              if (streams[i] != late) continue;
              CUDA_OK(cuMemsetD8(in[i].address, 0, 4 * in[i].count));
              CUDA_OK(cuLaunchHostFunc(
                  late, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }, nullptr));
              CUDA_OK(cuMemcpyHtoDAsync(in[i].address, in[i].host.data(), 4 * in[i].count, late));
            }
            NCCL_OK(ncclGroupStart());
            for (std::size_t i = 0; i < in.size(); i++) NCCL_OK(r.all_reduce("dp", in[i], streams[i]));
            NCCL_OK(ncclGroupEnd());
            r.synchronize();
          }
          r.destroy("dp");
        }),
        folder_);
}

TEST_P(Preload, TwoCommunicatorsInAGroup) {
  check(run([](Rank& r) {
          r.init("dp", 0);
          r.init("fsdp", 1);
          const Input in[] = {r.input(4000), r.input(3000), r.input(2000)};
          NCCL_OK(ncclGroupStart());
          NCCL_OK(r.all_reduce("dp", in[0]));
          NCCL_OK(r.all_reduce("fsdp", in[1], r.other_stream));
          NCCL_OK(r.all_reduce("dp", in[2]));
          NCCL_OK(ncclGroupEnd());
          r.destroy("dp");
          r.destroy("fsdp");
        }),
        folder_);
}

TEST_P(Preload, CapturedAndReplayed) {
  check(run([](Rank& r) {
          r.init("dp");
          const Input in[] = {r.input(20000), r.input(5000), r.input(3000)};
          CUgraph graph = nullptr;
          CUgraphExec exec = nullptr;
          CUDA_OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
          NCCL_OK(r.all_reduce("dp", in[0]));
          NCCL_OK(ncclGroupStart());
          NCCL_OK(r.all_reduce("dp", in[1]));
          NCCL_OK(r.all_reduce("dp", in[2]));
          NCCL_OK(ncclGroupEnd());
          CUDA_OK(cuStreamEndCapture(r.stream, &graph));
          CUDA_OK(cuGraphInstantiate(&exec, graph, 0));
          for (Expected& e : r.comms["dp"].expected) e.replays = 3;
          for (int i = 0; i < 3; i++) {
            for (const Input& b : in) CUDA_OK(cuMemcpyHtoDAsync(b.address, b.host.data(), 4 * b.count, r.stream));
            CUDA_OK(cuGraphLaunch(exec, r.stream));
            CUDA_OK(cuStreamSynchronize(r.stream));
          }
          NCCL_OK(r.all_reduce("dp", r.input(700)));
          r.synchronize();
          CUDA_OK(cuGraphExecDestroy(exec));
          CUDA_OK(cuGraphDestroy(graph));
          r.destroy("dp");
        }),
        folder_);
}

TEST_P(SinceConfigurations, CommunicatorsThatDontBlock) {
  check(run([](Rank& r) {
          r.init("dp", 0, false);
          const auto tolerate = [&](ncclResult_t result) {
            ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress) << result;
            r.wait("dp");
          };
          for (const std::size_t count : {10000u, 500u, 1u}) tolerate(r.all_reduce("dp", r.input(count)));
          const Input a = r.input(2000), b = r.input(300);
          NCCL_OK(ncclGroupStart());
          NCCL_OK(r.all_reduce("dp", a));
          NCCL_OK(r.all_reduce("dp", b));
          tolerate(ncclGroupEnd());
          r.synchronize();
          ncclCommFinalize(r.comms["dp"].comm);
          r.wait("dp");
          NCCL_OK(ncclCommDestroy(r.comms["dp"].comm));
        }),
        folder_);
}

// One thread, several devices, communicators without names.
TEST_P(Preload, InitAll) {
  std::vector<Rank> ranks(kRanks);
  std::vector<ncclComm_t> comms(kRanks);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const int devices[] = {2, 0, 1};
  NCCL_OK(ncclCommInitAll(comms.data(), kRanks, devices));
  for (std::size_t i = 0; i < kRanks; i++) {
    ranks[i].rank = static_cast<int>(i);
    ranks[i].comms[""].comm = comms[i];
    ranks[i].comms[""].rank = static_cast<int>(i);
    CUDA_OK(cuDevicePrimaryCtxRetain(&ranks[i].context, devices[i]));
    CUDA_OK(cuCtxSetCurrent(ranks[i].context));
    CUDA_OK(cuStreamCreate(&ranks[i].stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuStreamCreate(&ranks[i].other_stream, CU_STREAM_NON_BLOCKING));
  }
  for (int round = 0; round < 3; round++) {
    std::vector<Input> in;
    for (Rank& r : ranks) {
      CUDA_OK(cuCtxSetCurrent(r.context));
      in.push_back(r.input(3000));
    }
    NCCL_OK(ncclGroupStart());
    for (std::size_t i = 0; i < kRanks; i++) {
      CUDA_OK(cuCtxSetCurrent(ranks[i].context));
      // Of the third round: the null stream, which is that of the communicator's device.
      Comm& c = ranks[i].comms[""];
      c.expect(in[i]);
      NCCL_OK(ncclAllReduce(in[i].pointer(), in[i].pointer(), 3000, ncclFloat32, ncclSum, c.comm,
                            round < 2 ? ranks[i].stream : nullptr));
    }
    CUDA_OK(cuCtxSetCurrent(ranks[0].context));
    NCCL_OK(ncclGroupEnd());
    CUcontext now = nullptr;
    CUDA_OK(cuCtxGetCurrent(&now));
    EXPECT_EQ(now, ranks[0].context);
  }
  for (Rank& r : ranks) {
    CUDA_OK(cuCtxSetCurrent(r.context));
    CUDA_OK(cuCtxSynchronize());
  }
  NCCL_OK(ncclGroupStart());
  for (ncclComm_t c : comms) NCCL_OK(ncclCommDestroy(c));
  NCCL_OK(ncclGroupEnd());
  check(ranks, folder_);
}

// A thread that makes its communicators in a group, into variables that are gone when the group ends (before 2.14: that
// are set then).
TEST_P(Preload, InitInAGroup) {
  std::vector<Rank> ranks(kRanks);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  NCCL_OK(ncclGroupStart());
  for (int i = 0; i < kRanks; i++) {
    Rank& r = ranks[static_cast<std::size_t>(i)];
    r.rank = i;
    CUDA_OK(cuDevicePrimaryCtxRetain(&r.context, i));
    CUDA_OK(cuCtxSetCurrent(r.context));
    CUDA_OK(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
    Comm& c = r.comms[""];
    c.rank = i;
    if (minor() < 14) {
      NCCL_OK(ncclCommInitRank(&c.comm, kRanks, id, i));
      continue;
    }
    auto variable = std::make_unique<ncclComm_t>();
    NCCL_OK(ncclCommInitRank(variable.get(), kRanks, id, i));
    c.comm = *variable;
  }
  NCCL_OK(ncclGroupEnd());
  std::vector<Input> in;
  for (Rank& r : ranks) {
    CUDA_OK(cuCtxSetCurrent(r.context));
    in.push_back(r.input(3000));
  }
  NCCL_OK(ncclGroupStart());
  for (std::size_t i = 0; i < kRanks; i++) NCCL_OK(ranks[i].all_reduce("", in[i]));
  NCCL_OK(ncclGroupEnd());
  for (Rank& r : ranks) CUDA_OK(cuStreamSynchronize(r.stream));
  for (Rank& r : ranks) NCCL_OK(ncclCommDestroy(r.comms[""].comm));
  check(ranks, folder_);
}

TEST_P(SinceConfigurations, SplitCommunicators) {
  check(run([](Rank& r) {
          r.init("all");
          // Ranks 0 and 2 in one, in reverse order; 1 alone; then all but 0.
          for (const auto& [name, color, key] : {std::tuple{r.rank == 1 ? "odd" : "even", r.rank % 2, -r.rank},
                                                 std::tuple{"rest", r.rank == 0 ? NCCL_SPLIT_NOCOLOR : 5, r.rank}}) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.commName = name;
            ncclComm_t made = nullptr;
            NCCL_OK(ncclCommSplit(r.comms["all"].comm, color, key, &made, &config));
            if (made == nullptr) continue;
            Comm& c = r.comms[name];
            c.comm = made;
            NCCL_OK(ncclCommUserRank(made, &c.rank));
          }
          for (auto& [name, comm] : r.comms) NCCL_OK(r.all_reduce(name, r.input(2000)));
          for (auto& [name, comm] : r.comms) r.destroy(name);
        }),
        folder_);
}

TEST_P(Newest, ShrunkCommunicator) {
  check(run([](Rank& r) {
          r.init("all");
          NCCL_OK(r.all_reduce("all", r.input(2000)));
          r.synchronize();
          if (r.rank != 1) {
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.commName = "left";
            Comm& c = r.comms["left"];
            int gone[] = {1};
            NCCL_OK(ncclCommShrink(r.comms["all"].comm, gone, 1, &c.comm, &config, 0));
            NCCL_OK(ncclCommUserRank(c.comm, &c.rank));
            EXPECT_EQ(c.rank, r.rank / 2);
            NCCL_OK(r.all_reduce("left", r.input(3000)));
            r.destroy("left");
          }
          r.destroy("all");
        }),
        folder_);
}

// Calls that NCCL refuses are no measured collectives, whatever their input; those after them are.
TEST_P(Preload, RefusedCalls) {
  check(run([](Rank& r) {
          r.init("dp");
          Comm& c = r.comms["dp"];
          NCCL_OK(r.all_reduce("dp", r.input(1000)));
          const Input in = r.input(2000);
          c.expect(in).missed = Missed::no_events;
          EXPECT_EQ(ncclReduce(in.pointer(), in.pointer(), 2000, ncclFloat32, ncclSum, 17, c.comm, r.stream),
                    ncclInvalidArgument);
          r.synchronize();
          EXPECT_NE(ncclAllReduce(in.pointer(), in.pointer(), 2000, ncclFloat32, ncclSum, nullptr, r.stream),
                    ncclSuccess);
          NCCL_OK(r.all_reduce("dp", r.input(1500)));
          // A group with a refused call launches nothing.
          const Input a = r.input(700), b = r.input(800);
          NCCL_OK(ncclGroupStart());
          NCCL_OK(ncclAllReduce(a.pointer(), a.pointer(), 700, ncclFloat32, ncclSum, c.comm, r.stream));
          EXPECT_EQ(ncclReduce(b.pointer(), b.pointer(), 800, ncclFloat32, ncclSum, -1, c.comm, r.stream),
                    ncclInvalidArgument);
          EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
          // Refused at the end: nobody saw the failing send.
          c.expect(a).missed = Missed::no_events;
          NCCL_OK(ncclGroupStart());
          NCCL_OK(ncclAllReduce(a.pointer(), a.pointer(), 700, ncclFloat32, ncclSum, c.comm, r.stream));
          EXPECT_EQ(ncclSend(b.pointer(), 800, ncclFloat32, 99, c.comm, r.stream), ncclInvalidArgument);
          EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
          EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
          NCCL_OK(r.all_reduce("dp", r.input(900)));
          r.destroy("dp");
        }),
        folder_);
}

TEST_P(Newest, SimulatedGroupsMeasureNothing) {
  check(run([](Rank& r) {
          r.init("dp");
          const Input in = r.input(1000);
          ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
          NCCL_OK(ncclGroupStart());
          NCCL_OK(ncclAllReduce(in.pointer(), in.pointer(), 1000, ncclFloat32, ncclSum, r.comms["dp"].comm, r.stream));
          NCCL_OK(ncclGroupSimulateEnd(&info));
          const Input a = r.input(1500), b = r.input(500);
          NCCL_OK(ncclGroupStart());
          NCCL_OK(r.all_reduce("dp", a));
          NCCL_OK(r.all_reduce("dp", b));
          NCCL_OK(ncclGroupEnd());
          r.destroy("dp");
        }),
        folder_);
}

// Communicators come and go at the same addresses; each has a ring of its own.
TEST_P(Preload, InitDestroyInit) {
  for (int round = 0; round < 4; round++) {
    const RingFolder folder;
    check(run([round](Rank& r) {
            r.init("dp");
            for (int i = 0; i <= round; i++) NCCL_OK(r.all_reduce("dp", r.input(1000)));
            r.destroy("dp");
          }),
          folder);
  }
}

// Several ids, in the same order on all ranks, make one communicator.
TEST_P(Newest, InitWithSeveralIds) {
  check(run([](Rank& r) {
          Comm& c = r.comms["scalable"];
          c.rank = r.rank;
          ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
          config.commName = "scalable";
          NCCL_OK(ncclCommInitRankScalable(&c.comm, kRanks, r.rank, 2, r.ids, &config));
          NCCL_OK(r.all_reduce("scalable", r.input(2000)));
          r.destroy("scalable");
        }),
        folder_);
}

// What was running when a communicator was revoked has no result that counts; its input does.
TEST_P(Newest, RevokedCommunicator) {
  setenv("GRADPROBE_RESULT_EVERY", "1", 1);
  check(run([](Rank& r) {
          r.init("dp");
          NCCL_OK(r.all_reduce("dp", r.input(2000)));
          r.synchronize();
          // One rank never joins, so this one is running for certain.
          if (r.rank != 2) {
            NCCL_OK(r.all_reduce("dp", r.input(3000)));
          }
          NCCL_OK(ncclCommRevoke(r.comms["dp"].comm, NCCL_REVOKE_DEFAULT));
          r.destroy("dp");
        }),
        folder_);
  const Rings rings = read(folder_);
  for (int rank = 0; rank < kRanks; rank++) {
    const std::vector<Record>& results = rings.only("dp", rank).results;
    EXPECT_FALSE(results.empty());
    for (const Record& result : results) EXPECT_TRUE(result.head.op == 0 || result.head.missed != 0) << "rank " << rank;
  }
}

// What this NCCL doesn't have is refused by the preload library as by the linker: with one line, without harm.
TEST_P(Older, MissingFunctions) {
  check(run([](Rank& r) {
          r.init("dp");
          Comm& c = r.comms["dp"];
          ncclComm_t made = nullptr;
          int excluded[] = {1};
          if (minor() < 18) {
            EXPECT_EQ(ncclCommInitRankConfig(&made, kRanks, r.ids[1], r.rank, nullptr), ncclInvalidUsage);
            EXPECT_EQ(ncclCommSplit(c.comm, 0, 0, &made, nullptr), ncclInvalidUsage);
            EXPECT_EQ(ncclCommFinalize(c.comm), ncclInvalidUsage);
          }
          EXPECT_EQ(ncclCommInitRankScalable(&made, kRanks, r.rank, 1, r.ids, nullptr), ncclInvalidUsage);
          EXPECT_EQ(ncclCommShrink(c.comm, excluded, 1, &made, nullptr, 0), ncclInvalidUsage);
          EXPECT_EQ(ncclCommRevoke(c.comm, 0), ncclInvalidUsage);
          EXPECT_EQ(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage);
          EXPECT_EQ(made, nullptr);
          NCCL_OK(r.all_reduce("dp", r.input(1000)));
          r.destroy("dp");
        }),
        folder_);
}

std::string release(const testing::TestParamInfo<const char*>& test) {
  std::string name = std::string("Release") + test.param;
  name.erase(name.rfind('.'));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Nccl, Preload, testing::Values("2.23.4", "2.30.7"), release);
INSTANTIATE_TEST_SUITE_P(Nccl, SinceConfigurations, testing::Values("2.23.4", "2.30.7"), release);
INSTANTIATE_TEST_SUITE_P(Nccl, Newest, testing::Values("2.23.4", "2.30.7"), release);
INSTANTIATE_TEST_SUITE_P(Nccl2_18, Preload, testing::Values("2.18.6"), release);
INSTANTIATE_TEST_SUITE_P(Nccl2_18, SinceConfigurations, testing::Values("2.18.6"), release);
INSTANTIATE_TEST_SUITE_P(Nccl2_18, Older, testing::Values("2.18.6"), release);
INSTANTIATE_TEST_SUITE_P(Nccl2_8, Preload, testing::Values("2.8.4"), release);
INSTANTIATE_TEST_SUITE_P(Nccl2_8, Older, testing::Values("2.8.4"), release);

}  // namespace
}  // namespace gradprobe::test
