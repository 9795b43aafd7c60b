// The linking rule: whatever the order of NCCL's events, a record holds its own bucket's input from before the
// reduction, or says that it was missed; never another's numbers. (docs/ARCHITECTURE.md, "From callbacks to
// measurements")
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>

#include "plugin_fixture.hpp"

namespace gradprobe::test {
namespace {

class Linking : public PluginTest {};

TEST_F(Linking, InPlaceInlineIsMeasuredBeforeTheReduction) {
  const Bucket b(5000);
  FakeComm comm;
  EXPECT_EQ(comm.mask(), 1 | 2 | 256 | 512 | 2048);
  comm.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 1u);
  expect_measured(records[0], b);
  EXPECT_EQ(records[0].head.op, 0u);
  EXPECT_TRUE(records[0].has(kFlagInPlace));
  EXPECT_EQ(records[0].sketch.size(), 1024u);
  EXPECT_EQ(records[0].head.collective.nan_count, 0u);
  EXPECT_EQ(records[0].head.collective.first_nonfinite, kNone);
  double largest = 0;
  for (const float x : b.host()) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  EXPECT_EQ(records[0].head.collective.max_abs, largest);
  EXPECT_EQ(folder_.counters().measured, 1u);
  EXPECT_EQ(folder_.counters().state, static_cast<std::uint64_t>(RingState::finalized));
}

TEST_F(Linking, V6IsMeasuredAlike) {
  const Bucket b(5000);
  FakeComm comm(7, 2, 1, 6);
  comm.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

TEST_F(Linking, GroupWithCollsInAnotherOrderThanTheCalls) {
  const Bucket small(1000, 1), large(40000, 2), middle(9000, 3);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call_small = comm.coll_api(api, small.count(), stream_);
  void* call_large = comm.coll_api(api, large.count(), stream_);
  void* call_middle = comm.coll_api(api, middle.count(), stream_);
  comm.launch_inline(api, stream_, {{call_small, &small}, {call_middle, &middle}, {call_large, &large}});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  std::map<std::uint64_t, Record> by_op;
  for (const Record& r : folder_.collectives()) by_op[r.head.op] = r;
  ASSERT_EQ(by_op.size(), 3u);
  EXPECT_EQ(folder_.counters().gated_ns, by_op[0].head.collective.gate_wait_ns);  // one gate waited once
  expect_measured(by_op[0], small);
  expect_measured(by_op[1], large);
  expect_measured(by_op[2], middle);
}

TEST_F(Linking, NestedGroupsWithSeveralGroupApiEvents) {
  const Bucket a(3000, 1), b(6000, 2);
  FakeComm comm;
  void* outer = comm.group_api_start();
  void* call_a = comm.coll_api(outer, a.count(), stream_);
  void* inner = comm.group_api_start();
  void* call_b = comm.coll_api(inner, b.count(), stream_);
  comm.stop(inner);
  comm.stop(outer);  // GroupApi may stop before the launch
  comm.launch_inline(inner, stream_, {{call_a, &a}, {call_b, &b}});
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  expect_measured(records[0], a);
  expect_measured(records[1], b);
}

TEST_F(Linking, SeveralLaunchesOfOneBatch) {
  const Bucket a(3000, 1), b(6000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call_a = comm.coll_api(api, a.count(), stream_);
  void* call_b = comm.coll_api(api, b.count(), stream_);
  comm.launch_inline(api, stream_, {{call_a, &a}});
  comm.launch_inline(api, stream_, {{call_b, &b}});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  expect_measured(records[0], a);
  expect_measured(records[1], b);
}

TEST_F(Linking, TwoCommunicatorsInterleaved) {
  const Bucket a1(2000, 1), b1(3000, 2), a2(4000, 3), b2(5000, 4);
  FakeComm a(0xa, 2, 0), b(0xb, 2, 0);
  for (const auto& [x, y] : {std::pair{&a1, &b1}, std::pair{&a2, &b2}}) {
    void* api = a.group_api_start();
    void* call_a = a.coll_api(api, x->count(), stream_);
    void* call_b = b.coll_api(api, y->count(), stream_);
    b.launch_inline(api, stream_, {{call_b, y}});
    a.launch_inline(api, stream_, {{call_a, x}});
    a.stop(api);
  }
  cuStreamSynchronize(stream_);
  a.finalize();
  b.finalize();
  const auto records = folder_.collectives();  // files are sorted by communicator id
  ASSERT_EQ(records.size(), 4u);
  expect_measured(records[0], a1);
  expect_measured(records[1], a2);
  expect_measured(records[2], b1);
  expect_measured(records[3], b2);
}

TEST_F(Linking, HostCallbackAfterTheLaunch) {
  const Bucket b(5000);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, b.count(), stream_);
  comm.launch(api, stream_, {{call, &b}});
  comm.stop(api);
  comm.tell_by_callback({{call, &b}});
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

TEST_F(Linking, HostCallbackBeforeTheLaunch) {
  const Bucket b(5000);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, b.count(), stream_);
  comm.tell_by_callback({{call, &b}});
  comm.launch(api, stream_, {{call, &b}});
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

class BlockingLinking : private LaunchesBlock, public PluginTest {};

// The host comes back from such a launch when the pass has ended, so what it has been told must be published before.
TEST_F(BlockingLinking, HostCallbackBeforeTheLaunch) {
  setenv("GRADPROBE_GATE_TIMEOUT", "3000", 1);
  const Bucket b(5000);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, b.count(), stream_);
  comm.tell_by_callback({{call, &b}});
  const auto begin = std::chrono::steady_clock::now();
  comm.launch(api, stream_, {{call, &b}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2500));
  comm.stop(api);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

TEST_F(Linking, NonBlockingLaunchOnAnotherThreadAfterTheApiEnded) {
  const Bucket b(5000);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, b.count(), stream_);
  comm.stop(api);
  std::thread nccl_thread([&] {
    cuCtxSetCurrent(device_.context());
    comm.launch_inline(api, stream_, {{call, &b}});
  });
  nccl_thread.join();
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

TEST_F(Linking, BuffersNeverToldEndByTheTimeout) {
  setenv("GRADPROBE_GATE_TIMEOUT", "300", 1);
  const Bucket lost(5000, 1), next(6000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, lost.count(), stream_);
  comm.launch(api, stream_, {{call, &lost}});
  comm.stop(api);
  cuStreamSynchronize(stream_);  // ends: the gate gives up by itself
  comm.all_reduce(next, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 2u);
  std::map<std::uint64_t, Record> by_op;
  for (const Record& r : records) by_op[r.head.op] = r;
  EXPECT_EQ(static_cast<Missed>(by_op[0].head.missed), Missed::timeout);
  EXPECT_EQ(by_op[0].head.collective.count, lost.count());
  expect_measured(by_op[1], next);
  EXPECT_EQ(folder_.counters().missed[static_cast<int>(Missed::timeout)], 1u);
}

// A run whose buffers are never told must not pay a time-out for every collective.
TEST_F(Linking, GatesThatWaitInVainEnd) {
  setenv("GRADPROBE_GATE_TIMEOUT", "20", 1);
  const Bucket b(5000, 1);
  constexpr int kCalls = 60;
  FakeComm comm;
  for (int i = 0; i < kCalls; i++) {
    void* api = comm.group_api_start();
    void* call = comm.coll_api(api, b.count(), stream_);
    comm.launch(api, stream_, {{call, &b}});
    comm.stop(api);
    cuStreamSynchronize(stream_);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the collector's turn
  }
  comm.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto missed = [&](Missed reason) { return folder_.counters().missed[static_cast<std::size_t>(reason)]; };
  EXPECT_GE(missed(Missed::timeout), 16u);
  EXPECT_LT(missed(Missed::timeout), 40u);
  EXPECT_EQ(missed(Missed::timeout) + missed(Missed::switched_off), kCalls + 1u);
  std::size_t warnings = 0;
  for (const std::string& line : take_log()) warnings += line.starts_with("WARN") ? 1u : 0u;
  EXPECT_EQ(warnings, 1u);
}

TEST_F(Linking, LatePublishAfterTheTimeoutHitsNobody) {
  setenv("GRADPROBE_GATE_TIMEOUT", "300", 1);
  const Bucket late(5000, 1), next(6000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, late.count(), stream_);
  comm.launch(api, stream_, {{call, &late}});
  cuStreamSynchronize(stream_);
  comm.tell({{call, &late}});
  comm.stop(api);
  for (int i = 0; i < 5; i++) comm.all_reduce(next, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  std::map<std::uint64_t, Record> by_op;
  for (const Record& r : folder_.collectives()) by_op[r.head.op] = r;
  ASSERT_EQ(by_op.size(), 6u);
  EXPECT_EQ(static_cast<Missed>(by_op[0].head.missed), Missed::timeout);
  expect_measured(by_op[1], next);
}

TEST_F(Linking, FailedGroupLeavesCallsWithoutLaunch) {
  const Bucket a(1000, 1), b(2000, 2);
  FakeComm comm;
  void* failed = comm.group_api_start();
  comm.coll_api(failed, a.count(), stream_);
  comm.stop(failed);
  comm.all_reduce(b, stream_);
  comm.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  std::map<std::uint64_t, Record> by_op;
  for (const Record& r : folder_.collectives()) by_op[r.head.op] = r;
  ASSERT_EQ(by_op.size(), 3u);
  EXPECT_EQ(static_cast<Missed>(by_op[0].head.missed), Missed::no_events);
  expect_measured(by_op[1], b);
}

TEST_F(Linking, StaleHandlesAndForeignParentsAreIgnored) {
  const Bucket b(1000);
  FakeComm comm(1), other(2);
  void* api = comm.group_api_start();
  void* foreign = other.coll_api(api, b.count(), stream_);
  void* call = comm.coll_api(api, b.count(), stream_);
  void* launch = comm.launch_start(api, stream_);
  nccl_kernel(b, stream_);
  comm.stop(launch);
  void* group = comm.group_start();
  comm.coll(foreign, group, b.pointer(), b.pointer(), b.count());
  comm.coll(reinterpret_cast<void*>(0x7fff12345678ull), group, b.pointer(), b.pointer(), b.count());
  comm.coll(nullptr, group, b.pointer(), b.pointer(), b.count());
  comm.coll(call, group, b.pointer(), b.pointer(), b.count());
  comm.stop(group);
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  other.finalize();
  // Events after finalize must reach nobody.
  comm.stop(launch);
  comm.coll(call, group, b.pointer(), b.pointer(), b.count());
  std::size_t measured = 0;
  for (const Record& r : folder_.collectives())
    if (r.head.missed == 0) {
      measured++;
      expect_measured(r, b);
    }
  EXPECT_EQ(measured, 1u);
}

TEST_F(Linking, TinyInputsAreKeptRaw) {
  const Bucket loss(1, 9), pair(2, 10), nine(9, 11);
  FakeComm comm;
  comm.all_reduce(loss, stream_);
  comm.all_reduce(pair, stream_, "ncclInt64");  // two floats as one 64-bit word is as good a pattern as any
  comm.all_reduce(loss, stream_, "ncclFloat32", "AllGather");
  comm.all_reduce(nine, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].kind(), RecordKind::scalar);
  EXPECT_EQ(records[0].head.collective.raw_count, 1u);
  EXPECT_EQ(std::memcmp(records[0].head.collective.raw, loss.host().data(), 4), 0);
  EXPECT_EQ(records[1].head.collective.raw_count, 2u);
  EXPECT_EQ(std::memcmp(records[1].head.collective.raw, pair.host().data(), 8), 0);
  EXPECT_EQ(static_cast<Function>(records[2].head.collective.function), Function::all_gather);
  EXPECT_EQ(records[3].kind(), RecordKind::collective);
  expect_measured(records[3], nine);
}

TEST_F(Linking, WhatCannotBeMeasuredSaysWhy) {
  const Bucket b(1000);
  FakeComm comm;
  comm.all_reduce(b, stream_, "ncclInt64");
  comm.all_reduce(b, stream_, "ncclFloat32", "Broadcast");
  comm.all_reduce(b, stream_, "ncclInt8");
  comm.all_reduce(b, stream_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(static_cast<Missed>(records[0].head.missed), Missed::unsupported_datatype);
  EXPECT_EQ(static_cast<Datatype>(records[0].head.collective.datatype), Datatype::i64);
  EXPECT_EQ(static_cast<Missed>(records[1].head.missed), Missed::unsupported_datatype);
  EXPECT_EQ(records[2].head.op, 3u);
  const LiveCounters live = folder_.counters();
  EXPECT_EQ(live.announced, 4u);
  EXPECT_EQ(live.missed[static_cast<int>(Missed::unsupported_datatype)], 2u);
  EXPECT_EQ(live.missed[static_cast<int>(Missed::unsupported_function)], 1u);
}

TEST_F(Linking, ReduceScatterMeasuresTheWholeInput) {
  const Bucket b(8000);
  FakeComm comm(5, 4, 1);
  comm.collective({.input = &b, .count = b.count() / 4}, stream_, "ReduceScatter");
  cuStreamSynchronize(stream_);
  comm.finalize();
  ASSERT_EQ(folder_.collectives().size(), 1u);
  expect_measured(folder_.collectives()[0], b);
}

TEST_F(Linking, ManyInFlightBehindABusyStream) {
  const Bucket b(20000);
  FakeComm comm;
  for (int i = 0; i < 300; i++) {
    cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), stream_);
    comm.all_reduce(b, stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 300u);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(records[i].head.op, i);
    expect_measured(records[i], b);
  }
}

TEST_F(Linking, WhatFollowsALaunchThatIsNeverExplainedIsNotHeldUpForLong) {
  setenv("GRADPROBE_GATE_TIMEOUT", "300", 1);
  const Bucket lost(5000, 1), next(6000, 2);
  FakeComm comm;
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, lost.count(), stream_);
  comm.launch(api, stream_, {{call, &lost}});
  comm.stop(api);
  comm.all_reduce(next, stream_);
  cuStreamSynchronize(stream_);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (folder_.collectives().size() < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto records = folder_.collectives();  // of a living communicator
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(static_cast<Missed>(records[0].head.missed), Missed::timeout);
  expect_measured(records[1], next);
}

// A step's buckets and its loss in one group: their results end in an order of the device's own.
TEST_F(Linking, GroupsKeepTheOrderOfCallsAndTheirSteps) {
  constexpr std::size_t kSteps = 20;
  Bucket large(60000, 1), small(300, 2), middle(9000, 3), loss(1, 4);
  const std::array<Bucket*, 4> buckets = {&large, &small, &middle, &loss};
  FakeComm comm;
  for (std::size_t step = 0; step < kSteps; step++) {
    for (Bucket* b : buckets) cuMemcpyHtoDAsync(b->address(), b->host().data(), b->count() * sizeof(float), stream_);
    void* api = comm.group_api_start();
    Parts parts;
    for (Bucket* b : buckets) parts.insert(parts.begin(), Part{comm.coll_api(api, b->count(), stream_), b});
    comm.launch_inline(api, stream_, parts);
    comm.stop(api);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 4 * kSteps);
  for (std::size_t op = 0; op < records.size(); op++) {
    EXPECT_EQ(records[op].head.op, op);
    expect_measured(records[op], *buckets[op % 4]);
    EXPECT_TRUE(records[op].head.step == kNone || records[op].head.step == op / 4) << records[op].head.step;
  }
  EXPECT_EQ(records.back().head.step, kSteps - 1);
  const double squares = large.sum_squares() + small.sum_squares() + middle.sum_squares();
  std::size_t steps = 0;
  for (const Record& r : folder_.records()) {
    if (r.kind() != RecordKind::step) continue;
    const StepBody& s = r.head.step_body;
    EXPECT_EQ(r.head.step, steps);
    EXPECT_EQ(s.first_op, 4 * steps++);
    EXPECT_EQ(s.ops, 4u);
    EXPECT_EQ(s.measured, 3u);
    EXPECT_EQ(s.missed, 0u);
    EXPECT_EQ(s.scalars, 1u);
    EXPECT_NEAR(s.sum_squares / squares, 1, 1e-7);
    EXPECT_EQ(s.scalar_sum, static_cast<double>(loss.host()[0]));
  }
  EXPECT_EQ(steps, kSteps);
}

TEST_F(Linking, TheNullContextIsNobodys) {
  const Bucket b(1000);
  // Far more than a handle has generations.
  for (int i = 0; i < 140; i++) {
    FakeComm comm(static_cast<std::uint64_t>(i));
    void* handle = reinterpret_cast<void*>(0xdeadbeefull);
    Descriptor d;
    d.type = 256;
    ASSERT_EQ(profiler().start_event(nullptr, &handle, &d), 0);
    ASSERT_EQ(handle, nullptr) << i;
    ASSERT_EQ(profiler().finalize(nullptr), 0);
    ASSERT_NE(comm.group_api_start(), nullptr) << i;
  }
}

TEST_F(Linking, CommunicatorsOfSeveralThreadsComeAndGo) {
  const auto work = [&](std::uint64_t id) {
    cuCtxSetCurrent(device_.context());
    for (int i = 0; i < 40; i++) FakeComm comm(id);
  };
  std::thread a(work, 1), b(work, 2);
  a.join();
  b.join();
  EXPECT_EQ(folder_.files().size(), 80u);
}

TEST_F(Linking, MoreInFlightThanSlotsIsMissedAndRecovers) {
  setenv("GRADPROBE_RING_MB", "16", 1);
  const Bucket b(200);
  FakeComm comm;
  // Not on the stack, which is used again: ThreadSanitizer doesn't see that the stand-in's thread has ended its reads.
  static std::atomic<bool> open{false};
  open = false;
  const auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  cuLaunchHostFunc(stream_, hold, &open);
  for (int i = 0; i < 1500; i++) {
    cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), stream_);
    comm.all_reduce(b, stream_);
  }
  open = true;
  cuStreamSynchronize(stream_);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the collector's turn
  for (int i = 0; i < 5; i++) {
    cuMemcpyHtoDAsync(b.address(), b.host().data(), b.count() * sizeof(float), stream_);
    comm.all_reduce(b, stream_);
  }
  cuStreamSynchronize(stream_);
  comm.finalize();
  std::map<Missed, std::size_t> outcomes;
  std::map<std::uint64_t, int> seen;
  for (const Record& r : folder_.collectives()) {
    seen[r.head.op]++;
    outcomes[static_cast<Missed>(r.head.missed)]++;
    if (r.head.missed == 0) expect_measured(r, b);
    if (r.head.op >= 1500) {
      EXPECT_EQ(r.head.missed, 0) << "op " << r.head.op;
    }
  }
  // The ring of results may overflow too when 1024 measurements end at once; that is said as well.
  EXPECT_EQ(outcomes[Missed::none] + outcomes[Missed::result_lost], 1024u + 5u);
  EXPECT_EQ(outcomes[Missed::backlog], 1500u - 1024u);
  EXPECT_GE(outcomes[Missed::none], 500u);
  EXPECT_EQ(seen.size(), 1505u);
  for (const auto& [op, times] : seen) EXPECT_EQ(times, 1) << "op " << op;
}

TEST_F(Linking, CommunicatorsComeAndGo) {
  const Bucket b(1000);
  for (int i = 0; i < 20; i++) {
    FakeComm comm(static_cast<std::uint64_t>(i));
    comm.all_reduce(b, stream_);
    cuStreamSynchronize(stream_);
  }
  EXPECT_EQ(folder_.files().size(), 20u);
  EXPECT_EQ(folder_.collectives().size(), 20u);
}

}  // namespace
}  // namespace gradprobe::test
