// Wrong usage, unusable input and output: exit codes and the one line that says why.
#include <gtest/gtest.h>

#include "run_tool.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

const std::string kGolden = GRADPROBE_TEST_DATA "/golden/ring-v1.ring";

void expect_error(const std::vector<std::string>& arguments, const std::string& part) {
  const Outcome o = run_tool(arguments);
  EXPECT_EQ(o.exit_code, 2) << o.out << o.err;
  EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
  EXPECT_EQ(o.err.rfind("gradprobe: ", 0), 0u) << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("; "), std::string::npos) << o.err;
}

TEST(CommandLine, Errors) {
  TemporaryFolder folder;
  expect_error({}, "no command");
  expect_error({"frobnicate"}, "frobnicate");
  expect_error({"dump"}, "path");
  expect_error({"dump", folder / "none.ring"}, "none.ring: can't open");
  expect_error({"dump", folder.path()}, folder.path() + ": no ring files");
  std::ofstream(folder / "broken.ring") << "hello, this is no ring";
  expect_error({"dump", folder.path()}, "broken.ring: not a gradprobe ring");
  expect_error({"dump", "/dev/null"}, "/dev/null: not a regular file");
  expect_error({"dump", "--kind", "sketch", kGolden}, "--kind");
  expect_error({"dump", "--rank", "x", kGolden}, "--rank");
  expect_error({"dump", "--rank", "-1", kGolden}, "--rank");
  expect_error({"dump", "--rank", "5", kGolden}, "no ring of the rank");
  for (const char* range : {"x", "3:2", ":", "1:2:3", "-1", "1:x", ""}) {
    expect_error({"dump", "--step", range, kGolden}, "--step");
  }
  expect_error({"dump", "--sketch", kGolden}, "--sketch needs --json");
  expect_error({"dump", "--nonsense", kGolden}, "nonsense");
  expect_error({"info", folder / "none.ring"}, "none.ring");
  expect_error({"compare", folder / "none"}, "none");
}

TEST(CommandLine, HelpAndVersion) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"dump", "--help"}, {"info", "--help"}, {"compare", "--help"}}) {
    const Outcome o = run_tool(arguments);
    EXPECT_EQ(o.exit_code, 0);
    EXPECT_NE(o.out.find("Exit codes"), std::string::npos);
  }
  EXPECT_EQ(run_tool({"--version"}).out.rfind("gradprobe ", 0), 0u);
}

TEST(Output, FullDiskIsAnError) {
  Tool tool({"dump", kGolden}, "/dev/full");
  const Outcome o = tool.wait();
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_NE(o.err.find("standard output: can't write"), std::string::npos) << o.err;
}

TEST(Output, ClosedPipeEndsQuietly) {
  TemporaryFolder folder, results;
  TrainingSpec spec;
  spec.steps = 100;
  TrainingRun(spec).write(folder);
  const std::string command = std::string(GRADPROBE_TOOL) + " dump --json --sketch " + folder.path() + " 2>" +
                              (results / "err") + "; echo $? >" + (results / "code");
  FILE* pipe = popen(("( " + command + " ) | head -n 1 >/dev/null").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  pclose(pipe);
  EXPECT_EQ(contents(results / "code"), "0\n");
  EXPECT_EQ(contents(results / "err"), "");
}

}  // namespace
}  // namespace gradprobe::test
