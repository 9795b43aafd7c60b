// GRADPROBE_CHAIN by the callbacks themselves: handles, parents, masks, and a chained plugin that fails in every way it
// can. Each test is a process of its own, since a chain is loaded once.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "chained_plugin.hpp"
#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint64_t kGroupType = 1, kCollType = 2, kProxyOpType = 8, kKernelChType = 64, kGroupApiType = 256,
                        kCollApiType = 512, kCeCollType = 4096, kKernelPhaseType = 32768;

class Chain : public ::testing::Test {
 protected:
  explicit Chain(const char* file = CHAINED_PLUGIN_FILE) : file_(file) {}

  void SetUp() override {
    setenv("GRADPROBE_CHAIN", file_, 1);
    cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
    take_log();
  }

  ChainedPlugin& chained() const {
    static void* library = dlopen(file_, RTLD_NOW | RTLD_LOCAL);
    return *reinterpret_cast<GetChainedPlugin>(dlsym(library, "chained_plugin"))();
  }
  std::vector<ChainedCall> calls(ChainedCall::Kind kind, std::uint64_t type = 0) const {
    std::vector<ChainedCall> found;
    for (const ChainedCall& c : chained().calls)
      if (c.kind == kind && (type == 0 || c.type == type)) found.push_back(c);
    return found;
  }
  static std::vector<std::string> warnings() {
    std::vector<std::string> log = take_log();
    std::erase_if(log, [](const std::string& l) { return !l.starts_with("WARN"); });
    return log;
  }

  // `steps` all-reduces, all of which must be measured.
  void expect_measured(FakeComm* comm, std::size_t steps = 3) {
    for (std::size_t i = 0; i < steps; i++) {
      bucket_.refill();
      comm->all_reduce(bucket_, stream_);
      cuStreamSynchronize(stream_);
    }
    comm->finalize();
    const auto records = folder_.collectives();
    ASSERT_EQ(records.size(), steps);
    for (const Record& r : records) {
      EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none);
      EXPECT_NEAR(r.head.collective.sum_squares / bucket_.sum_squares(), 1, 1e-6);
    }
  }

  static void* start(const FakeComm& comm, Descriptor d, int version = 5) {
    void* handle = reinterpret_cast<void*>(0xdeadbeefull);
    EXPECT_EQ(profiler(version).start_event(comm.context(), &handle, &d), 0);
    EXPECT_NE(handle, reinterpret_cast<void*>(0xdeadbeefull));
    return handle;
  }

  const char* const file_;
  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
  Bucket bucket_{3000};
};

using ChainFailure = Chain;

// The same plugin with structs of versions 5 and 7.
class ChainOfVersion7 : public Chain {
 protected:
  ChainOfVersion7() : Chain(CHAINED_PLUGIN_V7_FILE) {}
};

TEST_F(Chain, EventsHaveTheChainedPluginsOwnHandlesAndParents) {
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, bucket_.count(), stream_);
  profiler().record_event_state(api, 23, &bucket_);
  void* launch = comm.launch_start(api, stream_);
  nccl_kernel(bucket_, stream_);
  comm.stop(launch);
  void* group = comm.group_start();
  comm.coll(call, group, bucket_.pointer(), bucket_.pointer(), bucket_.count());
  comm.stop(group);
  comm.stop(api);
  const auto& seen = chained().calls;
  // init; starts and stops in NCCL's order; one state.
  ASSERT_EQ(seen.size(), 12u);
  const auto group_api = calls(ChainedCall::start, kGroupApiType).at(0);
  const auto coll_api = calls(ChainedCall::start, kCollApiType).at(0);
  const auto group_event = calls(ChainedCall::start, kGroupType).at(0);
  const auto coll = calls(ChainedCall::start, kCollType).at(0);
  for (const ChainedCall& c : calls(ChainedCall::start)) EXPECT_EQ(c.subject, seen[0].subject);
  EXPECT_EQ(group_api.parent, nullptr);
  EXPECT_EQ(coll_api.parent, group_api.handle);
  EXPECT_EQ(calls(ChainedCall::start, 2048).at(0).parent, group_api.handle);
  EXPECT_EQ(coll.parent, coll_api.handle);
  EXPECT_EQ(coll.parent_group, group_event.handle);
  EXPECT_EQ(seen[4].kind, ChainedCall::record);
  EXPECT_EQ(seen[4].subject, group_api.handle);
  EXPECT_EQ(seen[4].state, 23);
  EXPECT_EQ(seen[4].arguments, &bucket_);
  EXPECT_EQ(seen[3].kind, ChainedCall::stop);
  EXPECT_EQ(seen[3].subject, coll_api.handle);
  EXPECT_EQ(seen.back().kind, ChainedCall::stop);
  EXPECT_EQ(seen.back().subject, group_api.handle);
  cuStreamSynchronize(stream_);
  comm.finalize();
  EXPECT_EQ(calls(ChainedCall::finalize).at(0).subject, seen[0].subject);
  EXPECT_EQ(folder_.counters().measured, 1u);
}

TEST_F(Chain, MaskIsTheUnionAndEventsGoToWhoAsked) {
  chained().asked = static_cast<int>(kKernelChType);
  FakeComm comm;
  EXPECT_EQ(comm.mask(), 1 | 2 | 64 | 256 | 512 | 2048);
  expect_measured(&comm);
  // What NCCL reports to a plugin that asks for kernel channels alone: their parents, but no launches.
  EXPECT_EQ(calls(ChainedCall::start, kGroupApiType).size(), 3u);
  EXPECT_EQ(calls(ChainedCall::start, kCollType).size(), 3u);
  EXPECT_EQ(calls(ChainedCall::start, 2048).size(), 0u);
}

TEST_F(Chain, AMaskThatChangesLaterIsToldToNccl) {
  chained().asked = 0;
  FakeComm comm;
  EXPECT_EQ(comm.mask() & 32, 0);
  comm.all_reduce(bucket_, stream_);
  EXPECT_EQ(calls(ChainedCall::start).size(), 0u);
  *chained().mask = 32;
  comm.all_reduce(bucket_, stream_);
  EXPECT_EQ(comm.mask() & 32, 32);
  cuStreamSynchronize(stream_);
}

TEST_F(Chain, ParentsLiveOnAfterTheirStop) {
  setenv("GRADPROBE", "0", 1);  // the pairs are the chain's alone
  FakeComm comm;
  // A captured call is named at every replay, a Coll by the proxy's events; both are long stopped by then.
  void* api = comm.group_api_start(true);
  void* captured = comm.coll_api(api, 1000, stream_, "AllReduce", "ncclInt64", true);
  Descriptor d;
  d.type = kCollType;
  d.parent = captured;
  d.coll.func = "AllReduce";
  d.coll.datatype = "ncclInt64";
  d.coll.count = 1000;
  void* coll = start(comm, d);
  comm.stop(coll);
  comm.stop(api);
  const void* captured_handle = calls(ChainedCall::start, kCollApiType).at(0).handle;
  const void* coll_handle = calls(ChainedCall::start, kCollType).at(0).handle;
  const auto parent_of_a_channel = [&] {
    Descriptor channel;
    channel.type = kKernelChType;
    channel.parent = coll;
    chained().calls.clear();
    comm.stop(start(comm, channel));
    return chained().calls.at(0).parent;
  };
  EXPECT_EQ(parent_of_a_channel(), coll_handle);
  // Far more events than there are pairs.
  for (int i = 0; i < 300000; i++) {
    void* other = comm.group_api_start();
    comm.stop(comm.coll_api(other, 1, stream_, "AllReduce", "ncclInt64"));
    comm.stop(other);
    chained().calls.clear();
  }
  comm.stop(start(comm, d));
  EXPECT_EQ(calls(ChainedCall::start, kCollType).back().parent, captured_handle);
  for (int i = 0; i < 140000; i++) parent_of_a_channel();
  EXPECT_EQ(parent_of_a_channel(), nullptr);  // another event has the pair by now: no parent rather than a wrong one
}

TEST_F(Chain, StaleHandlesAreIgnored) {
  void *api = nullptr, *call = nullptr, *context = nullptr;
  {
    FakeComm comm;
    context = comm.context();
    api = comm.group_api_start();
    call = comm.coll_api(api, 1000, stream_);
  }
  FakeComm next(0x99);
  ASSERT_NE(next.context(), context);
  const std::size_t before = chained().calls.size();
  EXPECT_EQ(profiler().stop_event(api), 0);
  EXPECT_EQ(profiler().record_event_state(api, 23, nullptr), 0);
  EXPECT_EQ(profiler().finalize(context), 0);
  void* handle = &next;
  Descriptor d;
  d.type = kGroupApiType;
  EXPECT_EQ(profiler().start_event(context, &handle, &d), 0);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(chained().calls.size(), before);
  d.type = kCollType;
  d.parent = call;
  next.stop(start(next, d));
  EXPECT_EQ(calls(ChainedCall::start, kCollType).back().parent, nullptr);
}

TEST_F(Chain, AProxysForeignParentsAreNotTranslated) {
  FakeComm comm;
  void* api = comm.group_api_start();
  Descriptor d;
  d.type = kProxyOpType;
  d.parent = api;
  const auto with_pid = [&](int pid) {
    std::copy_n(reinterpret_cast<const unsigned char*>(&pid), sizeof pid, d.room);
    comm.stop(start(comm, d));
    return calls(ChainedCall::start, kProxyOpType).back().parent;
  };
  EXPECT_EQ(with_pid(getpid()), calls(ChainedCall::start, kGroupApiType).at(0).handle);
  EXPECT_EQ(with_pid(getpid() + 1), api);  // a number of another process
}

TEST_F(Chain, StaysLoadedWhenNcclLoadsThePluginAgain) {
  { FakeComm comm; }
  FakeComm comm;
  EXPECT_EQ(calls(ChainedCall::init).size(), 2u);
  EXPECT_EQ(calls(ChainedCall::finalize).size(), 1u);
  comm.all_reduce(bucket_, stream_);
  EXPECT_EQ(calls(ChainedCall::start, kCollType).size(), 1u);
  cuStreamSynchronize(stream_);
}

TEST_F(Chain, AStructOfVersion5ServesVersion6WithoutCopyEngines) {
  FakeComm comm(1, 2, 0, 6);
  EXPECT_TRUE(warnings().empty());
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, bucket_.count(), stream_);
  comm.copy_engine(call, bucket_);
  comm.stop(api);
  EXPECT_EQ(calls(ChainedCall::start, kCollApiType).size(), 1u);
  EXPECT_EQ(calls(ChainedCall::start, kCeCollType).size(), 0u);
}

TEST_F(Chain, AStructOfVersion5ServesVersion7WithoutKernelPhases) {
  chained().asked = 0xffff;
  FakeComm comm(1, 2, 0, 7);
  EXPECT_TRUE(warnings().empty());
  EXPECT_EQ(comm.mask() & static_cast<int>(kKernelPhaseType), 0);
  Descriptor d;
  d.type = kKernelPhaseType;
  comm.stop(start(comm, d, 7));
  EXPECT_TRUE(calls(ChainedCall::start).empty());
  expect_measured(&comm);
  EXPECT_EQ(calls(ChainedCall::start, kCollType).size(), 3u);
}

TEST_F(ChainOfVersion7, GetsVersion7WithKernelPhasesAndUserTags) {
  constexpr int kKernelPhaseStop = 31;
  chained().asked = 0xffff;
  FakeComm comm(1, 2, 0, 7);
  EXPECT_TRUE(warnings().empty());
  EXPECT_EQ(comm.mask(), 0xffff);
  EXPECT_EQ(calls(ChainedCall::init).at(0).version, 7);
  comm.user_tag = 77;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, 1000, stream_);
  Descriptor d;
  d.type = kKernelPhaseType;
  d.parent = call;
  d.kernel_phase = {3, 1, "copy", 99};
  void* phase = start(comm, d, 7);
  std::uint64_t timer = 100;
  profiler(7).record_event_state(phase, kKernelPhaseStop, &timer);
  comm.stop(phase);
  comm.stop(api);
  EXPECT_EQ(calls(ChainedCall::start, kCollApiType).at(0).user_tag, 77u);
  const auto phases = calls(ChainedCall::start, kKernelPhaseType);
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(phases[0].parent, calls(ChainedCall::start, kCollApiType).at(0).handle);
  EXPECT_STREQ(phases[0].phase, "copy");
  const auto states = calls(ChainedCall::record);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].subject, phases[0].handle);
  EXPECT_EQ(states[0].state, kKernelPhaseStop);
  EXPECT_EQ(states[0].arguments, &timer);
}

// As NCCL does it for a plugin alone.
TEST_F(ChainOfVersion7, KernelPhasesBringTheirKernelChannels) {
  chained().asked = static_cast<int>(kKernelPhaseType);
  FakeComm comm(1, 2, 0, 7);
  EXPECT_EQ(comm.mask() & 0x8040, 0x8040);
  Descriptor channel;
  channel.type = kKernelChType;
  void* parent = start(comm, channel, 7);
  Descriptor phase;
  phase.type = kKernelPhaseType;
  phase.parent = parent;
  comm.stop(start(comm, phase, 7));
  comm.stop(parent);
  ASSERT_EQ(calls(ChainedCall::start, kKernelChType).size(), 1u);
  EXPECT_EQ(calls(ChainedCall::start, kKernelPhaseType).at(0).parent,
            calls(ChainedCall::start, kKernelChType).at(0).handle);
}

TEST_F(ChainOfVersion7, TheMaskThatNcclEndsUpWithIsInTheLog) {
  setenv("NCCL_DEBUG", "INFO", 1);
  chained().asked = 0x8040;
  FakeComm comm(1, 2, 0, 7);
  std::vector<std::string> log = take_log();
  std::erase_if(log, [](const std::string& l) { return l.find("events that NCCL is asked for") == std::string::npos; });
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("rank 0: profiler struct v7, events that NCCL is asked for: 0x9b43 (Group Coll KernelCh "
                        "GroupApi CollApi KernelLaunch CeColl KernelPhase)"),
            std::string::npos)
      << log[0];
}

TEST_F(ChainOfVersion7, GetsVersion5FromAnOlderNccl) {
  FakeComm comm(1, 2, 0, 5);
  EXPECT_EQ(calls(ChainedCall::init).at(0).version, 5);
}

TEST_F(Chain, SwitchedOffGradprobeStillForwards) {
  setenv("GRADPROBE", "0", 1);
  FakeComm comm;
  EXPECT_NE(comm.context(), nullptr);
  EXPECT_EQ(comm.mask(), 0x7fff & ~0x7000);
  comm.all_reduce(bucket_, stream_);
  comm.finalize();
  EXPECT_EQ(calls(ChainedCall::start).size(), 5u);
  EXPECT_EQ(calls(ChainedCall::stop).size(), 5u);
  EXPECT_EQ(calls(ChainedCall::finalize).size(), 1u);
  EXPECT_TRUE(folder_.files().empty());
}

TEST_F(Chain, HandlesThatLookLikeGradprobesAreKeptApart) {
  setenv("CHAINED_PLUGIN_BEHAVIOUR", "odd_handles", 1);
  FakeComm comm;
  expect_measured(&comm);
  EXPECT_EQ(calls(ChainedCall::stop).size(), calls(ChainedCall::start).size());
  EXPECT_TRUE(warnings().empty());
}

TEST_F(ChainFailure, CannotBeLoaded) {
  setenv("GRADPROBE_CHAIN", "/nowhere/libother.so", 1);
  FakeComm comm;
  expect_measured(&comm);
  const auto log = warnings();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("GRADPROBE_CHAIN=/nowhere/libother.so"), std::string::npos) << log[0];
}

TEST_F(ChainFailure, HasNoStructOfThisVersion) {
  setenv("GRADPROBE_CHAIN", OLD_PLUGIN_FILE, 1);
  FakeComm comm;
  expect_measured(&comm);
  const auto log = warnings();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("v5"), std::string::npos) << log[0];
  EXPECT_NE(log[0].find("has v1, v2, v3, v4"), std::string::npos) << log[0];
}

TEST_F(ChainFailure, NamesGradprobeItself) {
  setenv("GRADPROBE_CHAIN", GRADPROBE_PLUGIN_FILE, 1);
  FakeComm comm;
  expect_measured(&comm);
  const auto log = warnings();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("itself"), std::string::npos) << log[0];
}

TEST_F(ChainFailure, InitFails) {
  setenv("CHAINED_PLUGIN_BEHAVIOUR", "init_fails", 1);
  FakeComm comm;
  expect_measured(&comm);
  const auto log = warnings();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("init failed with error 3"), std::string::npos) << log[0];
  EXPECT_EQ(comm.mask() & 64, 0) << "NCCL makes events for a plugin that isn't there";
  EXPECT_TRUE(chained().calls.empty());
}

TEST_F(ChainFailure, StartFails) {
  setenv("CHAINED_PLUGIN_BEHAVIOUR", "start_fails", 1);
  FakeComm comm;
  expect_measured(&comm);
  EXPECT_EQ(calls(ChainedCall::start).size(), 15u);
  EXPECT_EQ(calls(ChainedCall::stop).size(), 0u);
  const auto log = warnings();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("startEvent failed 15 times"), std::string::npos) << log[0];
}

TEST_F(ChainFailure, HandlesAreLeftUnwritten) {
  setenv("CHAINED_PLUGIN_BEHAVIOUR", "unwritten", 1);
  FakeComm comm;
  expect_measured(&comm);
  EXPECT_EQ(calls(ChainedCall::stop).size(), 0u);
  EXPECT_TRUE(warnings().empty());
}

}  // namespace
}  // namespace gradprobe::test
