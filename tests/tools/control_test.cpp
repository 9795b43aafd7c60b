// gradprobe control: what it writes, shows and refuses.
#include <gtest/gtest.h>

#include "run_tool.hpp"

namespace gradprobe::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ControlCommand : public testing::Test {
 protected:
  Outcome control(const Words& options) {
    Words words = {"control", folder_.path()};
    words.insert(words.end(), options.begin(), options.end());
    return run_tool(words);
  }
  std::string file() const { return contents(folder_ / "control"); }
  TemporaryFolder folder_;
};

TEST_F(ControlCommand, WritesWhatIsAskedFor) {
  EXPECT_EQ(control({"off"}).exit_code, 0);
  EXPECT_EQ(file(), "measure=off\n");
  // Others stay; the step belongs to the change.
  EXPECT_EQ(control({"--every", "10", "--from-step", "400"}).exit_code, 0);
  EXPECT_EQ(file(), "measure=off\nevery=10\nfrom_step=400\n");
  EXPECT_EQ(control({"on", "--result-every", "0"}).exit_code, 0);
  EXPECT_EQ(file(), "measure=on\nevery=10\nresult_every=0\n");
  EXPECT_EQ(control({"--every", "1000000000", "--result-every", "1000000000", "--from-step", "18446744073709551615"})
                .exit_code,
            0);
  EXPECT_EQ(file(), "measure=on\nevery=1000000000\nresult_every=1000000000\nfrom_step=18446744073709551615\n");
  // Nothing is left beside it.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()), 1);
}

TEST_F(ControlCommand, ShowsWhatHolds) {
  EXPECT_NE(control({}).out.find("as the processes' environment says"), std::string::npos);
  control({"off", "--from-step", "12"});
  EXPECT_NE(control({}).out.find("nothing is measured, from step 12 on"), std::string::npos) << control({}).out;
  std::ofstream(folder_ / "control") << "# by hand\n\n  every = 4 \r\nresult_every=0\n";
  const std::string shown = control({}).out;
  EXPECT_NE(shown.find("inputs are measured in one step of 4, results are never measured, at once"), std::string::npos)
      << shown;
}

TEST_F(ControlCommand, ResetRemovesIt) {
  control({"off"});
  EXPECT_EQ(control({"--reset"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "control"));
  EXPECT_EQ(control({"--reset"}).exit_code, 0);
}

TEST_F(ControlCommand, RefusesWhatTheReaderWould) {
  for (const char* text : {"colour=red\n", "every=0\n", "every=-1\n", "every=1x\n", "every\n", "measure=maybe\n",
                           "from_step=\n", "every=18446744073709551616\n", "result_every=1000000001\n"}) {
    std::ofstream(folder_ / "control") << text;
    for (const Words& options : {Words{}, {"on"}}) {
      const Outcome o = control(options);
      EXPECT_EQ(o.exit_code, 2) << text;
      EXPECT_NE(o.err.find("line 1"), std::string::npos) << o.err;
      EXPECT_NE(o.err.find("--reset"), std::string::npos) << o.err;
      EXPECT_EQ(file(), text);
    }
  }
  std::ofstream(folder_ / "control") << std::string(5000, '#');
  EXPECT_EQ(control({"on"}).exit_code, 2);
  EXPECT_EQ(control({"--reset"}).exit_code, 0);
  fs::create_directory(folder_ / "control");
  EXPECT_EQ(control({"on"}).exit_code, 2);
}

TEST_F(ControlCommand, WrongUsageIsOneLine) {
  for (const Words& options : {Words{"maybe"},
                               {"--every", "0"},
                               {"--every", "1000000001"},
                               {"--every", "x"},
                               {"--result-every", "-1"},
                               {"--from-step", "5"},
                               {"--reset", "on"},
                               {"--reset", "--every", "3"},
                               {"on", "off"},
                               {"--nonsense"}}) {
    const Outcome o = control(options);
    EXPECT_EQ(o.exit_code, 2) << options[0];
    EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_FALSE(fs::exists(folder_ / "control"));
  }
  EXPECT_EQ(run_tool({"control"}).exit_code, 2);
  EXPECT_EQ(run_tool({"control", folder_ / "none", "on"}).exit_code, 2);
  EXPECT_EQ(run_tool({"control", ""}).exit_code, 2);
}

// A ring folder with a control file is read without a remark about other files.
TEST_F(ControlCommand, IsNoOtherFile) {
  fs::copy_file(GRADPROBE_TEST_DATA "/golden/ring-v1.ring", folder_ / "a.ring");
  control({"off"});
  EXPECT_EQ(run_tool({"compare", folder_.path()}).err, "");
}

}  // namespace
}  // namespace gradprobe::test
