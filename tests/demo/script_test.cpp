// run_demo.sh as ./run demo starts it, with fewer ranks and steps.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "training_run.hpp"

namespace gradprobe::demo {
namespace {

Outcome demo(const std::string& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> command = {"/bin/bash", GRADPROBE_RUN_DEMO, "--build", GRADPROBE_BUILD_DIR, "--out", out};
  command.insert(command.end(), more.begin(), more.end());
  return run_program(command, {});
}

struct Means {
  double loss_cv = 0, norm_cv = 0, cosine = 0, end = 0;
};

Means means_of(const std::string& rings) {
  const Outcome compare = gradprobe_tool({"compare", "--json", rings});
  EXPECT_EQ(compare.status, 0) << compare.err;
  const auto steps = read_json_lines(compare.out);
  EXPECT_EQ(steps.size(), 24u);
  Means means;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i]["ranks"], 4);
    means.loss_cv += steps[i]["loss_cv"].get<double>() / static_cast<double>(steps.size());
    means.norm_cv += steps[i]["norm_cv"].get<double>() / static_cast<double>(steps.size());
    means.cosine += steps[i]["mean_cosine"].get<double>() / static_cast<double>(steps.size());
    if (i + 10 >= steps.size()) means.end += steps[i]["loss_mean"].get<double>() / 10;
  }
  return means;
}

TEST(Demo, SettingsAreToldApartAndTheCulpritIsNamed) {
  const TemporaryFolder folder;
  const std::string out = folder / "demo";
  const Outcome outcome = demo(out, {"--ranks", "4", "--steps", "24"});
  ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;

  const Means same = means_of(out + "/s1-1");
  const Means shuffle = means_of(out + "/s1-2");
  const Means seeds = means_of(out + "/s1-3");
  EXPECT_EQ(same.loss_cv, 0);
  EXPECT_EQ(same.norm_cv, 0);
  EXPECT_NEAR(same.cosine, 1, 1e-12);
  EXPECT_LT(same.loss_cv, shuffle.loss_cv);
  EXPECT_LT(same.norm_cv, shuffle.norm_cv);
  EXPECT_GT(same.cosine, shuffle.cosine);
  EXPECT_LT(shuffle.loss_cv, seeds.loss_cv);
  EXPECT_LT(shuffle.norm_cv, seeds.norm_cv);
  EXPECT_GT(shuffle.cosine, seeds.cosine);
  EXPECT_LE(std::max({same.end, shuffle.end, seeds.end}), 1.15 * std::min({same.end, shuffle.end, seeds.end}));

  for (const char* words : {"s1-1", "s1-2", "s1-3", "mean cosine", "gradprobe dump"}) {
    EXPECT_GE(count_lines(outcome.out, {words}), 1) << outcome.out;
  }
  EXPECT_EQ(count_lines(outcome.out, {"names", "rank 2", "step 12"}), 1) << outcome.out;
  EXPECT_EQ(read_rings(out + "/nan").size(), 4u);

  const Outcome again = demo(out);
  EXPECT_EQ(again.status, 2);
  EXPECT_EQ(count_lines(again.err, {out, "holds files already"}), 1) << again.err;
  EXPECT_EQ(again.out, "");
}

TEST(Demo, MistakesGetOneLine) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"--out", folder / "file"}, "is not a folder"},
      {{"--out", "/proc/demo"}, "cannot be made"},
      {{"--build", "/nonexistent"}, "build first"},
      {{"--build", "/"}, "build first"},
      {{"--ranks", "1"}, "--ranks 1"},
      {{"--steps", "x"}, "--steps x"},
      {{"--steps"}, "--steps needs a value"},
      {{"--frob"}, "--frob"}};
  for (const auto& [arguments, words] : mistakes) {
    const Outcome outcome = demo(folder / "new", arguments);
    EXPECT_EQ(outcome.status, 2) << words;
    EXPECT_EQ(count_lines(outcome.err, {}), 1) << outcome.err;
    EXPECT_EQ(count_lines(outcome.err, {words}), 1) << outcome.err;
  }
}

}  // namespace
}  // namespace gradprobe::demo
