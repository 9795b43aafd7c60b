// Passes that run at the same time: two streams, with workspaces of their own or one between them, and two executions
// of one graph.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <map>
#include <thread>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kK = 256;

// Reads results until `count` have come or the streams' work is over.
std::vector<Measured> collect_along(Rig& rig, std::size_t count) {
  std::vector<Measured> all;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (all.size() + rig.control().dropped < count && std::chrono::steady_clock::now() < deadline) {
    for (Measured& result : rig.collect()) all.push_back(std::move(result));
    std::this_thread::yield();
  }
  return all;
}

struct TwoSlots {
  TwoSlots(const RigOptions& options)
      : rig(options),
        buckets{Bucket(small_integers(Datatype::f32, 160'000, 12)),
                Bucket(small_integers(Datatype::bf16, 170'000, 13))} {
    for (std::uint32_t s = 0; s < 2; ++s) rig.add(s, buckets[s].entry(s));
  }
  void publish() {
    for (std::uint32_t s = 0; s < 2; ++s) rig.publish(s);
  }
  Rig rig;
  Bucket buckets[2];
  Stream streams[2];
};

// Each stream has its own workspace, as in the plugin: nobody is ever busy. The host reads along.
TEST(Overlap, StreamsWithTheirOwnWorkspaces) {
  RigOptions options;
  options.k = kK;
  options.workspaces = 2;
  options.ring_capacity = 128;
  TwoSlots two(options);
  const std::uint32_t runs = 20;
  for (std::uint32_t run = 0; run < runs; ++run) {
    for (std::uint32_t s = 0; s < 2; ++s) {
      two.rig.launch({.slot = s, .ctas = 3 + s, .workspace = s, .replay = true}, two.streams[s]);
    }
  }
  std::this_thread::sleep_for(10ms);
  two.publish();
  const auto results = collect_along(two.rig, 2 * runs);
  for (const Stream& stream : two.streams) stream.synchronize();
  ASSERT_EQ(results.size(), 2 * runs);
  std::uint32_t next[2] = {1, 1};
  for (const Measured& result : results) {
    const std::uint32_t s = result.head.slot;
    ASSERT_LT(s, 2u);
    // Those of one stream come in order.
    expect_measured(result, two.buckets[s], s, next[s]++, kK, Sums::exact);
  }
  for (std::uint32_t s = 0; s < 2; ++s) EXPECT_EQ(two.rig.runs(s), runs);
  EXPECT_TRUE(two.rig.idle());
}

// One workspace for both: a run either has it for itself or says that it was busy. The ring is short, too.
TEST(Overlap, StreamsThatShareAWorkspace) {
  RigOptions options;
  options.k = kK;
  options.ring_capacity = 8;
  TwoSlots two(options);
  const std::uint32_t runs = 20;
  two.publish();
  for (std::uint32_t run = 0; run < runs; ++run) {
    for (std::uint32_t s = 0; s < 2; ++s) two.rig.launch({.slot = s, .ctas = 3, .replay = true}, two.streams[s]);
  }
  const auto results = collect_along(two.rig, 2 * runs);
  for (const Stream& stream : two.streams) stream.synchronize();
  EXPECT_EQ(results.size() + two.rig.control().dropped, 2 * runs);
  EXPECT_EQ(two.rig.control().dropped, two.rig.slot(0).dropped + two.rig.slot(1).dropped);
  for (const Measured& result : results) {
    const std::uint32_t s = result.head.slot;
    ASSERT_LT(s, 2u);
    if (result.head.status == gate::kBusy) continue;
    expect_measured(result, two.buckets[s], s, result.head.run, kK, Sums::exact);
  }
  for (std::uint32_t s = 0; s < 2; ++s) EXPECT_EQ(two.rig.runs(s), runs);
  EXPECT_TRUE(two.rig.idle());
}

// Two executables of one graph on two streams: the same slot, workspace and first_arrival. The streams wait for each
// other before every launch, so that the CTAs of both arrive mixed.
class TwoExecutions : public testing::TestWithParam<std::uint32_t> {
 protected:
  void launch_on_both(Rig& rig, const Launch& launch) {
    for (const Stream& stream : streams_) {
      const auto meet = [](void* meeting) { static_cast<std::barrier<>*>(meeting)->arrive_and_wait(); };
      check(cuLaunchHostFunc(stream.get(), meet, &meeting_), "cuLaunchHostFunc");
      rig.launch(launch, stream);
    }
  }
  void synchronize() const {
    for (const Stream& stream : streams_) stream.synchronize();
  }

 private:
  std::barrier<> meeting_{2};
  Stream streams_[2];
};

TEST_P(TwoExecutions, EveryRunIsWhole) {
  const std::uint32_t ctas = GetParam(), rounds = 10;
  RigOptions options;
  options.k = kK;
  options.ctas = ctas;
  options.ring_capacity = 128;
  options.timeout_ns = 500'000'000;
  Rig rig(options);
  const Bucket large(small_integers(Datatype::f32, 300'000, 14)), small(small_integers(Datatype::f16, 2000, 15));
  rig.add(0, large.entry(1));
  rig.add(0, small.entry(2));
  for (std::uint32_t round = 0; round < rounds; ++round) launch_on_both(rig, {.ctas = ctas, .replay = true});
  // Both have arrived and wait.
  std::this_thread::sleep_for(20ms);
  rig.publish(0);
  synchronize();
  const auto results = rig.collect();
  EXPECT_EQ(rig.control().dropped, 0u);
  std::map<std::uint32_t, std::vector<const Measured*>> runs;
  for (const Measured& result : results) runs[result.head.run].push_back(&result);
  EXPECT_EQ(runs.size(), 2 * rounds);
  for (const auto& [run, of_run] : runs) {
    SCOPED_TRACE(run);
    EXPECT_LE(run, 2 * rounds);
    if (of_run.size() == 1) {
      EXPECT_EQ(of_run[0]->head.status, gate::kBusy);
      continue;
    }
    ASSERT_EQ(of_run.size(), 2u);
    EXPECT_NE(of_run[0]->head.entry, of_run[1]->head.entry);
    for (const Measured* result : of_run) {
      const bool is_large = result->head.entry == 0;
      expect_measured(*result, is_large ? large : small, is_large ? 1 : 2, run, kK, Sums::exact);
    }
  }
  EXPECT_EQ(rig.runs(0), 2 * rounds);
  EXPECT_TRUE(rig.idle());
}

// With result passes between: of which of two overlapping runs they speak is open, that they are right isn't.
TEST_P(TwoExecutions, ResultPassesAreRightOrAbsent) {
  const std::uint32_t ctas = GetParam(), rounds = 8;
  RigOptions options;
  options.k = kK;
  options.ctas = ctas;
  options.ring_capacity = 128;
  options.timeout_ns = 500'000'000;
  Rig rig(options);
  const Bucket input(small_integers(Datatype::f32, 200'000, 16)), output(small_integers(Datatype::f32, 150'000, 17));
  rig.add(0, input.entry(1, output));
  rig.publish(0);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    launch_on_both(rig, {.ctas = ctas, .replay = true});
    launch_on_both(rig, {.ctas = ctas, .pass = gate::kResultPass, .replay = true});
  }
  synchronize();
  std::uint32_t inputs = 0, outputs = 0;
  for (const Measured& result : rig.collect()) {
    const bool of_input = result.head.pass == gate::kInputPass;
    ++(of_input ? inputs : outputs);
    EXPECT_GE(result.head.run, 1u);
    EXPECT_LE(result.head.run, 2 * rounds);
    if (result.head.status == gate::kBusy) continue;
    if (of_input) {
      expect_measured(result, input, 1, result.head.run, kK, Sums::exact);
    } else {
      expect_result(result, output, 1, result.head.run, kK, Sums::exact);
    }
  }
  EXPECT_EQ(inputs, 2 * rounds);
  EXPECT_LE(outputs, 2 * rounds);
  EXPECT_GT(outputs, 0u);
  EXPECT_EQ(rig.runs(0), 2 * rounds);
  EXPECT_EQ(rig.result_runs(0), 2 * rounds);
  EXPECT_TRUE(rig.idle());
}

INSTANTIATE_TEST_SUITE_P(Ctas, TwoExecutions, testing::Values(1u, 2u, 7u, 40u), testing::PrintToStringParamName());

}  // namespace
}  // namespace gradprobe::test
