// Every mode in which NCCL's events reach the plugin, beyond the plain ones of linking_test.cpp: whatever a launch
// holds and whichever thread tells its buffers, a record is right or says that it was missed.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "plugin_fixture.hpp"

namespace gradprobe::test {
namespace {

class Modes : public PluginTest {
 protected:
  // A group of two measured collectives with an unmeasured one between, each a part by call order.
  struct Mixed {
    Bucket first{4000, 1}, gathered{3000, 2}, second{90000, 3};
    Parts parts;
    Mixed(FakeComm* comm, void* api, CUstream stream, const char* unmeasured = "AllGather",
          const char* datatype = "ncclFloat32") {
      parts.push_back({.call = comm->coll_api(api, first.count(), stream), .input = &first});
      parts.push_back(
          {.call = comm->coll_api(api, gathered.count(), stream, unmeasured, datatype), .input = &gathered});
      parts.push_back({.call = comm->coll_api(api, second.count(), stream), .input = &second});
    }
  };
  void expect_both(const Mixed& m) {
    const auto ops = by_op();
    ASSERT_TRUE(ops.count(0) == 1 && ops.count(2) == 1);
    ASSERT_EQ(ops.at(0).size() + ops.at(2).size(), 2u);
    expect_measured(ops.at(0)[0], m.first);
    expect_measured(ops.at(2)[0], m.second);
    EXPECT_EQ(folder_.counters().measured, 2u);
    EXPECT_EQ(folder_.counters().announced, 3u);
  }
};

// Two user streams: NCCL launches on the one that joined last, behind the other.
TEST_F(Modes, SeveralStreamsInOneGroup) {
  CUstream other = nullptr;
  CUevent event = nullptr;
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  const Bucket a(30000, 1), b(5000, 2), written(30000, 3);
  FakeComm comm;
  for (int i = 0; i < 10; i++) {
    cuMemcpyDtoDAsync(a.address(), written.address(), a.count() * sizeof(float), stream_);
    cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), other);
    void* api = comm.group_api_start();
    const Part on_first{.call = comm.coll_api(api, a.count(), stream_), .input = &a};
    const Part on_other{.call = comm.coll_api(api, b.count(), other), .input = &b};
    cuEventRecord(event, stream_);
    cuStreamWaitEvent(other, event, 0);
    comm.launch_inline(api, other, {on_other, on_first});
    cuEventRecord(event, other);
    cuStreamWaitEvent(stream_, event, 0);
    comm.stop(api);
  }
  cuStreamSynchronize(stream_);
  cuStreamSynchronize(other);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 20u);
  for (std::size_t i = 0; i < records.size(); i++) expect_measured(records[i], i % 2 == 0 ? written : b);
  cuEventDestroy(event);
  cuStreamDestroy(other);
}

// Whatever is in the group besides, and whichever of its launches comes first.
struct Unmeasured {
  const char* function;
  const char* datatype;
};
class MixedLaunches : public Modes, public ::testing::WithParamInterface<Unmeasured> {};
INSTANTIATE_TEST_SUITE_P(Kinds, MixedLaunches,
                         ::testing::Values(Unmeasured{"AllGather", "ncclFloat32"}, Unmeasured{"AllReduce", "ncclInt64"},
                                           Unmeasured{"AllReduce", "Unknown"}),
                         [](const auto& kind) {
                           return std::string(kind.param.function) + "_of_" + kind.param.datatype;
                         });

TEST_P(MixedLaunches, OneLaunchInline) {
  FakeComm comm;
  void* api = comm.group_api_start();
  const Mixed m(&comm, api, stream_, GetParam().function, GetParam().datatype);
  comm.launch_inline(api, stream_, {m.parts[1], m.parts[2], m.parts[0]});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  expect_both(m);
}

TEST_P(MixedLaunches, UnmeasuredLaunchFirstInline) {
  FakeComm comm;
  void* api = comm.group_api_start();
  const Mixed m(&comm, api, stream_, GetParam().function, GetParam().datatype);
  comm.launch_inline(api, stream_, {m.parts[1]});
  comm.launch_inline(api, stream_, {m.parts[2]});
  comm.launch_inline(api, stream_, {m.parts[0]});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  expect_both(m);
}

TEST_P(MixedLaunches, UnmeasuredLaunchBetweenByCallback) {
  FakeComm comm;
  void* api = comm.group_api_start();
  const Mixed m(&comm, api, stream_, GetParam().function, GetParam().datatype);
  comm.launch(api, stream_, {m.parts[0]});
  comm.launch(api, stream_, {m.parts[1]});
  comm.launch(api, stream_, {m.parts[2]});
  comm.stop(api);
  for (const Part& p : m.parts) comm.tell_by_callback({p});
  cuStreamSynchronize(stream_);
  comm.finalize();
  expect_both(m);
}

// The unmeasured launch has no proxy work, so its Group comes inline while the others' callbacks are still to come.
TEST_P(MixedLaunches, UnmeasuredLaunchInlineBeforeTheCallbacks) {
  FakeComm comm;
  void* api = comm.group_api_start();
  const Mixed m(&comm, api, stream_, GetParam().function, GetParam().datatype);
  comm.launch(api, stream_, {m.parts[0]});
  comm.launch_inline(api, stream_, {m.parts[1]});
  comm.launch(api, stream_, {m.parts[2]});
  comm.stop(api);
  comm.tell_by_callback({m.parts[0]});
  comm.tell_by_callback({m.parts[2]});
  cuStreamSynchronize(stream_);
  comm.finalize();
  expect_both(m);
}

// Sends and receives between a launch and the callback that tells its buffers: in a group of their own, or the same.
TEST_F(Modes, SendsAndReceivesBeforeTheCallback) {
  const Bucket b(5000);
  FakeComm comm;
  for (const bool same_group : {false, true}) {
    b.refill();
    void* api = comm.group_api_start();
    const Part part{.call = comm.coll_api(api, b.count(), stream_), .input = &b};
    comm.launch(api, stream_, {part});
    if (same_group) comm.launch_inline(api, stream_, {});
    comm.stop(api);
    if (!same_group) comm.send_receive(stream_);
    comm.tell_by_callback({part});
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  for (const Record& r : records) expect_measured(r, b);
}

// They carry none of the batch's collectives, so no gate may wait in front of them: the time-out is longer than the
// test.
TEST_F(Modes, SendsAndReceivesDontWaitForCallsThatAreNeverLaunched) {
  setenv("GRADPROBE_GATE_TIMEOUT", "10000", 1);
  const Bucket symmetric(5000, 1), next(6000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  comm.coll_api(api, symmetric.count(), stream_);  // NCCL tells nothing more of it
  comm.stop(api);
  const auto begin = std::chrono::steady_clock::now();
  comm.send_receive(stream_);
  cuStreamSynchronize(stream_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  comm.all_reduce(next, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(missed(records[0]), Missed::no_events);
  expect_measured(records[1], next);
}

// Symmetric kernels go first and tell nothing but the call; the group's other collectives follow.
TEST_F(Modes, CallsWithoutEventsInAGroupWithOthers) {
  const Bucket symmetric(5000, 1), a(6000, 2), b(7000, 3);
  FakeComm comm;
  for (int i = 0; i < 3; i++) {
    for (const Bucket* x : {&a, &b}) x->refill();
    void* api = comm.group_api_start();
    comm.coll_api(api, symmetric.count(), stream_);
    const Part part_a{.call = comm.coll_api(api, a.count(), stream_), .input = &a};
    const Part part_b{.call = comm.coll_api(api, b.count(), stream_), .input = &b};
    nccl_kernel(symmetric, stream_);
    comm.launch_inline(api, stream_, {part_a});
    comm.launch_inline(api, stream_, {part_b});
    comm.stop(api);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 9u);
  for (std::size_t i = 0; i < records.size(); i++) {
    if (i % 3 == 0) {
      EXPECT_EQ(missed(records[i]), Missed::no_events) << i;
    }
    if (i % 3 == 1) expect_measured(records[i], a);
    if (i % 3 == 2) expect_measured(records[i], b);
  }
}

// One group over communicators on threads of their own, as PyTorch's with several devices, and many rounds.
TEST_F(Modes, ManyCommunicatorsOnThreads) {
  constexpr int kRounds = 30;
  std::array<std::unique_ptr<FakeComm>, 4> comms;
  std::array<std::unique_ptr<Bucket>, 4> buckets;
  std::array<std::thread, 4> threads;
  for (unsigned i = 0; i < 4; i++) {
    comms[i] = std::make_unique<FakeComm>(0x100 + i);
    buckets[i] = std::make_unique<Bucket>(2000 + 1000 * i, i + 1);
  }
  for (unsigned i = 0; i < 4; i++)
    threads[i] = std::thread([&, i] {
      cuCtxSetCurrent(device_.context());
      CUstream stream = nullptr;
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      for (int round = 0; round < kRounds; round++) {
        cuMemcpyHtoDAsync(buckets[i]->address(), buckets[i]->host().data(), buckets[i]->count() * 4, stream);
        comms[i]->all_reduce(*buckets[i], stream);
      }
      cuStreamSynchronize(stream);
      cuStreamDestroy(stream);
    });
  for (std::thread& t : threads) t.join();
  for (auto& comm : comms) comm->finalize();
  const auto records = folder_.collectives();  // files are sorted by communicator id
  ASSERT_EQ(records.size(), 4u * kRounds);
  for (std::size_t i = 0; i < records.size(); i++) expect_measured(records[i], *buckets[i / kRounds]);
}

// One thread, one group, several communicators with several launches each: they take turns.
TEST_F(Modes, CommunicatorsOfOneGroupTakeTurns) {
  std::array<std::unique_ptr<FakeComm>, 3> comms;
  for (unsigned i = 0; i < 3; i++) comms[i] = std::make_unique<FakeComm>(0x200 + i);
  std::array<std::array<std::unique_ptr<Bucket>, 3>, 2> buckets;
  void* api = comms[0]->group_api_start();
  std::array<Parts, 2> rounds;
  for (unsigned launch = 0; launch < 2; launch++)
    for (unsigned i = 0; i < 3; i++) {
      auto& b = buckets[launch][i] = std::make_unique<Bucket>(1000 + 700 * i + 5000 * launch, 3 * launch + i + 1);
      rounds[launch].push_back({.call = comms[i]->coll_api(api, b->count(), stream_), .input = b.get()});
    }
  for (const Parts& round : rounds)
    for (std::size_t i = 3; i-- > 0;) comms[i]->launch_inline(api, stream_, {round[i]});
  comms[0]->stop(api);
  cuStreamSynchronize(stream_);
  for (auto& comm : comms) comm->finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 6u);
  for (std::size_t i = 0; i < 6; i++) expect_measured(records[i], *buckets[i % 2][i / 2]);
}

// The group's first communicator has no context (one that isn't measured): its GroupApi is nobody's.
TEST_F(Modes, GroupsWhoseFirstCommunicatorIsNotMeasured) {
  setenv("GRADPROBE_RESULT", "1", 1);
  const Bucket b(5000, 1), reduced(5000, 2);
  FakeComm comm;
  for (int i = 0; i < 3; i++) {
    b.refill();
    const Part part{.call = comm.coll_api(nullptr, b.count(), stream_), .input = &b, .reduced = &reduced};
    comm.launch_inline(nullptr, stream_, {part});
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 3u);
  for (const Record& r : records) expect_measured(r, b);
  const auto results = of_kind(RecordKind::result);
  ASSERT_EQ(results.size(), 3u);
  for (const Record& r : results) {
    EXPECT_EQ(missed(r), Missed::none);
    EXPECT_NEAR(r.head.collective.sum_squares / reduced.sum_squares(), 1, 1e-7);
  }
}

// Without a GroupApi a launch of sends and receives looks like one of the batch's: it must not make anything read the
// buffers, which may be gone, and no result is taken for complete.
TEST_F(Modes, ResultsWithoutAGroupApiToldByCallbacks) {
  setenv("GRADPROBE_RESULT", "1", 1);
  auto b = std::make_unique<Bucket>(5000, 1);
  const Bucket kept(5000, 1), half_made(5000, 2), reduced(5000, 3);
  FakeComm comm;
  Part part{.call = comm.coll_api(nullptr, b->count(), stream_), .input = b.get(), .reduced = &half_made};
  comm.tell_by_callback({part});
  comm.launch(nullptr, stream_, {part});
  part.reduced = &reduced;
  comm.launch(nullptr, stream_, {part});
  cuStreamSynchronize(stream_);
  b.reset();
  comm.launch_inline(nullptr, stream_, {});
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 1u);
  expect_measured(records[0], kept);
  const auto results = of_kind(RecordKind::result);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(missed(results[0]), Missed::ambiguous);
}

// Launches of one batch, one told inline and one by a callback, in every order. A result is never what was there before
// its own launch; where nothing says which launch completes it, it is missed.
enum class Order { inline_first, callback_first };
enum class Callback { before_the_launches, before_the_groups_stop, between, after };
std::string name_of(const ::testing::TestParamInfo<std::tuple<Order, Callback>>& info) {
  const char* const moments[] = {"before_the_launches", "before_the_groups_stop", "between", "after"};
  const auto [order, when] = info.param;
  return std::string(order == Order::inline_first ? "inline_first_" : "callback_first_") +
         moments[static_cast<int>(when)];
}
class MixedTelling : public Modes, public ::testing::WithParamInterface<std::tuple<Order, Callback>> {};
INSTANTIATE_TEST_SUITE_P(Orders, MixedTelling,
                         ::testing::Combine(::testing::Values(Order::inline_first, Order::callback_first),
                                            ::testing::Values(Callback::before_the_launches,
                                                              Callback::before_the_groups_stop, Callback::between,
                                                              Callback::after)),
                         name_of);

TEST_P(MixedTelling, IsNeverWrong) {
  const auto [order, when] = GetParam();
  setenv("GRADPROBE_RESULT", "1", 1);
  setenv("GRADPROBE_GATE_TIMEOUT", "300", 1);
  const Bucket a(3000, 1), b(6000, 2), reduced_a(3000, 3), reduced_b(6000, 4);
  FakeComm comm;
  for (int round = 0; round < 3; round++) {
    a.refill();
    b.refill();
    void* api = comm.group_api_start();
    const Part inlined{.call = comm.coll_api(api, a.count(), stream_), .input = &a, .reduced = &reduced_a};
    const Part called{.call = comm.coll_api(api, b.count(), stream_), .input = &b, .reduced = &reduced_b};
    const auto launch_inlined = [&] {
      comm.launch(api, stream_, {inlined});
      void* group = comm.group_start();
      if (when == Callback::before_the_groups_stop) comm.tell_by_callback({called});
      comm.coll(inlined.call, group, a.pointer(), a.pointer(), a.count());
      comm.stop(group);
    };
    if (when == Callback::before_the_launches) comm.tell_by_callback({called});
    if (order == Order::callback_first) comm.launch(api, stream_, {called});
    if (order == Order::inline_first) launch_inlined();
    if (when == Callback::between) comm.tell_by_callback({called});
    if (order == Order::callback_first) launch_inlined();
    if (order == Order::inline_first) comm.launch(api, stream_, {called});
    comm.stop(api);
    if (when == Callback::after) comm.tell_by_callback({called});
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto ops = by_op();
  ASSERT_EQ(ops.size(), 6u);
  for (const auto& [op, records] : ops) {
    ASSERT_EQ(records.size(), 1u);
    expect_measured(records[0], op % 2 == 0 ? a : b);
  }
  ASSERT_EQ(of_kind(RecordKind::result).size(), 6u);
  for (const Record& r : of_kind(RecordKind::result)) {
    if (r.head.missed != 0) continue;
    const Bucket& reduced = r.head.op % 2 == 0 ? reduced_a : reduced_b;
    EXPECT_NEAR(r.head.collective.sum_squares / reduced.sum_squares(), 1, 1e-7) << "op " << r.head.op;
  }
}

// 2.29 and newer tell of copy-engine collectives with the call as parent; older ones say nothing more.
TEST_F(Modes, CopyEngineCollectivesSaySo) {
  const Bucket tiny(4, 1), next(6000, 2);
  FakeComm comm(7, 2, 1, 6);
  EXPECT_EQ(comm.mask() & 4096, 4096);
  for (const bool told : {true, false}) {
    void* api = comm.group_api_start();
    void* call = comm.coll_api(api, tiny.count(), stream_, "AllGather");
    if (told) comm.stop(comm.copy_engine(call, tiny));
    comm.stop(api);
    next.refill();
    comm.all_reduce(next, stream_);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(missed(records[0]), Missed::copy_engine);
  EXPECT_EQ(records[0].head.collective.count, tiny.count());
  expect_measured(records[1], next);
  EXPECT_EQ(missed(records[2]), Missed::no_events);
  expect_measured(records[3], next);
  EXPECT_EQ(missed(Missed::copy_engine), 1u);
}

// What isn't measured anyway is counted once, by its first reason.
TEST_F(Modes, CopyEngineOfWhatIsNotMeasured) {
  const Bucket large(5000, 1);
  FakeComm comm(7, 2, 1, 6);
  void* api = comm.group_api_start();
  comm.copy_engine(comm.coll_api(api, large.count(), stream_, "AllGather"), large);
  comm.copy_engine(nullptr, large);
  comm.copy_engine(reinterpret_cast<void*>(0x7fff12345678ull), large);
  comm.stop(api);
  comm.finalize();
  EXPECT_TRUE(folder_.collectives().empty());
  EXPECT_EQ(missed(Missed::unsupported_function), 1u);
  EXPECT_EQ(missed(Missed::copy_engine), 0u);
}

// Results that are on their way when the communicator goes: all records are there.
TEST_F(Modes, DestroyedWithResultsInFlight) {
  const Bucket b(200'000);
  for (std::uint64_t id = 0; id < 5; id++) {
    FakeComm comm(0x300 + id);
    for (int i = 0; i < 4; i++) {
      cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), stream_);
      comm.all_reduce(b, stream_);
    }
    comm.finalize();  // the stream is still at work
  }
  cuStreamSynchronize(stream_);
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 20u);
  for (const Record& r : records) expect_measured(r, b);
}

}  // namespace
}  // namespace gradprobe::test
