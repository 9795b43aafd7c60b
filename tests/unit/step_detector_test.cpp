#include <gtest/gtest.h>
#include <gradprobe/step_detector.hpp>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <random>

#include "reference_step_detector.hpp"
#include "step_sequence.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

// Counts what the detector allocates; the default new and delete otherwise.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations++;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace gradprobe {
namespace {

using test::number_all;
using test::Numbered;
using test::times;

// Ops [first, end) are whole steps of `period` ops, numbered from `step` on.
void expect_steps(const std::vector<Numbered>& ops, std::size_t first, std::size_t end, std::size_t period,
                  std::uint64_t step) {
  ASSERT_LE(end, ops.size());
  for (std::size_t i = first; i < end; i++) {
    ASSERT_EQ(ops[i].step, step + (i - first) / period) << i;
    ASSERT_EQ(ops[i].step_op, (i - first) % period) << i;
    ASSERT_FALSE(ops[i].extra) << i;
  }
}

void expect_growing(const std::vector<Numbered>& ops) {
  for (std::size_t i = 1; i < ops.size(); i++) {
    const bool known = ops[i].step != kNone && ops[i - 1].step != kNone;
    ASSERT_TRUE(!known || ops[i].step >= ops[i - 1].step) << i;
  }
}

TEST(StepDetector, RegularFromTheStart) {
  const auto ops = number_all(times("ABCL", 20));
  expect_steps(ops, 0, 80, 4, 0);
}

TEST(StepDetector, ConfirmsAfterThreePeriodsOrPeriodPlus32) {
  for (const int period : {1, 2, 5, 16, 17, 40, 300, 1000, 1024}) {
    StepDetector detector;
    std::vector<std::uint64_t> signatures;
    // One or two equal ops may be layers.
    const int window = period <= 2 ? period + 192 : std::max(3 * period, period + 32);
    for (int i = 0; i < 4 * window; i++) {
      signatures.push_back(
          step_signature(Function::all_reduce, Datatype::f32, 100 + static_cast<std::uint64_t>(i % period)));
    }
    const auto ops = number_all(detector, signatures);
    EXPECT_EQ(detector.period(), static_cast<std::uint32_t>(period));
    expect_steps(ops, 0, ops.size(), static_cast<std::size_t>(period), 0);
    EXPECT_FALSE(ops[static_cast<std::size_t>(window) - 2].online) << period;
    EXPECT_TRUE(ops[static_cast<std::size_t>(window) - 1].online) << period;
  }
}

TEST(StepDetector, PeriodsBeyondTheLimitAreNotFound) {
  StepDetector detector;
  for (std::uint64_t i = 0; i < 20000; i++) {
    EXPECT_FALSE(detector.feed(step_signature(Function::all_reduce, Datatype::f32, 100 + i % 1025)).confirmed);
  }
}

TEST(StepDetector, DifferentFirstIteration) {
  for (const std::string first : {"XYL", "XL", "XYZWVL", "ABXL", "XBCL", "XYZ", "AXCYL"}) {
    const auto ops = number_all(first + times("ABCL", 20));
    const std::size_t n = first.size();
    for (std::size_t i = 0; i < n; i++) EXPECT_EQ(ops[i].step, 0u) << first << " " << i;
    expect_steps(ops, n, ops.size(), 4, 1);
  }
}

// The loss comes first in each step: the run's first op shows where steps begin.
TEST(StepDetector, LossFirst) {
  expect_steps(number_all(times("LABC", 20)), 0, 80, 4, 0);
  const auto ops = number_all("LXY" + times("LABC", 20));
  for (std::size_t i = 0; i < 3; i++) EXPECT_EQ(ops[i].step, 0u);
  expect_steps(ops, 3, ops.size(), 4, 1);
}

// Equal buckets, then a small scalar: the step ends with the scalar, wherever the sequence begins.
TEST(StepDetector, EqualBucketsEndWithTheScalar) {
  expect_steps(number_all(times("AAAL", 20)), 0, 80, 4, 0);
  for (const std::string first : {"XAAL", "XL", "AXL"}) {
    const auto ops = number_all(first + times("AAAL", 20));
    EXPECT_EQ(ops[first.size() - 1].step, 0u) << first;
    expect_steps(ops, first.size(), ops.size(), 4, 1);
  }
  // A longer first iteration of the same buckets ends like a whole period: only what is before that is irregular.
  const auto ops = number_all("AA" + times("AAAL", 20));
  EXPECT_EQ(ops[1].step, 0u);
  expect_steps(ops, 2, ops.size(), 4, 1);
}

TEST(StepDetector, OnlyEqualBuckets) {
  expect_steps(number_all(times("A", 200)), 0, 200, 1, 0);
}

// Micro-batches all-reduced one by one: the step is what ends with the loss.
TEST(StepDetector, GradientAccumulation) {
  const auto ops = number_all(times("ABABABABL", 20));
  expect_steps(ops, 0, ops.size(), 9, 0);
}

TEST(StepDetector, ExtraOpNowAndThen) {
  std::string letters;
  std::vector<std::size_t> extras;
  for (int step = 0; step < 60; step++) {
    if (step > 10 && step % 10 == 0) {
      extras.push_back(letters.size());
      letters += 'V';
    }
    letters += "AB";
    if (step == 35) {
      extras.push_back(letters.size());
      letters += 'W';
    }
    letters += "CL";
  }
  const auto ops = number_all(letters);
  std::size_t regular = 0;
  for (std::size_t i = 0; i < ops.size(); i++) {
    const bool is_extra = std::find(extras.begin(), extras.end(), i) != extras.end();
    ASSERT_EQ(ops[i].extra, is_extra) << i;
    ASSERT_EQ(ops[i].step, regular / 4) << i;
    if (!is_extra) regular++;
  }
}

TEST(StepDetector, ValidationPhaseThenTheSamePattern) {
  const std::string before = times("ABCL", 20), validation = times("VW", 3) + "V", after = times("ABCL", 20);
  const auto ops = number_all(before + validation + after);
  expect_steps(ops, 0, before.size(), 4, 0);
  for (std::size_t i = 0; i < validation.size(); i++) {
    EXPECT_TRUE(ops[before.size() + i].extra) << i;
    EXPECT_EQ(ops[before.size() + i].step, 20u) << i;
  }
  expect_steps(ops, before.size() + validation.size(), ops.size(), 4, 20);
}

TEST(StepDetector, ValidationInMidStepKeepsStepsGrowing) {
  const auto ops = number_all(times("ABCL", 20) + "AB" + times("VWX", 5) + times("ABCL", 20));
  expect_growing(ops);
  expect_steps(ops, 80 + 2 + 15, ops.size(), 4, 21);
}

TEST(StepDetector, ChangeOfPattern) {
  const auto ops = number_all(times("ABCL", 20) + times("DEFGHL", 20));
  expect_growing(ops);
  expect_steps(ops, 0, 80, 4, 0);
  const std::uint64_t step = ops[80 + 6 * 10].step;
  expect_steps(ops, 80 + 6 * 10, ops.size(), 6, step);
  // Ops that were called extras before the new pattern was known may hide its first steps, not add any.
  EXPECT_GE(step, 20 + 10 - 2);
  EXPECT_LE(step, 20 + 10 + 1);
}

// 400 equal shards and another: the shards look like steps until the longer period is known.
TEST(StepDetector, LayersGiveWayToTheStep) {
  for (const std::string& layers : {times("A", 400) + "B", times("AB", 130) + "C", times("ABC", 30) + "D"}) {
    const auto ops = number_all(times(layers, 12));
    expect_growing(ops);
    const std::size_t settled = 3 * layers.size();
    expect_steps(ops, settled, ops.size(), layers.size(), ops[settled].step);
  }
}

// With a loss in it, a short pattern is a step, and a regular visitor an extra.
TEST(StepDetector, BucketAndLossKeepTheirPeriod) {
  std::string letters;
  for (int i = 0; i < 10; i++) letters += times("AL", 50) + "V";
  const auto ops = number_all(letters);
  EXPECT_EQ(ops.back().step, 500u);
  for (std::size_t i = 0; i < ops.size(); i++) ASSERT_EQ(ops[i].extra, letters[i] == 'V') << i;
}

TEST(StepDetector, RandomOpsHaveNoPeriod) {
  std::mt19937_64 random(3);
  StepDetector detector;
  for (int i = 0; i < 20000; i++) EXPECT_FALSE(detector.feed(random() % 50 * 2).confirmed);
}

TEST(StepDetector, Override) {
  const auto ops = number_all("QWERTYUIOPASDFG", 4);
  for (const Numbered& op : ops) EXPECT_TRUE(op.online);
  expect_steps(ops, 0, ops.size(), 4, 0);
  expect_steps(number_all(times("A", 10), 1), 0, 10, 1, 0);
}

TEST(StepDetector, DependsOnTheSequenceAlone) {
  std::mt19937 random(5);
  for (int run = 0; run < 50; run++) {
    std::string letters;
    while (letters.size() < 500)
      letters += times(times("ABC", 1 + static_cast<int>(random() % 3)) + "L", static_cast<int>(random() % 30));
    const auto a = number_all(letters), b = number_all(letters);
    for (std::size_t i = 0; i < a.size(); i++) {
      ASSERT_EQ(a[i].step, b[i].step);
      ASSERT_EQ(a[i].extra, b[i].extra);
    }
    expect_growing(a);
  }
}

// What the two detectors say of one sequence, op by op.
void expect_like_reference(const std::vector<std::uint64_t>& signatures) {
  StepDetector detector;
  test::ReferenceStepDetector reference;
  for (std::size_t i = 0; i < signatures.size(); i++) {
    const StepDetector::Position a = detector.feed(signatures[i]), b = reference.feed(signatures[i]);
    ASSERT_EQ(a.confirmed, b.confirmed) << i;
    ASSERT_EQ(detector.confirmed_now(), reference.confirmed_now()) << i;
    ASSERT_EQ(detector.period(), reference.period()) << i;
    if (detector.confirmed_now()) {
      const auto &c = detector.confirmation(), &d = reference.confirmation();
      ASSERT_EQ(c.first_periodic_op, d.first_periodic_op) << i;
      ASSERT_EQ(c.step_of_first, d.step_of_first) << i;
      ASSERT_EQ(c.step_before, d.step_before) << i;
      ASSERT_EQ(c.again, d.again) << i;
    }
    if (!a.confirmed) continue;
    ASSERT_EQ(a.step, b.step) << i;
    ASSERT_EQ(a.step_op, b.step_op) << i;
    ASSERT_EQ(a.ops_per_step, b.ops_per_step) << i;
    ASSERT_EQ(a.extra, b.extra) << i;
  }
}

TEST(StepDetector, LikeTheReferenceOnRandomOps) {
  std::mt19937 random(13);
  for (const std::string letters : {"AL", "AB", "LM", "ABL", "ABCDLM"}) {
    for (int run = 0; run < 20; run++) {
      std::string sequence;
      for (int i = 0; i < 400; i++) sequence += letters[random() % letters.size()];
      expect_like_reference(test::signatures_of(sequence));
      if (HasFatalFailure()) FAIL() << sequence;
    }
  }
}

// Phases of patterns of all kinds, with extras regular and irregular, as they come.
TEST(StepDetector, LikeTheReferenceOnStructuredSequences) {
  std::mt19937 random(17);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> patterns = {"A",    "L",    "AB",    "AL",        "ABC",       "ABCL", "LABC",
                                             "AAAL", "AALL", "ABABL", "ABCDEFGHI", "ABCDEFGHL", "LM",   "LLLAB"};
  const std::vector<std::string> extras = {"", "L", "M", "LM", "V", "VW", "LMLML", "MMMMMMMMM", "VWXYZVWXYZVW"};
  for (int run = 0; run < 150; run++) {
    std::string sequence = extras[below(extras.size())];
    while (sequence.size() < 1500) {
      const std::string& pattern = patterns[below(patterns.size())];
      const std::string& extra = extras[below(extras.size())];
      const std::size_t every = 1 + below(40), times_in_all = 1 + below(400 / pattern.size());
      const bool regular = random() % 3 != 0;
      for (std::size_t i = 0; i < times_in_all; i++) {
        sequence += pattern;
        if (regular ? i % every == every - 1 : below(every) == 0) sequence += extra;
      }
      if (random() % 3 == 0) sequence += pattern.substr(0, below(pattern.size()));
    }
    expect_like_reference(test::signatures_of(sequence));
    if (HasFatalFailure()) FAIL() << sequence;
  }
}

// Longer than the history: what regular ops leave in it is the same as if each had been looked at.
TEST(StepDetector, LikeTheReferenceBehindLongRegularStretches) {
  for (const std::string regular : {"L", "LM", "A", "ABC", "ABCL", "LABCM"}) {
    for (const int times_in_all : {40, 1365, 1366, 1500, 5000}) {
      for (const std::string& then : {times("AB", 40), times("LAB", 40), times("V", 1),
                                      times("M", 9) + times("ABL", 20), "VWXYZVWXYZVW" + times(regular, 20)}) {
        expect_like_reference(test::signatures_of(times(regular, times_in_all) + then + times(regular + "V", 12)));
        if (HasFatalFailure()) FAIL() << times_in_all << " x " << regular << ", then " << then;
      }
    }
  }
}

TEST(StepDetector, NeverAllocatesAfterConstruction) {
  const auto signatures = test::signatures_of(times("ABCL", 30) + times("VWXYZ", 3) + times("ABCDL", 30));
  StepDetector detector;
  const std::size_t before = allocations;
  for (const std::uint64_t signature : signatures) detector.feed(signature);
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(detector.period(), 5u);
}

TEST(StepSignature, TellsFunctionDatatypeAndCountApart) {
  const std::uint64_t s = step_signature(Function::all_reduce, Datatype::f32, 1000);
  EXPECT_NE(s, step_signature(Function::reduce_scatter, Datatype::f32, 1000));
  EXPECT_NE(s, step_signature(Function::all_reduce, Datatype::bf16, 1000));
  EXPECT_NE(s, step_signature(Function::all_reduce, Datatype::f32, 1001));
  EXPECT_FALSE(signature_is_tiny(s));
  EXPECT_TRUE(signature_is_tiny(step_signature(Function::all_reduce, Datatype::f32, 8)));
  EXPECT_FALSE(signature_is_tiny(step_signature(Function::all_reduce, Datatype::f32, 9)));
}

// Counts that lie close together or are round, with every function and datatype.
TEST(StepSignature, IsDifferentForDifferentCalls) {
  std::vector<std::uint64_t> counts;
  for (std::uint64_t i = 1; i < 500; i++) counts.insert(counts.end(), {i, 1024 * i, i << 30, (1ull << 40) - i});
  for (unsigned bit = 0; bit < 40; bit++) counts.insert(counts.end(), {1ull << bit, 3ull << bit >> 1});
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  std::vector<std::uint64_t> signatures;
  for (unsigned function = 0; function <= 5; function++)
    for (unsigned datatype = 0; datatype <= 11; datatype++)
      for (const std::uint64_t count : counts)
        signatures.push_back(step_signature(static_cast<Function>(function), static_cast<Datatype>(datatype), count));
  std::sort(signatures.begin(), signatures.end());
  EXPECT_EQ(std::unique(signatures.begin(), signatures.end()), signatures.end());
}

}  // namespace
}  // namespace gradprobe
