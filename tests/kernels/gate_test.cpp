// The gate's protocol with the host: publishing, time-outs, the workspace, the ring, replays, bad input.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kK = 256;

RigOptions small_rig() {
  RigOptions options;
  options.k = kK;
  return options;
}

Bucket integers(Datatype type, std::size_t n, std::uint32_t seed) {
  return Bucket(small_integers(type, n, seed));
}

TEST(Gate, OpensWhenPublishedWhileWaiting) {
  for (const std::uint32_t ctas : {1u, 3u, 200u}) {
    SCOPED_TRACE(ctas);
    RigOptions options = small_rig();
    options.ctas = ctas;
    Rig rig(options);
    Stream stream;
    const Bucket bucket = integers(Datatype::f32, 120'000, 1);
    const auto launched = std::chrono::steady_clock::now();
    rig.launch({.ctas = ctas}, stream);
    while (rig.slot_runs(0).input.arrived < ctas && std::chrono::steady_clock::now() - launched < 10s) {
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(rig.runs(0), 0u);
    EXPECT_TRUE(rig.collect().empty());
    std::thread host([&] {
      rig.add(0, bucket.entry(9));
      rig.publish(0);
    });
    host.join();
    stream.synchronize();
    const auto results = rig.collect();
    ASSERT_EQ(results.size(), 1u);
    expect_measured(results[0], bucket, 9, 1, kK, Sums::exact);
    const std::chrono::nanoseconds waited(results[0].head.gate_wait_ns);
    EXPECT_GE(waited, 10ms);
    EXPECT_LE(waited, std::chrono::steady_clock::now() - launched);
    EXPECT_EQ(results[0].head.slot, 0u);
    EXPECT_EQ(rig.runs(0), 1u);
    EXPECT_TRUE(rig.idle());
  }
}

TEST(Gate, TimesOutAndIgnoresWhatComesLate) {
  RigOptions options = small_rig();
  options.timeout_ns = 200'000'000;
  Rig rig(options);
  const Bucket bucket = integers(Datatype::bf16, 5000, 2);
  auto results = run_pass(rig, {.number = 17});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kTimedOut);
  EXPECT_EQ(results[0].head.slot, 0u);
  EXPECT_EQ(results[0].head.entry, 0u);
  EXPECT_EQ(results[0].head.run, 1u);
  EXPECT_EQ(results[0].head.launch, 17u);
  EXPECT_EQ(results[0].head.pass, gate::kInputPass);
  EXPECT_EQ(results[0].head.sketch_floats, 0u);
  EXPECT_GE(results[0].head.gate_wait_ns, options.timeout_ns);
  EXPECT_LE(results[0].head.gate_wait_ns, 2 * options.timeout_ns);
  EXPECT_EQ(rig.runs(0), 1u);
  rig.add(0, bucket.entry(1));
  rig.publish(0);
  EXPECT_TRUE(rig.collect().empty());
  // Nothing of it is left for the next one.
  rig.add(1, bucket.entry(3));
  rig.publish(1);
  results = run_pass(rig, {.slot = 1});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.slot, 1u);
  expect_measured(results[0], bucket, 3, 1, kK, Sums::exact);
}

TEST(Gate, CancelledSlotLeavesNoResult) {
  Rig rig(small_rig());
  Stream stream;
  rig.launch({}, stream);
  rig.publish(0, gate::kSlotCancelled);
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  EXPECT_EQ(rig.runs(0), 1u);
  EXPECT_TRUE(rig.idle());
}

TEST(Gate, SlotWithoutEntries) {
  Rig rig(small_rig());
  rig.publish(0);
  EXPECT_TRUE(run_pass(rig, {}).empty());
  EXPECT_EQ(rig.runs(0), 1u);
}

TEST(Gate, ReplaysDrawFreshKeys) {
  Rig rig(small_rig());
  const Bucket first = integers(Datatype::f16, 150'000, 3), second = integers(Datatype::f32, 300, 4);
  rig.add(0, first.entry(11));
  rig.add(0, second.entry(12));
  rig.publish(0);
  std::vector<std::vector<float>> sketches;
  for (std::uint32_t run = 1; run <= 3; ++run) {
    SCOPED_TRACE(run);
    const auto results = by_entry(run_pass(rig, {.ctas = 2, .number = 5, .replay = true}), 2);
    EXPECT_EQ(rig.runs(0), run);
    expect_measured(results[0], first, 11, run, kK, Sums::exact);
    expect_measured(results[1], second, 12, run, kK, Sums::exact);
    EXPECT_EQ(results[0].head.launch, 5u);
    sketches.push_back(results[0].sketch);
  }
  EXPECT_NE(sketches[0], sketches[1]);
  EXPECT_NE(sketches[1], sketches[2]);
}

// All replays on the stream before the first has begun.
TEST(Gate, ReplaysInARow) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket bucket = integers(Datatype::bf16, 200'000, 3);
  rig.add(0, bucket.entry(11));
  for (int replay = 0; replay < 5; ++replay) rig.launch({.ctas = 7, .replay = true}, stream);
  std::this_thread::sleep_for(10ms);
  rig.publish(0);
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), 5u);
  for (std::uint32_t i = 0; i < 5; ++i) expect_measured(results[i], bucket, 11, i + 1, kK, Sums::exact);
  EXPECT_TRUE(rig.idle());
}

// A slot goes round among launches of different grids, kernels and workspaces, and of every ending.
TEST(Gate, SlotIsUsedAgainWithAnotherGrid) {
  RigOptions options = small_rig();
  options.timeout_ns = 20'000'000;
  options.workspaces = 2;
  Rig rig(options);
  std::uint32_t number = 0;
  for (const std::uint32_t ctas : {3u, 1u, 40u, 2u, 64u, 5u, 5u}) {
    ++number;
    SCOPED_TRACE(number);
    const Datatype type = kTypes[number % std::size(kTypes)];
    const Bucket bucket = integers(type, 70'000 + 1000 * number, number);
    Launch launch{.ctas = ctas, .kernel = measured_type(type), .workspace = number % 2, .number = number};
    rig.reopen(0);
    rig.add(0, bucket.entry(number));
    rig.publish(0);
    auto results = run_pass(rig, launch);
    ASSERT_EQ(results.size(), 1u);
    expect_measured(results[0], bucket, number, 1, kK, Sums::exact);
    EXPECT_EQ(results[0].head.launch, number);
    EXPECT_EQ(rig.runs(0), 1u);
    // In between: nobody publishes, or the host gives up.
    rig.reopen(0);
    const bool cancelled = number % 2 == 0;
    if (cancelled) rig.publish(0, gate::kSlotCancelled);
    launch.ctas = ctas / 2 + 1;
    results = run_pass(rig, launch);
    ASSERT_EQ(results.size(), cancelled ? 0u : 1u);
    if (!cancelled) {
      EXPECT_EQ(results[0].head.status, gate::kTimedOut);
    }
  }
}

TEST(Gate, FullRingDropsAndCounts) {
  RigOptions options = small_rig();
  options.ring_capacity = 4;
  Rig rig(options);
  const Bucket bucket = integers(Datatype::f32, 100, 7);
  gate::GateEntry raw = bucket.entry(0);
  raw.mode = gate::kRaw;
  raw.count = 2;
  for (int i = 0; i < 7; ++i) rig.add(0, i % 2 ? raw : bucket.entry(20));
  rig.publish(0);
  Stream stream;
  rig.launch({.ctas = 2}, stream);
  stream.synchronize();
  EXPECT_EQ(rig.control().dropped, 3u);
  EXPECT_EQ(rig.slot(0).dropped, 3u);
  EXPECT_EQ(rig.runs(0), 1u);
  EXPECT_TRUE(rig.idle());
  EXPECT_EQ(rig.collect().size(), 4u);
  // What was read is free again, also where the ring wraps.
  for (std::uint32_t run = 1; run <= 3; ++run) {
    rig.reopen(1);
    for (int i = 0; i < 3; ++i) rig.add(1, bucket.entry(30));
    rig.publish(1);
    const auto results = by_entry(run_pass(rig, {.slot = 1, .ctas = 2, .number = 1 + run}), 3);
    for (const Measured& result : results) expect_measured(result, bucket, 30, 1, kK, Sums::exact);
  }
  EXPECT_EQ(rig.control().dropped, 3u);
}

TEST(Gate, BusyWorkspace) {
  RigOptions options = small_rig();
  options.workspaces = 2;
  Rig rig(options);
  const Bucket bucket = integers(Datatype::f32, 120'000, 8);
  for (std::uint32_t slot = 0; slot < 2; ++slot) {
    rig.add(slot, bucket.entry(slot));
    rig.publish(slot);
  }
  rig.hold_workspace(0, true);
  Stream stream;
  rig.launch({.slot = 1, .ctas = 2, .number = 4, .replay = true}, stream);
  stream.synchronize();
  auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kBusy);
  EXPECT_EQ(results[0].head.slot, 1u);
  EXPECT_EQ(results[0].head.entry, 0u);
  EXPECT_EQ(results[0].head.run, 1u);
  EXPECT_EQ(results[0].head.launch, 4u);
  EXPECT_EQ(results[0].head.sketch_floats, 0u);
  EXPECT_EQ(rig.runs(1), 1u);
  EXPECT_EQ(rig.workspace(0).taken, 1u) << "the other run holds it still";
  // The other workspace is free.
  rig.launch({.slot = 0, .workspace = 1}, stream);
  stream.synchronize();
  results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 0, 1, kK, Sums::exact);
  // The next replay finds it free again.
  rig.hold_workspace(0, false);
  results = run_pass(rig, {.slot = 1, .ctas = 2, .replay = true});
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 1, 2, kK, Sums::exact);
}

// A launch that the host has counted wrong waits for CTAs that never come: for a while, and then nothing is measured
// any more. What follows on the stream goes on.
TEST(Gate, WrongCountEndsMeasuringOnly) {
  for (const auto& [ctas, lost] : {std::pair{2u, 1u}, {5u, 2u}, {5u, 5u}}) {
    SCOPED_TRACE(std::to_string(lost) + " lost before " + std::to_string(ctas));
    RigOptions options = small_rig();
    options.timeout_ns = 1'000'000;
    Rig rig(options);
    const Bucket bucket = integers(Datatype::f32, 120'000, 8);
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      rig.add(slot, bucket.entry(slot));
      rig.publish(slot);
    }
    Stream stream;
    rig.launch({.slot = 1, .ctas = ctas}, stream);
    rig.launch({.ctas = ctas, .lost = lost}, stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) rig.launch({.ctas = ctas}, stream);
    rig.launch({.slot = 1, .ctas = ctas}, stream);
    stream.synchronize();
    // Patience is lost once, not with every launch.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::nanoseconds(3 * gate::patience_ns(1'000'000)));
    const auto results = rig.collect();
    ASSERT_GE(results.size(), 2u);
    expect_measured(results[0], bucket, 1, 1, kK, Sums::exact);
    for (std::size_t i = 1; i < results.size(); ++i) EXPECT_EQ(results[i].head.status, gate::kBusy);
    EXPECT_EQ(results.back().head.slot, 1u);
    EXPECT_EQ(rig.runs(1), 1u);
  }
}

TEST(Gate, EntriesThatMakeNoSense) {
  Rig rig(small_rig());
  const Bucket bucket = integers(Datatype::f32, 1000, 11), wide = integers(Datatype::f64, 1000, 11);
  const gate::GateEntry good = bucket.entry(1);
  std::vector<gate::GateEntry> bad(11, good);
  bad[0].count = 0;
  bad[1].datatype = 255;
  bad[2].datatype = static_cast<std::uint8_t>(Datatype::i32);
  bad[3].input += 2;
  bad[4].input = 0;
  bad[5].count = ~std::uint64_t{0};
  bad[6].mode = 7;
  bad[7].mode = gate::kRaw;
  bad[7].count = gate::kMaxRawCount + 1;
  bad[8].mode = gate::kRaw;
  bad[8].datatype = 12;
  bad[9].count = gate::kMaxCount + 1;
  bad[10] = wide.entry(1);
  bad[10].input += 4;
  for (const auto& entry : bad) rig.add(0, entry);
  rig.add(0, good);
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.ctas = 2}), bad.size() + 1);
  for (std::size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(results[i].head.status, gate::kInvalid);
    EXPECT_EQ(results[i].head.sketch_floats, 0u);
  }
  expect_measured(results.back(), bucket, 1, 1, kK, Sums::exact);
  EXPECT_EQ(rig.runs(0), 1u);
}

TEST(Gate, NothingButEntriesThatMakeNoSense) {
  Rig rig(small_rig());
  gate::GateEntry bad{};
  for (int i = 0; i < 5; ++i) rig.add(0, bad);
  rig.publish(0);
  for (const Measured& result : by_entry(run_pass(rig, {}), 5)) EXPECT_EQ(result.head.status, gate::kInvalid);
  EXPECT_EQ(rig.runs(0), 1u);
}

TEST(Gate, MoreEntriesThanASlotCanHave) {
  for (const std::uint32_t entries : {gate::kMaxEntries + 1, ~0u}) {
    Rig rig(small_rig());
    rig.slot(0).entries = entries;
    rig.publish(0);
    const auto results = run_pass(rig, {});
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].head.status, gate::kInvalid);
    EXPECT_EQ(rig.runs(0), 1u);
  }
}

}  // namespace
}  // namespace gradprobe::test
