// The result pass: which runs and entries it measures, and the fingerprint.
#include <gtest/gtest.h>

#include <random>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kK = 256;

RigOptions small_rig() {
  RigOptions options;
  options.k = kK;
  return options;
}

Bucket integers(Datatype type, std::size_t n, std::uint32_t seed, std::uint32_t offset = 0) {
  return Bucket(small_integers(type, n, seed), offset);
}

constexpr Launch kResult = {.pass = gate::kResultPass};

TEST(Result, OutputsAreMeasured) {
  Rig rig(small_rig());
  // An all-reduce in place, another one, reduce-scatter's shard inside of its input, all-gather's larger output.
  std::vector<Bucket> inputs, outputs;
  inputs.push_back(integers(Datatype::f32, 100'000, 1));
  outputs.push_back(integers(Datatype::f32, 100'000, 2));
  inputs.push_back(integers(Datatype::bf16, 3000, 3));
  outputs.push_back(integers(Datatype::bf16, 3000, 4, 6));
  inputs.push_back(integers(Datatype::f16, 400'000, 5));
  outputs.push_back(integers(Datatype::f16, 50'000, 6, 2));
  inputs.push_back(integers(Datatype::f8e4m3, 1000, 7));
  outputs.push_back(integers(Datatype::f8e4m3, 800'001, 8, 1));
  for (std::size_t i = 0; i < inputs.size(); ++i) rig.add(0, inputs[i].entry(i, outputs[i]));
  gate::GateEntry shard = inputs[2].entry(4);
  shard.output = inputs[2].address() + 2 * 70'000;
  shard.output_count = 70'000;
  rig.add(0, shard);
  rig.publish(0);
  const auto before = by_entry(run_pass(rig, {.ctas = 5, .number = 3}), 5);
  for (std::size_t i = 0; i < 4; ++i) expect_measured(before[i], inputs[i], i, 1, kK, Sums::exact);
  const auto after = by_entry(run_pass(rig, {.ctas = 9, .pass = gate::kResultPass, .number = 3}), 5);
  for (std::size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    expect_result(after[i], outputs[i], i, 1, kK, Sums::exact);
    EXPECT_EQ(after[i].head.launch, 3u);
    EXPECT_EQ(after[i].head.slot, 0u);
  }
  Elements middle(Datatype::f16, 70'000);
  for (std::size_t i = 0; i < middle.size(); ++i) middle.set(i, inputs[2].elements()[70'000 + i]);
  expect_result(after[4], Bucket(middle), 4, 1, kK, Sums::exact);
  EXPECT_EQ(rig.runs(0), 1u);
  EXPECT_EQ(rig.result_runs(0), 1u);
}

TEST(Result, EntriesWithoutOutputAreLeftOut) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::f32, 90'000, 1), output = integers(Datatype::f32, 80'000, 2);
  for (int i = 0; i < 6; ++i) rig.add(0, i % 2 ? input.entry(1, output) : input.entry(1));
  rig.publish(0);
  EXPECT_EQ(run_pass(rig, {}).size(), 6u);
  const auto results = run_pass(rig, kResult);
  ASSERT_EQ(results.size(), 3u);
  std::uint32_t seen = 0;
  for (const Measured& result : results) {
    seen |= 1u << result.head.entry;
    expect_result(result, output, 1, 1, kK, Sums::exact);
  }
  EXPECT_EQ(seen, 0b101010u);
}

TEST(Result, NoEntryHasAnOutput) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::f32, 90'000, 1);
  rig.add(0, input.entry(1));
  rig.publish(0);
  EXPECT_EQ(run_pass(rig, {}).size(), 1u);
  EXPECT_TRUE(run_pass(rig, kResult).empty());
  EXPECT_EQ(rig.result_runs(0), 1u);
}

TEST(Result, OutputsThatMakeNoSense) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::f32, 90'000, 1), output = integers(Datatype::f32, 80'000, 2);
  std::vector<gate::GateEntry> bad(3, input.entry(1, output));
  bad[0].output += 1;
  bad[1].output_count = gate::kMaxCount + 1;
  bad[2].output_count = ~std::uint64_t{0};
  for (const auto& entry : bad) rig.add(0, entry);
  rig.add(0, input.entry(1, output));
  rig.publish(0);
  for (const Measured& result : by_entry(run_pass(rig, {}), 4)) expect_measured(result, input, 1, 1, kK, Sums::exact);
  const auto results = by_entry(run_pass(rig, kResult), 4);
  for (std::size_t i = 0; i < bad.size(); ++i) EXPECT_EQ(results[i].head.status, gate::kInvalid) << i;
  expect_result(results[3], output, 1, 1, kK, Sums::exact);
}

TEST(Result, EveryThirdOfSevenReplays) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::bf16, 100'000, 1), output = integers(Datatype::bf16, 100'000, 2);
  rig.add(0, input.entry(8, output));
  rig.publish(0);
  rig.choose_replays(1, 3);
  for (std::uint32_t run = 1; run <= 7; ++run) {
    SCOPED_TRACE(run);
    const auto before = run_pass(rig, {.ctas = 4, .number = 6, .replay = true});
    ASSERT_EQ(before.size(), 1u);
    expect_measured(before[0], input, 8, run, kK, Sums::exact);
    const auto after = run_pass(rig, {.ctas = 4, .pass = gate::kResultPass, .number = 6, .replay = true});
    EXPECT_EQ(rig.result_runs(0), run);
    EXPECT_EQ(rig.runs(0), run);
    if (run % 3 != 1) {
      EXPECT_TRUE(after.empty());
      continue;
    }
    ASSERT_EQ(after.size(), 1u);
    expect_result(after[0], output, 8, run, kK, Sums::exact);
    EXPECT_EQ(after[0].head.launch, 6u);
  }
}

TEST(Result, EverySecondReplayAndOfTheseEveryThird) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::f32, 100'000, 1), output = integers(Datatype::f32, 100'000, 2);
  rig.add(0, input.entry(8, output));
  rig.publish(0);
  rig.choose_replays(2, 3);
  for (std::uint32_t run = 1; run <= 9; ++run) {
    SCOPED_TRACE(run);
    // From the eighth run on nothing is wanted any more.
    if (run == 8) rig.choose_replays(0, 3);
    EXPECT_EQ(run_pass(rig, {.ctas = 4, .replay = true}).size(), run % 2 == 1 && run < 8 ? 1u : 0u);
    const auto after = run_pass(rig, {.ctas = 4, .pass = gate::kResultPass, .replay = true});
    EXPECT_EQ(after.size(), run == 1 || run == 7 ? 1u : 0u);
    EXPECT_EQ(rig.runs(0), run);
    EXPECT_EQ(rig.result_runs(0), run);
  }
  // What no graph runs is not chosen from.
  EXPECT_EQ(run_pass(rig, {.ctas = 4}).size(), 1u);
}

// What became of the input decides: replays that time out, find the workspace taken, or are measured, in turn.
TEST(Result, FollowsTheInputPassOfItsRun) {
  RigOptions options = small_rig();
  options.timeout_ns = 20'000'000;
  Rig rig(options);
  const Bucket input = integers(Datatype::f16, 100'000, 1), output = integers(Datatype::f16, 100'000, 2);
  rig.add(0, input.entry(8, output));
  enum What { measured, timed_out, busy, cancelled };
  std::uint32_t run = 0;
  for (const What what : {measured, timed_out, measured, busy, timed_out, cancelled, measured, busy}) {
    ++run;
    SCOPED_TRACE(run);
    rig.publish(0, what == timed_out   ? gate::kSlotOpen
                   : what == cancelled ? gate::kSlotCancelled
                                       : gate::kSlotPublished);
    if (what == busy) rig.hold_workspace(0, true);
    Stream stream;
    rig.launch({.replay = true}, stream);
    stream.synchronize();
    if (what == busy) rig.hold_workspace(0, false);
    EXPECT_EQ(rig.collect().size(), what == cancelled ? 0u : 1u);
    // Late, but not too late to mislead the result pass.
    rig.publish(0);
    const auto after = run_pass(rig, {.pass = gate::kResultPass, .replay = true});
    EXPECT_EQ(rig.runs(0), run);
    EXPECT_EQ(rig.result_runs(0), run);
    ASSERT_EQ(after.size(), what == measured ? 1u : 0u);
    if (what == measured) expect_result(after[0], output, 8, run, kK, Sums::exact);
  }
}

// A slot's former user was measured in its run 1; that says nothing of run 1 of the next one.
TEST(Result, FormerUserOfTheSlotDoesNotCount) {
  RigOptions options = small_rig();
  options.timeout_ns = 20'000'000;
  Rig rig(options);
  const Bucket input = integers(Datatype::f32, 100'000, 1), output = integers(Datatype::f32, 100'000, 2);
  for (const bool published : {true, false, true}) {
    SCOPED_TRACE(published);
    rig.reopen(0);
    rig.add(0, input.entry(8, output));
    if (published) rig.publish(0);
    EXPECT_EQ(run_pass(rig, {.ctas = 4}).size(), 1u);
    if (!published) rig.publish(0);
    const auto after = run_pass(rig, {.ctas = 2, .pass = gate::kResultPass});
    ASSERT_EQ(after.size(), published ? 1u : 0u);
    if (published) expect_result(after[0], output, 8, 1, kK, Sums::exact);
    EXPECT_EQ(rig.result_runs(0), 1u);
  }
}

TEST(Result, BusyWorkspace) {
  Rig rig(small_rig());
  const Bucket input = integers(Datatype::f32, 100'000, 1), output = integers(Datatype::f32, 100'000, 2);
  rig.add(0, input.entry(8, output));
  rig.publish(0);
  EXPECT_EQ(run_pass(rig, {.replay = true}).size(), 1u);
  rig.hold_workspace(0, true);
  Stream stream;
  rig.launch({.pass = gate::kResultPass, .replay = true}, stream);
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kBusy);
  EXPECT_EQ(results[0].head.pass, gate::kResultPass);
  EXPECT_EQ(rig.result_runs(0), 1u);
  rig.hold_workspace(0, false);
  EXPECT_EQ(run_pass(rig, {.replay = true}).size(), 1u);
  const auto after = run_pass(rig, {.pass = gate::kResultPass, .replay = true});
  ASSERT_EQ(after.size(), 1u);
  expect_result(after[0], output, 8, 2, kK, Sums::exact);
}

TEST(Result, FullRingDropsAndCounts) {
  RigOptions options = small_rig();
  options.ring_capacity = 4;
  Rig rig(options);
  const Bucket input = integers(Datatype::f32, 1000, 1);
  for (int i = 0; i < 3; ++i) rig.add(0, input.entry(1, input));
  rig.publish(0);
  Stream stream;
  rig.launch({}, stream);
  rig.launch(kResult, stream);
  stream.synchronize();
  EXPECT_EQ(rig.collect().size(), 4u);
  EXPECT_EQ(rig.control().dropped, 2u);
  EXPECT_EQ(rig.slot(0).dropped, 0u) << "all inputs had a place";
  EXPECT_EQ(rig.result_runs(0), 1u);
  EXPECT_TRUE(rig.idle());
}

// Fingerprints of many outputs, each an entry of its own.
std::vector<std::uint64_t> fingerprints(const std::vector<Bucket>& buckets, std::uint32_t ctas) {
  RigOptions options;
  options.k = 0;
  options.ring_capacity = 2 * gate::kMaxEntries;
  Rig rig(options);
  for (const Bucket& bucket : buckets) rig.add(0, bucket.entry(1, bucket));
  rig.publish(0);
  EXPECT_EQ(run_pass(rig, {.ctas = 1}).size(), buckets.size());
  std::vector<std::uint64_t> all;
  for (const Measured& m : by_entry(run_pass(rig, {.ctas = ctas, .pass = gate::kResultPass}), buckets.size())) {
    all.push_back(m.head.fingerprint);
  }
  return all;
}

// Bits that mean NaN or nothing in particular count as they are, at every alignment and every odd length.
TEST(Fingerprint, OfAnyBytes) {
  std::mt19937_64 random(3);
  for (const Datatype type : kTypes) {
    SCOPED_TRACE(name(type));
    std::vector<Bucket> buckets;
    for (const std::size_t n : {1u, 2u, 3u, 5u, 13u, 2047u, 16'387u, 65'535u, 65'537u, 200'003u}) {
      Elements elements(type, n);
      for (std::size_t i = 0; i < n; ++i) elements.set(i, random());
      const bool all = n < 100;
      for (const std::uint32_t offset : offsets(type)) {
        if (all || offset == n % 16 / element_bytes(type) * element_bytes(type)) buckets.emplace_back(elements, offset);
      }
    }
    const auto got = fingerprints(buckets, 6);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      ASSERT_EQ(got[i], fingerprint(buckets[i].elements().bytes()))
          << buckets[i].elements().size() << " elements at " << buckets[i].address() % 16;
    }
  }
}

TEST(Fingerprint, EveryFlippedBitChangesIt) {
  std::mt19937_64 random(4);
  for (const Datatype type : kTypes) {
    SCOPED_TRACE(name(type));
    Elements elements(type, element_bytes(type) == 1 ? 7 : 3);
    for (std::size_t i = 0; i < elements.size(); ++i) elements.set(i, random());
    std::vector<Bucket> buckets;
    buckets.emplace_back(elements);
    for (std::size_t bit = 0; bit < 8 * elements.bytes().size(); ++bit) {
      Elements flipped = elements;
      flipped.flip(bit);
      buckets.emplace_back(flipped);
    }
    const auto got = fingerprints(buckets, 4);
    EXPECT_EQ(got[0], fingerprint(elements.bytes()));
    for (std::size_t i = 1; i < got.size(); ++i) EXPECT_NE(got[i], got[0]) << "bit " << i - 1;
  }
}

// In a bucket that several CTAs share; the flipped bit moves the sum by its own weight.
TEST(Fingerprint, FlippedBitsOfALargeBucket) {
  std::mt19937_64 random(5);
  for (const Datatype type : kTypes) {
    SCOPED_TRACE(name(type));
    const Elements elements = gaussian(type, 70'001, 6);
    std::vector<Bucket> buckets;
    buckets.emplace_back(elements, element_bytes(type));
    std::vector<std::size_t> bits;
    for (int i = 0; i < 20; ++i) {
      bits.push_back(random() % (8 * elements.bytes().size()));
      Elements flipped = elements;
      flipped.flip(bits.back());
      buckets.emplace_back(flipped, element_bytes(type));
    }
    const auto got = fingerprints(buckets, 7);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const std::uint64_t up = got[i + 1] - got[0], down = got[0] - got[i + 1];
      EXPECT_EQ(std::min(up, down), std::uint64_t{1} << bits[i] % 32);
    }
  }
}

}  // namespace
}  // namespace gradprobe::test
