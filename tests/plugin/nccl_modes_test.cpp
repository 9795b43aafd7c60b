// The plugin inside NCCL (the stand-in): groups of all kinds, several communicators, split, shrunk, non-blocking and
// aborted ones, and collectives of which NCCL tells less.
#include <array>
#include <chrono>
#include <thread>

#include "nccl_fixture.hpp"

namespace gradprobe::test {
namespace {

struct Setting {
  const char* name;
  const char* version;
  const char* callbacks;
  const char* collectives_per_launch;
};
// Whatever is called must be measured in every way in which NCCL may tell of it.
constexpr Setting kSettings[] = {{"v5", "2.28.9", "0", "0"},
                                 {"v6", "2.30.7", "0", "0"},
                                 {"v6_one", "2.30.7", "0", "1"},
                                 {"v6_callbacks", "2.30.7", "2", "0"},
                                 {"v5_callbacks_one", "2.28.9", "2", "1"},
                                 {"v6_callbacks_two", "2.30.7", "2", "2"}};

class EverySetting : public Nccl, public ::testing::WithParamInterface<Setting> {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    setenv("STANDIN_NCCL_VERSION", GetParam().version, 1);
    setenv("STANDIN_NCCL_HOST_CALLBACK", GetParam().callbacks, 1);
    setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", GetParam().collectives_per_launch, 1);
  }
  bool v6() const { return std::string_view(GetParam().version) == "2.30.7"; }
};
INSTANTIATE_TEST_SUITE_P(Nccl, EverySetting, ::testing::ValuesIn(kSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

// Measured and unmeasured collectives, sends and receives, several streams, nested groups, in one group and alone.
TEST_P(EverySetting, MixedGroups) {
  run([](Rank& r) {
    const CUdeviceptr gathered = Rank::buffer(5000 * 4 * 3), sent = Rank::buffer(4000), received = Rank::buffer(4000);
    const auto exchange = [&](std::size_t count) {
      NCCL_OK(ncclSend(Rank::ptr(sent), count, ncclFloat32, (r.rank + 1) % r.ranks, r.comm, r.stream));
      NCCL_OK(ncclRecv(Rank::ptr(received), count, ncclFloat32, (r.rank + 2) % r.ranks, r.comm, r.stream));
    };
    for (int round = 0; round < 3; round++) {
      const CUdeviceptr a = r.input(4000);
      r.unrecorded();
      const CUdeviceptr b = r.input(70'000);
      const CUdeviceptr integers = r.input(500, ncclInt64);
      r.last().missed = Missed::unsupported_datatype;
      const CUdeviceptr c = r.input(900, ncclBfloat16);
      NCCL_OK(ncclGroupStart());
      NCCL_OK(r.in_place(a, 4000));
      NCCL_OK(ncclAllGather(Rank::ptr(gathered), Rank::ptr(gathered), 5000, ncclFloat32, r.comm, r.other_stream));
      NCCL_OK(ncclGroupStart());
      NCCL_OK(ncclAllReduce(Rank::ptr(b), Rank::ptr(b), 70'000, ncclFloat32, ncclSum, r.comm, r.other_stream));
      if (round != 1) exchange(1000);
      NCCL_OK(ncclGroupEnd());
      NCCL_OK(r.in_place(integers, 500, ncclInt64));
      NCCL_OK(r.in_place(c, 900, ncclBfloat16));
      NCCL_OK(ncclGroupEnd());
      NCCL_OK(ncclGroupStart());
      exchange(800);
      NCCL_OK(ncclGroupEnd());
      const CUdeviceptr alone = r.input(3000);
      NCCL_OK(r.in_place(alone, 3000));
      r.unrecorded();
      NCCL_OK(ncclBroadcast(Rank::ptr(gathered), Rank::ptr(gathered), 5000, ncclFloat32, 1, r.comm, r.stream));
    }
  });
}

// Inputs on the ranks where NCCL reads them.
TEST_P(EverySetting, ReduceScatterReduceAndTinyOnes) {
  const bool broadcasts_are_silent = v6();
  run([&](Rank& r) {
    const std::size_t all = 2000 * static_cast<std::size_t>(r.ranks);
    const CUdeviceptr scatter = r.input(all), shard = Rank::buffer(2000 * 4);
    NCCL_OK(ncclReduceScatter(Rank::ptr(scatter), Rank::ptr(shard), 2000, ncclFloat32, ncclAvg, r.comm, r.stream));
    const CUdeviceptr reduced = r.input(5000), result = Rank::buffer(5000 * 4);
    NCCL_OK(ncclReduce(Rank::ptr(reduced), Rank::ptr(result), 5000, ncclFloat32, ncclSum, 1, r.comm, r.stream));
    const CUdeviceptr loss = r.input(2), losses = Rank::buffer(2 * 4 * static_cast<std::size_t>(r.ranks));
    NCCL_OK(ncclAllGather(Rank::ptr(loss), Rank::ptr(losses), 2, ncclFloat32, r.comm, r.stream));
    // A broadcast has an input on its root only, and from 2.29 on no events.
    const CUdeviceptr flags = r.input(4);
    if (broadcasts_are_silent || r.rank != 2) r.expected.erase(r.calls - 1);
    NCCL_OK(ncclBroadcast(Rank::ptr(flags), Rank::ptr(flags), 4, ncclFloat32, 2, r.comm, r.stream));
    const CUdeviceptr last = r.input(1000);
    NCCL_OK(r.in_place(last, 1000));
  });
}

// Three communicators of every rank, alone and in one group, each with collectives of its own.
TEST_P(EverySetting, SeveralCommunicators) {
  std::array<ncclUniqueId, 2> ids;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  for (ncclUniqueId& id : ids) NCCL_OK(ncclGetUniqueId(&id));
  run([&](Rank& first) {
    std::array<Rank, 2> others;
    for (std::size_t i = 0; i < 2; i++) {
      others[i] = first;
      others[i].name = i == 0 ? "second" : "third";
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.commName = others[i].name.c_str();
      NCCL_OK(ncclCommInitRankConfig(&others[i].comm, first.ranks, ids[i], first.rank, &config));
    }
    for (std::size_t round = 0; round < 4; round++) {
      const bool grouped = round % 2 == 1;
      if (grouped) NCCL_OK(ncclGroupStart());
      for (Rank* r : {&first, &others[0], &others[1], &first}) {
        const std::size_t count = 1000 + 3000 * round;
        NCCL_OK(r->in_place(r->input(count), count));
      }
      if (grouped) NCCL_OK(ncclGroupEnd());
    }
    first.synchronize();
    for (Rank& r : others) {
      NCCL_OK(ncclCommDestroy(r.comm));
      expect_also(r);
    }
  });
}

// All ranks of one process on one thread, each call of each rank in one group.
TEST_P(EverySetting, InitAll) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  constexpr int kDevices = 3;
  std::array<ncclComm_t, kDevices> comms{};
  NCCL_OK(ncclCommInitAll(comms.data(), kDevices, nullptr));
  std::vector<Rank> ranks(kDevices);
  for (int i = 0; i < kDevices; i++) {
    Rank& r = ranks[static_cast<std::size_t>(i)];
    r.rank = i;
    r.ranks = kDevices;
    r.comm = comms[static_cast<std::size_t>(i)];
    r.random.seed(static_cast<unsigned>(i));
    CUdevice device = 0;
    CUDA_OK(cuDeviceGet(&device, i));
    CUDA_OK(cuDevicePrimaryCtxRetain(&r.context, device));
    CUDA_OK(cuCtxSetCurrent(r.context));
    CUDA_OK(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(cuStreamCreate(&r.other_stream, CU_STREAM_NON_BLOCKING));
  }
  for (std::size_t round = 0; round < 4; round++) {
    NCCL_OK(ncclGroupStart());
    for (Rank& r : ranks) {
      CUDA_OK(cuCtxSetCurrent(r.context));
      for (const std::size_t count : {1000 * (round + 1), std::size_t{20'000}})
        NCCL_OK(r.in_place(r.input(count), count));
    }
    NCCL_OK(ncclGroupEnd());
  }
  for (Rank& r : ranks) r.synchronize();
  for (Rank& r : ranks) NCCL_OK(ncclCommDestroy(r.comm));
  check(ranks);
}

// Ranks 0 and 1 as a communicator of their own, used in turn with the whole.
void on_a_part(Rank& whole, const std::string& name,
               const std::function<ncclResult_t(ncclComm_t*, ncclConfig_t*)>& make,
               const std::function<void(Rank)>& done) {
  Rank part = whole;
  part.name = name;
  part.calls = 0;
  part.expected.clear();
  part.comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = part.name.c_str();
  NCCL_OK(make(&part.comm, &config));
  if (part.comm == nullptr) return;
  NCCL_OK(ncclCommCount(part.comm, &part.ranks));
  NCCL_OK(ncclCommUserRank(part.comm, &part.rank));
  for (std::size_t i = 0; i < 4; i++) NCCL_OK(part.in_place(part.input(2000 + i), 2000 + i));
  done(part);
}

TEST_P(EverySetting, SplitAndShrunk) {
  run([&](Rank& r) {
    const auto step = [&] { NCCL_OK(r.in_place(r.input(5000), 5000)); };
    std::vector<Rank> parts;
    const auto done = [&](Rank part) { parts.push_back(std::move(part)); };
    step();
    on_a_part(
        r, "split",
        [&](ncclComm_t* part, ncclConfig_t* config) {
          return ncclCommSplit(r.comm, r.rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, -r.rank, part, config);
        },
        done);
    step();
    if (r.rank != 1)
      on_a_part(
          r, "shrunk",
          [&](ncclComm_t* part, ncclConfig_t* config) {
            int excluded = 1;
            return ncclCommShrink(r.comm, &excluded, 1, part, config, NCCL_SHRINK_DEFAULT);
          },
          done);
    r.synchronize();
    for (Rank& part : parts) {
      NCCL_OK(ncclCommDestroy(part.comm));
      expect_also(part);
    }
  });
}

TEST_P(EverySetting, NonBlockingGroups) {
  run(
      [](Rank& r) {
        for (std::size_t round = 0; round < 3; round++) {
          const std::array<std::size_t, 3> counts = {500, 30'000, 4000 + round};
          std::array<CUdeviceptr, 3> p{};
          for (std::size_t i = 0; i < 3; i++) p[i] = r.input(counts[i]);
          ASSERT_EQ(ncclGroupStart(), ncclSuccess);
          for (std::size_t i = 0; i < 3; i++) r.in_place(p[i], counts[i]);
          ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
          r.wait();
        }
      },
      false);
}

// The communicator goes while the device is still at work for it.
TEST_P(EverySetting, DestroyedWithResultsInFlight) {
  setenv("GRADPROBE_RESULT", "1", 1);
  run([](Rank& r) {
    for (std::size_t i = 0; i < 5; i++) NCCL_OK(r.in_place(r.input(100'000), 100'000));
    NCCL_OK(ncclCommDestroy(r.comm));
    r.comm = nullptr;
    r.synchronize();
  });
}

// A rank that fails to take part: the others abort, and go on with a communicator of their own.
class Aborted : public Nccl, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(AbortAndShrink, Aborted, ::testing::Values(0, 1),
                         [](const auto& end) { return std::string(end.param == 1 ? "Shrink" : "AbortOnly"); });

TEST_P(Aborted, CollectivesAreMeasuredOrMissedAndLifeGoesOn) {
  const bool shrink = GetParam() == 1;
  run([&](Rank& r) {
    NCCL_OK(r.in_place(r.input(5000), 5000));
    r.synchronize();
    if (r.rank == 1) {
      NCCL_OK(ncclCommAbort(r.comm));
      r.comm = nullptr;
      return;
    }
    // Its input is complete, whatever becomes of it.
    const CUdeviceptr p = r.input(4000);
    const ncclResult_t launched = r.in_place(p, 4000);
    ASSERT_TRUE(launched == ncclSuccess || launched == ncclRemoteError);
    if (launched != ncclSuccess) r.expected.erase(r.calls - 1);
    if (shrink) {
      on_a_part(
          r, "survivors",
          [&](ncclComm_t* part, ncclConfig_t* config) {
            int excluded = 1;
            return ncclCommShrink(r.comm, &excluded, 1, part, config, NCCL_SHRINK_ABORT);
          },
          [&](Rank part) {
            part.synchronize();
            NCCL_OK(ncclCommDestroy(part.comm));
            expect_also(std::move(part));
          });
    }
    NCCL_OK(ncclCommAbort(r.comm));
    r.comm = nullptr;
    r.synchronize();
  });
}

// Symmetric kernels are seen by no event but the call; in a group they go first, and the others are measured.
TEST_P(EverySetting, SymmetricCollectivesAreMissedAndDisturbNobody) {
  setenv("STANDIN_NCCL_SYMMETRIC", "20000", 1);
  setenv("GRADPROBE_GATE_TIMEOUT", "500", 1);
  const bool callbacks = std::string_view(GetParam().callbacks) == "2";
  run([&](Rank& r) {
    for (int round = 0; round < 2; round++) {
      const CUdeviceptr symmetric = r.input(5000);
      // With callbacks the next launch's gate waits for what they may still tell.
      r.last().missed = callbacks ? Missed::timeout : Missed::no_events;
      NCCL_OK(r.in_place(symmetric, 5000));
      // A launch of its own, so that the next one is not one of the same batch.
      r.unrecorded();
      const CUdeviceptr gathered = Rank::buffer(4000 * 3 * 4);
      NCCL_OK(ncclAllGather(Rank::ptr(gathered), Rank::ptr(gathered), 4000, ncclFloat32, r.comm, r.stream));
      const CUdeviceptr p = r.input(3000);
      NCCL_OK(r.in_place(p, 3000));
      if (callbacks) continue;
      const CUdeviceptr a = r.input(2000), b = r.input(6000), c = r.input(2500);
      r.expected[r.calls - 2].missed = Missed::no_events;
      NCCL_OK(ncclGroupStart());
      NCCL_OK(r.in_place(a, 2000));
      NCCL_OK(r.in_place(b, 6000));
      NCCL_OK(r.in_place(c, 2500));
      NCCL_OK(ncclGroupEnd());
    }
  });
}

// Copy engines: told of from 2.29 on, by nothing before.
TEST_P(EverySetting, CopyEngineCollectivesAreMissed) {
  setenv("STANDIN_NCCL_COPY_ENGINE", "1", 1);
  const Missed reason = v6() ? Missed::copy_engine : Missed::no_events;
  if (!v6() && std::string_view(GetParam().callbacks) == "2") GTEST_SKIP() << "a call without any event";
  run([&](Rank& r) {
    for (int round = 0; round < 3; round++) {
      const CUdeviceptr p = r.input(3000), gathered = Rank::buffer(4 * 3 * 4);
      const CUdeviceptr tiny = r.input(4);
      r.last().missed = reason;
      const bool grouped = round == 2;
      if (grouped) NCCL_OK(ncclGroupStart());
      NCCL_OK(r.in_place(p, 3000));
      NCCL_OK(ncclAllGather(Rank::ptr(tiny), Rank::ptr(gathered), 4, ncclFloat32, r.comm, r.stream));
      if (grouped) NCCL_OK(ncclGroupEnd());
    }
    const CUdeviceptr last = r.input(1000);
    NCCL_OK(r.in_place(last, 1000));
  });
}

// A group that fails launches nothing; what NCCL only simulates neither.
TEST_P(EverySetting, FailedAndSimulatedGroups) {
  if (std::string_view(GetParam().callbacks) == "2") GTEST_SKIP() << "calls without any event";
  run([](Rank& r) {
    const CUdeviceptr simulated = r.input(3000);
    r.last().missed = Missed::no_events;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(r.in_place(simulated, 3000));
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    NCCL_OK(ncclGroupSimulateEnd(&info));
    NCCL_OK(r.in_place(r.input(2000), 2000));
    const CUdeviceptr failed = r.input(4000);
    r.last().missed = Missed::no_events;
    NCCL_OK(ncclGroupStart());
    NCCL_OK(r.in_place(failed, 4000));
    EXPECT_NE(ncclReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, r.ranks, r.comm, r.stream), ncclSuccess);
    EXPECT_NE(ncclGroupEnd(), ncclSuccess);
    NCCL_OK(r.in_place(r.input(1000), 1000));
  });
}

}  // namespace
}  // namespace gradprobe::test
