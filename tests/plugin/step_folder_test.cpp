// Step records against sums made here from the same collectives.
#include "step_folder.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include <gradprobe/ring_reader.hpp>

namespace gradprobe {
namespace {

constexpr std::uint32_t kFloats = 256;

class StepFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "gradprobe-fold-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    config_.directory = name;
    config_.default_directory = false;
    config_.ring_mb = 2;
    config_.ring_mb_set = true;
    config_.sketch_floats = kFloats;
    std::string why;
    ring_ = RingWriter::create(config_, RingIdentity{}, &why);
    ASSERT_NE(ring_, nullptr) << why;
  }
  void TearDown() override { std::filesystem::remove_all(config_.directory); }

  static RecordHead bucket(std::uint64_t op, std::uint64_t count, double sum_squares) {
    RecordHead r{};
    r.kind = static_cast<std::uint16_t>(RecordKind::collective);
    r.op = op;
    r.step = kNone;
    r.collective.count = count;
    r.collective.function = static_cast<std::uint8_t>(Function::all_reduce);
    r.collective.datatype = static_cast<std::uint8_t>(Datatype::f32);
    r.collective.sum_squares = sum_squares;
    r.collective.max_abs = std::sqrt(sum_squares);
    r.collective.first_nonfinite = kNone;
    r.collective.gpu_start_ns = 1000 * op;
    r.collective.gpu_end_ns = 1000 * op + 500;
    return r;
  }
  static RecordHead loss(std::uint64_t op, float value) {
    RecordHead r = bucket(op, 1, 0);
    r.kind = static_cast<std::uint16_t>(RecordKind::scalar);
    r.collective.raw_count = 1;
    std::memcpy(r.collective.raw, &value, sizeof value);
    return r;
  }

  std::vector<Record> steps() {
    auto opened = RingReader::open(ring_->path());
    RingCursor cursor(*opened.reader);
    std::vector<Record> out;
    for (Record r; cursor.next(r) == Next::record;)
      if (r.kind() == RecordKind::step) out.push_back(r);
    return out;
  }

  Config config_;
  std::unique_ptr<RingWriter> ring_;
};

TEST_F(StepFolderTest, EveryStepIsFoldedAlsoThoseBeforeThePeriodWasKnown) {
  constexpr std::uint64_t kSteps = 30;
  StepFolder folder(ring_.get(), kFloats, 0);
  std::mt19937 random(5);
  std::uint64_t op = 0;
  std::vector<double> squares(kSteps);
  std::vector<std::vector<float>> sums(kSteps, std::vector<float>(kFloats));
  for (std::uint64_t step = 0; step < kSteps; step++) {
    for (const std::uint64_t count : {100u, 200u, 300u}) {
      std::vector<float> sketch(kFloats);
      for (float& x : sketch) x = static_cast<float>(random() % 1000);  // whole numbers: float sums are exact
      for (std::uint32_t i = 0; i < kFloats; i++) sums[step][i] += sketch[i];
      RecordHead r = bucket(op++, count, static_cast<double>(random() % 1000));
      squares[step] += r.collective.sum_squares;
      folder.feed(&r, sketch.data());
      EXPECT_TRUE(r.step == kNone || r.step == step) << r.step;
    }
    RecordHead r = loss(op++, static_cast<float>(step) + 0.5f);
    folder.feed(&r, nullptr);
  }
  folder.finish();
  const auto found = steps();
  ASSERT_EQ(found.size(), kSteps);
  for (std::uint64_t step = 0; step < kSteps; step++) {
    const StepBody& s = found[step].head.step_body;
    EXPECT_EQ(found[step].head.step, step);
    EXPECT_EQ(s.first_op, step * 4);
    EXPECT_EQ(s.ops, 4u);
    EXPECT_EQ(s.measured, 3u);
    EXPECT_EQ(s.scalars, 1u);
    EXPECT_EQ(s.missed, 0u);
    EXPECT_EQ(s.elements, 600u);
    EXPECT_EQ(s.sum_squares, squares[step]);
    EXPECT_EQ(s.scalar_sum, static_cast<double>(step) + 0.5);
    EXPECT_EQ(s.gpu_start_ns, 4000 * step);
    EXPECT_EQ(s.gpu_end_ns, 4000 * step + 3500);
    EXPECT_EQ(found[step].sketch, sums[step]);
  }
}

TEST_F(StepFolderTest, MissedAndNonFiniteBucketsAreCounted) {
  StepFolder folder(ring_.get(), kFloats, 2);
  const std::vector<float> sketch(kFloats, 1.0f);
  RecordHead bad = bucket(0, 100, 4);
  bad.collective.nan_count = 2;
  bad.collective.inf_count = 1;
  bad.collective.first_nonfinite = 17;
  folder.feed(&bad, sketch.data());
  RecordHead missed = bucket(1, 200, 99);
  missed.missed = static_cast<std::uint16_t>(Missed::timeout);
  folder.feed(&missed, nullptr);
  RecordHead next = bucket(2, 100, 9);
  folder.feed(&next, sketch.data());
  folder.finish();
  const auto found = steps();
  ASSERT_EQ(found.size(), 2u);
  const StepBody& s = found[0].head.step_body;
  EXPECT_EQ(s.nan_count, 2u);
  EXPECT_EQ(s.inf_count, 1u);
  EXPECT_EQ(s.first_bad_op, 0u);
  EXPECT_EQ(s.first_nonfinite, 17u);
  EXPECT_EQ(s.missed, 1u);
  EXPECT_EQ(s.sum_squares, 4.0);
  EXPECT_TRUE(std::isnan(s.scalar_sum));
  EXPECT_EQ(found[1].head.step_body.first_bad_op, kNone);
}

TEST_F(StepFolderTest, ARunWithoutStepsKeepsNothingForEver) {
  StepFolder folder(ring_.get(), kFloats, 0);
  const std::vector<float> sketch(kFloats, 1.0f);
  for (std::uint64_t op = 0; op < 5000; op++) {
    RecordHead r = bucket(op, op * op + 9, 1);  // never the same signature
    folder.feed(&r, sketch.data());
    EXPECT_EQ(r.step, kNone);
    EXPECT_EQ(r.flags & kFlagStepConfirmed, 0u);
  }
  folder.finish();
  EXPECT_TRUE(steps().empty());
}

Mark step_mark(std::uint64_t step) {
  Mark mark;
  mark.kind = MarkKind::step;
  mark.number = mark.step = step;
  return mark;
}

TEST_F(StepFolderTest, MarkedStepsOfAnyLength) {
  StepFolder folder(ring_.get(), kFloats, 0);
  std::uint64_t op = 0;
  RecordHead mark{};
  for (std::uint64_t step = 10; step < 20; step++) {
    mark = RecordHead{};
    folder.mark(step_mark(step), &mark);
    EXPECT_EQ(mark.step, step);
    folder.mark(step_mark(step), &mark);  // said twice
    for (std::uint64_t i = 0; i <= step - 10; i++) {
      RecordHead r = bucket(op++, 100, 1);
      folder.feed(&r, nullptr);
      EXPECT_EQ(r.step, step);
      EXPECT_EQ(r.step_op, i);
      EXPECT_EQ(r.ops_per_step, 0u);
      EXPECT_TRUE((r.flags & kFlagStepConfirmed) != 0);
    }
  }
  folder.finish();
  const auto found = steps();
  ASSERT_EQ(found.size(), 10u);
  for (std::size_t i = 0; i < found.size(); i++) {
    EXPECT_EQ(found[i].head.step, 10 + i);
    EXPECT_EQ(found[i].head.step_body.ops, i + 1);
  }
}

// A step that was found and one that is marked are two, whatever their numbers.
TEST_F(StepFolderTest, TheFirstMarkEndsAFoundStep) {
  StepFolder folder(ring_.get(), kFloats, 3);
  for (std::uint64_t op = 0; op < 8; op++) {
    RecordHead r = bucket(op, 100, 1);
    folder.feed(&r, nullptr);
  }
  RecordHead mark{};
  folder.mark(step_mark(2), &mark);
  RecordHead r = bucket(8, 100, 1);
  folder.feed(&r, nullptr);
  EXPECT_EQ(r.step, 2u);
  folder.finish();
  const auto found = steps();
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[2].head.step_body.ops, 2u);
  EXPECT_EQ(found[3].head.step_body.ops, 1u);
}

// What graphs replay has no place among marks: steps are found again, behind the marked ones.
TEST_F(StepFolderTest, ReplaysEndMarkedSteps) {
  StepFolder folder(ring_.get(), kFloats, 0);
  RecordHead mark{};
  folder.mark(step_mark(5), &mark);
  RecordHead eager = bucket(0, 100, 1);
  folder.feed(&eager, nullptr);
  EXPECT_EQ(eager.step, 5u);
  std::uint64_t last = 5;
  for (std::uint32_t replay = 1; replay <= 30; replay++) {
    mark = RecordHead{};
    folder.mark(step_mark(5 + replay / 2), &mark);  // too early or too late: nobody knows
    EXPECT_TRUE(replay == 1 || mark.step == kNone);
    for (std::uint64_t op = 1; op <= 3; op++) {
      RecordHead r = bucket(op, 100 + op, 1);
      r.flags = kFlagCaptured;
      r.replay = replay;
      folder.feed(&r, nullptr);
      if (r.step == kNone) continue;
      last = r.step;
      EXPECT_EQ(r.step, 5 + replay);
    }
  }
  EXPECT_EQ(last, 35u);
  folder.finish();
  const auto found = steps();
  ASSERT_EQ(found.size(), 31u);
  for (std::size_t i = 0; i < found.size(); i++) EXPECT_EQ(found[i].head.step, 5 + i);
}

}  // namespace
}  // namespace gradprobe
