// Ranks whose gradients are the same, nearly the same, or the same but for their size.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

std::vector<Json> compare(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"compare", "--json"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Outcome o = run_tool(all);
  EXPECT_EQ(o.exit_code, 0) << o.err;
  std::vector<Json> objects;
  for (const std::string& line : lines(o.out)) objects.push_back(Json::parse(line));
  return objects;
}

std::string text(const TemporaryFolder& folder) {
  const Outcome o = run_tool({"compare", folder.path()});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  return o.out;
}

void expect_part(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << part << "\nis not in\n" << whole;
}

TEST(Compare, IdenticalGradients) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.identical = true;
  TrainingRun run(spec);
  run.write(folder);
  for (const Json& j : compare({folder.path()})) {
    EXPECT_EQ(j["mean_cosine"], 1.0);
    EXPECT_EQ(j["cosine_low"], 1.0);
    EXPECT_EQ(j["cosine_high"], 1.0);
    EXPECT_EQ(j["norm_cv"], 0.0);
    EXPECT_EQ(j["loss_cv"], 0.0);
    EXPECT_EQ(j["identical"], Json::array({{0, 1, 2, 3}}));
  }
  expect_part(text(folder),
              "ranks 0-3 computed identical gradients, to the last bit, in every step compared (6): same data "
              "and same seed");
}

TEST(Compare, DifferentGradientsAreNotCalledIdentical) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  EXPECT_EQ(text(folder).find("identical"), std::string::npos);
}

// The findings about equal gradients, by kind: {"identical"}, {"same_direction"}, ...
std::vector<std::string> kinds(const TrainingSpec& spec, std::string& texts) {
  TemporaryFolder folder;
  TrainingRun(spec).write(folder);
  std::vector<std::string> found;
  const std::vector<Json> summaries = compare({folder.path(), "--summary"});
  for (const Json& finding : summaries.at(0)["findings"]) {
    found.push_back(finding["kind"]);
    texts += finding["text"].get<std::string>() + "\n";
  }
  return found;
}

using Kinds = std::vector<std::string>;

TEST(SameGradients, OfDifferentSizeAreNotCalledIdentical) {
  for (const double factor : {2.0, 1.01, 0.125, 1.0 / 3, 1.005}) {
    for (const double rounding : {0.0, 1e-7, 1e-4}) {
      TrainingSpec spec;
      spec.identical = true;
      spec.ranks = 2;
      spec.scale = {1, factor};
      spec.rounding = rounding;
      std::string texts;
      EXPECT_EQ(kinds(spec, texts), Kinds{"same_direction"}) << factor << " " << rounding << "\n" << texts;
      expect_part(texts, "different size in 6 of 6 steps (first: 0): do loss scale, gradient accumulation or batch");
      EXPECT_EQ(texts.find("identical"), std::string::npos) << texts;
    }
  }
}

TEST(SameGradients, ButForRounding) {
  for (const double rounding : {1e-15, 1e-9, 1e-7, 1e-5, 1e-3}) {
    TrainingSpec spec;
    spec.identical = true;
    spec.rounding = rounding;
    std::string texts;
    EXPECT_EQ(kinds(spec, texts), Kinds{"identical"}) << rounding << "\n" << texts;
    expect_part(texts, "nearly identical gradients (every cosine above 0.9999, equal norms) in 6 of 6 steps");
  }
}

TEST(SameGradients, ScaledByLessThanAThousandthAreNearlyIdentical) {
  TrainingSpec spec;
  spec.identical = true;
  spec.ranks = 2;
  spec.scale = {1, 1.0005};
  std::string texts;
  EXPECT_EQ(kinds(spec, texts), Kinds{"identical"}) << texts;
  expect_part(texts, "nearly identical");
}

// Two and two are equal to the last bit, and all four but for rounding.
TEST(SameGradients, InTwoGroups) {
  TrainingSpec spec;
  spec.identical = true;
  spec.scale = {1, 1, 1 + 1e-6, 1 + 1e-6};
  std::string texts;
  EXPECT_EQ(kinds(spec, texts), (Kinds{"identical", "identical", "identical"})) << texts;
  expect_part(texts, "ranks 0-1 computed identical gradients, to the last bit");
  expect_part(texts, "ranks 2-3 computed identical gradients, to the last bit");
  expect_part(texts, "all ranks computed nearly identical gradients");
}

TEST(SameGradients, OneRankOfAnotherSizeAmongEquals) {
  TrainingSpec spec;
  spec.identical = true;
  spec.scale = {1, 1, 2, 1};
  std::string texts;
  EXPECT_EQ(kinds(spec, texts), (Kinds{"identical", "same_direction"})) << texts;
  expect_part(texts, "ranks 0-1,3 computed identical gradients, to the last bit");
}

// One rank in many hardly shows in the norms' CV.
TEST(SameGradients, OneRankOfSlightlyAnotherSizeAmongMany) {
  TrainingSpec spec;
  spec.identical = true;
  spec.ranks = 16;
  spec.scale.assign(16, 1);
  spec.scale[5] = 1.003;
  std::string texts;
  EXPECT_EQ(kinds(spec, texts), (Kinds{"identical", "same_direction"})) << texts;
}

TEST(SameGradients, DifferentOnesOfAnySizeAreNoFinding) {
  for (const double common : {0.0, 0.5, 0.99}) {
    TrainingSpec spec;
    spec.common = common;
    spec.scale = {1, 2, 1, 1};
    std::string texts;
    EXPECT_EQ(kinds(spec, texts), Kinds{}) << common << "\n" << texts;
  }
}

TEST(SameGradients, OppositeOnesAreNoFinding) {
  TrainingSpec spec;
  spec.identical = true;
  spec.ranks = 2;
  spec.scale = {1, -1};
  std::string texts;
  EXPECT_EQ(kinds(spec, texts), Kinds{}) << texts;
}

}  // namespace
}  // namespace gradprobe::test
