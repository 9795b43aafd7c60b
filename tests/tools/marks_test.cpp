// What the tools make of marks (gradprobe.h).
#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "synthetic_ring.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

const std::string kGolden = GRADPROBE_TEST_DATA "/golden/ring-v1-marks.ring";

std::vector<Json> objects(const Outcome& o) {
  std::vector<Json> all;
  for (const std::string& line : lines(o.out)) all.push_back(Json::parse(line));
  return all;
}

TEST(Marks, DumpShowsThem) {
  const auto o = objects(run_tool({"dump", "--json", kGolden}));
  ASSERT_EQ(o.size(), 8u);
  EXPECT_EQ(o[0]["kind"], "mark");
  EXPECT_EQ(o[0]["mark"], "phase");
  EXPECT_EQ(o[0]["name"], "Aufw\xC3\xA4rmen");
  EXPECT_TRUE(o[0]["value"].is_null());
  EXPECT_EQ(o[1]["mark"], "step");
  EXPECT_EQ(o[1]["number"], 40);
  EXPECT_TRUE(o[1]["name"].is_null());
  EXPECT_EQ(o[3]["step"], 40);
  EXPECT_EQ(o[3]["step_op"], 1);
  EXPECT_TRUE(o[3]["ops_per_step"].is_null());
  EXPECT_EQ(o[4]["mark"], "scalar");
  EXPECT_EQ(o[4]["name"], "loss");
  EXPECT_EQ(o[4]["value"], 0.625);
  EXPECT_EQ(o[4]["step"], 40);
  EXPECT_EQ(o[5]["number"], 7);
  EXPECT_EQ(o[5]["step"], 41);
  EXPECT_EQ(o[7]["value"], "NaN");

  const auto text = lines(run_tool({"dump", kGolden}).out);
  ASSERT_EQ(text.size(), 9u);
  EXPECT_TRUE(text[2].ends_with(" 40")) << text[2];
  EXPECT_TRUE(text[5].ends_with("loss = 0.625")) << text[5];
  EXPECT_EQ(text[1].find("\xC3"), std::string::npos);

  EXPECT_EQ(objects(run_tool({"dump", "--json", "--kind", "mark", kGolden})).size(), 5u);
  EXPECT_EQ(objects(run_tool({"dump", "--json", "--step", "41", kGolden})).size(), 3u);
}

TEST(Marks, InfoCountsThem) {
  const Outcome o = run_tool({"info", kGolden});
  EXPECT_NE(o.out.find("3 collective, 0 step, 0 scalar, 0 result, 5 mark"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("2 lost"), std::string::npos) << o.out;
}

// A run of `kSteps` steps of two buckets and a scalar that is reduced, which is no loss.
constexpr std::uint64_t kSteps = 5;
struct RankSpec {
  bool marks_steps = true;
  bool marks_loss = true;
  std::uint64_t first_step = 100;  // the application's number of the first one
  std::uint64_t late = 0;          // collectives that pass before it marks the next step
  bool finalized = true;
};

double marked_loss(std::uint64_t step, std::uint32_t rank) {
  return 3.0 - 0.25 * static_cast<double>(step) + 0.5 * rank;
}

void write_rank(const TemporaryFolder& folder, std::uint32_t rank, std::uint32_t ranks, const RankSpec& spec) {
  RingSpec shape;
  shape.rank = rank;
  shape.nranks = ranks;
  shape.pid += rank;
  shape.capacity = 64;
  shape.sketch_floats = 0;
  SyntheticRing ring(shape);
  for (std::uint64_t op = 0; op < 3 * kSteps; op++) {
    const std::uint64_t s = op / 3;
    const std::uint64_t in_force = op >= spec.late ? (op - spec.late) / 3 : kNone;
    const std::uint64_t step =
        spec.marks_steps ? (in_force == kNone ? kNone : spec.first_step + in_force) : s;  // as found from the sequence
    const std::uint32_t length = spec.marks_steps ? 0 : 3;
    if (spec.marks_steps && op >= spec.late && (op - spec.late) % 3 == 0)
      ring.append(make_mark(op, step, MarkKind::step, "", 0, step));
    if (spec.marks_loss && op % 3 == 2)
      ring.append(make_mark(op, spec.marks_steps ? step : kNone, MarkKind::scalar, "loss", marked_loss(s, rank)));
    if (spec.marks_loss && op % 3 == 2)
      ring.append(make_mark(op, spec.marks_steps ? step : kNone, MarkKind::scalar, "accuracy", 77));
    ring.append(op % 3 == 2 ? make_scalar(op, step, 2, length, 1000)
                            : make_collective(op, step, static_cast<std::uint32_t>(op % 3), length, 500 + op % 3,
                                              static_cast<double>((s + 1) * (rank + 1))));
  }
  if (spec.finalized) ring.finalize();
  ring.save(folder / ("rank" + std::to_string(rank) + ".ring"));
}

double mean_loss(std::uint64_t step, std::uint32_t ranks) {
  double sum = 0;
  for (std::uint32_t r = 0; r < ranks; r++) sum += marked_loss(step, r);
  return sum / ranks;
}

TEST(Marks, CompareTakesTheMarkedLoss) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 3; r++) write_rank(folder, r, 3, {});
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), kSteps);
  for (std::uint64_t s = 0; s < kSteps; s++) {
    EXPECT_EQ(steps[s]["step"], 100 + s);
    EXPECT_EQ(steps[s]["loss_from"], "mark");
    EXPECT_DOUBLE_EQ(steps[s]["loss_mean"].get<double>(), mean_loss(s, 3));
    EXPECT_DOUBLE_EQ(steps[s]["loss_range"].get<double>(), 1.0);
    EXPECT_EQ(steps[s]["complete"], true);
    EXPECT_EQ(steps[s]["norm_buckets"], 2);
  }
}

TEST(Marks, WithoutThemTheLossIsTheScalar) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 2; r++) write_rank(folder, r, 2, {.marks_loss = false});
  for (const Json& step : objects(run_tool({"compare", "--json", folder.path()}))) {
    EXPECT_EQ(step["loss_from"], "scalar");
    EXPECT_EQ(step["loss_mean"], 1000);
  }
}

// One rank's marked losses are not mixed with what the others reduce.
TEST(Marks, ALossOnSomeRanks) {
  TemporaryFolder folder;
  write_rank(folder, 0, 2, {});
  write_rank(folder, 1, 2, {.marks_loss = false});
  for (const Json& step : objects(run_tool({"compare", "--json", folder.path()}))) {
    EXPECT_EQ(step["loss_from"], "mark");
    EXPECT_NE(step["notes"].dump().find("1 of 2 ranks have a loss"), std::string::npos);
  }
}

// Without step marks a loss belongs to the step of the collective before it.
TEST(Marks, LossesWithoutStepMarks) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 2; r++) write_rank(folder, r, 2, {.marks_steps = false});
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), kSteps);
  for (std::uint64_t s = 0; s < kSteps; s++) EXPECT_EQ(steps[s]["loss_mean"].get<double>(), mean_loss(s, 2)) << s;
}

// The same collectives are compared also where only some ranks mark steps, and it is said.
TEST(Marks, StepsOnSomeRanks) {
  TemporaryFolder folder;
  write_rank(folder, 0, 3, {.marks_steps = false});
  write_rank(folder, 1, 3, {});
  write_rank(folder, 2, 3, {.marks_steps = false});
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), kSteps);
  for (std::uint64_t s = 0; s < kSteps; s++) {
    EXPECT_EQ(steps[s]["step"], 100 + s);
    EXPECT_EQ(steps[s]["ranks"], 3);
    EXPECT_EQ(steps[s]["norm_buckets"], 2);
    EXPECT_DOUBLE_EQ(steps[s]["norm_min"].get<double>(), std::sqrt(2.0 * static_cast<double>(s + 1)));
    EXPECT_DOUBLE_EQ(steps[s]["norm_max"].get<double>(), std::sqrt(6.0 * static_cast<double>(s + 1)));
    EXPECT_EQ(steps[s]["loss_mean"].get<double>(), mean_loss(s, 3)) << s;
  }
  const Outcome summary = run_tool({"compare", "--summary", folder.path()});
  EXPECT_NE(summary.out.find("rank 1 marked steps (gradprobe_step), ranks 0,2 did not"), std::string::npos)
      << summary.out;
}

TEST(Marks, StepsThatDisagree) {
  TemporaryFolder folder;
  write_rank(folder, 0, 2, {});
  write_rank(folder, 1, 2, {.late = 1});
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), kSteps);
  for (const Json& step : steps) EXPECT_EQ(step["norm_buckets"], 2) << step;
  const Outcome summary = run_tool({"compare", "--summary", folder.path()});
  // Its first collective has no step; of the others each third is a step behind.
  EXPECT_NE(summary.out.find("put 4 collective(s) into different steps, first op 3"), std::string::npos) << summary.out;
}

TEST(Marks, EqualMarksOnAllRanksAreNoFinding) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 2; r++) write_rank(folder, r, 2, {});
  EXPECT_EQ(run_tool({"compare", "--summary", folder.path()}).out.find("gradprobe_step)"), std::string::npos);
}

// Whether a marked step is whole isn't known by its length.
TEST(Marks, TheLastStepOfAKilledRunIsIncomplete) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 2; r++) write_rank(folder, r, 2, {.finalized = false});
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), kSteps);
  for (std::uint64_t s = 0; s < kSteps; s++) EXPECT_EQ(steps[s]["complete"], s + 1 < kSteps) << s;
}

}  // namespace
}  // namespace gradprobe::test
