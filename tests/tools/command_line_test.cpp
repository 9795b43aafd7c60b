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
  for (const char* rank :
       {"", " ", "x", "-1", "+1", "0x1", "1,", ",1", "1,,2", ",", "1 2", "{}", "[]", "1.0", "4294967296"}) {
    expect_error({"dump", "--rank", rank, kGolden}, "--rank");
    expect_error({"dump", std::string("--rank=") + rank, kGolden}, "--rank");
  }
  for (const char* command : {"dump", "info", "compare"}) expect_error({command, ""}, "path");
  expect_error({"compare", "--comm", "", kGolden}, "--comm");
  expect_error({"dump", "--kind", "", kGolden}, "--kind");
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
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"dump", "--help"},
                                                    {"info", "--help"},
                                                    {"compare", "--help"},
                                                    {"doctor", "--help"},
                                                    {"run", "--help"},
                                                    {"control", "--help"}}) {
    const Outcome o = run_tool(arguments);
    EXPECT_EQ(o.exit_code, 0);
    EXPECT_NE(o.out.find("Exit codes"), std::string::npos);
  }
  EXPECT_EQ(run_tool({"--version"}).out.rfind("gradprobe ", 0), 0u);
}

// Whatever prints to stdout, in few lines or many.
std::vector<std::vector<std::string>> commands_with_output() {
  return {{"--version"},
          {"--help"},
          {"dump", "--help"},
          {"dump", kGolden},
          {"dump", "--json", "--sketch", kGolden},
          {"dump", "--follow", kGolden},
          {"info", kGolden},
          {"compare", kGolden},
          {"compare", "--json", "--summary", kGolden}};
}

TEST(Output, ThatCannotBeWrittenIsAnError) {
  for (const auto& arguments : commands_with_output()) {
    const Outcome full = Tool(arguments, "/dev/full").wait();
    EXPECT_EQ(full.exit_code, 2) << arguments[0];
    EXPECT_EQ(full.err, "gradprobe: standard output: can't write: No space left on device; free space there\n");
    const Outcome closed = Tool(arguments, kClosed).wait();
    EXPECT_EQ(closed.exit_code, 2) << arguments[0];
    EXPECT_NE(closed.err.find("standard output: can't write: Bad file descriptor; it is closed"), std::string::npos)
        << closed.err;
    EXPECT_EQ(lines(closed.err).size(), 1u) << closed.err;
  }
}

TEST(Output, OfDoctorAndControlThatCannotBeWrittenIsAnError) {
  TemporaryFolder folder;
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"doctor"}, {"doctor", "--json"}, {"control", folder.path()}}) {
    for (const std::string& unwritable : {std::string("/dev/full"), kClosed}) {
      const Outcome o = Tool(arguments, unwritable).wait();
      EXPECT_EQ(o.exit_code, 2) << arguments[0];
      EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
    }
  }
}

// Notes and errors that nobody can read change neither the output nor the exit code.
TEST(Output, NotesThatCannotBeWrittenAreLost) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  std::ofstream(folder / "broken.ring") << "hello, this is no ring";
  std::vector<std::vector<std::string>> commands = commands_with_output();
  for (const char* command : {"dump", "info", "compare"}) {
    commands.push_back({command, folder.path()});
    commands.push_back({command, folder / "none.ring"});
    commands.push_back({command});
    commands.push_back({command, "--nonsense"});
  }
  commands.push_back({});
  commands.push_back({"dump", "--rank", "99", kGolden});
  for (const auto& arguments : commands) {
    const Outcome expected = run_tool(arguments);
    for (const std::string& unwritable : {std::string("/dev/full"), kClosed}) {
      const Outcome o = Tool(arguments, "", unwritable).wait();
      EXPECT_EQ(o.exit_code, expected.exit_code) << (arguments.empty() ? "" : arguments[0]) << " " << unwritable;
      EXPECT_EQ(o.out, expected.out);
      EXPECT_EQ(Tool(arguments, "/dev/full", unwritable).wait().exit_code, 2);
      EXPECT_EQ(Tool(arguments, kClosed, unwritable).wait().exit_code, 2);
    }
  }
}

TEST(CommandLine, AdviceFitsTheError) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("loop.ring", folder / "loop.ring");
  std::ofstream(folder / "file") << "x";
  for (const char* command : {"dump", "info", "compare"}) {
    expect_error({command, folder / "loop.ring"}, "Too many levels of symbolic links; check the path");
    expect_error({command, folder / "file/a.ring"}, "Not a directory; check the path");
    expect_error({command, folder / std::string(300, 'x')}, "File name too long; check the path");
  }
  if (geteuid() != 0) {  // root may read everything
    std::filesystem::permissions(folder / "file", std::filesystem::perms::none);
    expect_error({"dump", folder / "file"}, "Permission denied; run as the user who wrote it");
  }
}

// Everything that names a file, in every place: notes about skipped and damaged files, errors, findings, JSON.
TEST(CommandLine, FileNamesAreMadePrintable) {
  const std::string evil = "a\x1b[31m\r\n\x07\x7f\xc2\x9b\xff";
  TemporaryFolder folder;
  TrainingSpec spec;
  TrainingRun(spec).write(folder, evil);
  spec.start_time_ns += 1'000'000'000;
  TrainingRun later(spec);
  later.write(folder, "later-" + evil);
  SyntheticRing damaged = later.ring(1);
  damaged.bytes()[damaged.slot(4) + 300] ^= 1;
  damaged.save(later.path(folder, 1, "later-" + evil));
  std::ofstream(folder / (evil + ".ring")) << "hello, this is no ring";
  std::filesystem::create_directory(folder / evil);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"dump", folder.path()},
                                             {"dump", "--follow", folder.path()},
                                             {"info", folder.path()},
                                             {"compare", folder.path()},
                                             {"compare", "--json", "--summary", folder.path()},
                                             {"dump", folder / (evil + ".ring")},
                                             {"info", folder / evil},
                                             {"compare", folder / ("none" + evil)},
                                             {"dump", "--rank", "77", folder.path()},
                                             {"dump", "--kind", evil, folder.path()},
                                             {"dump", "--rank", evil, folder.path()},
                                             {"dump", "--step", evil, folder.path()},
                                             {"compare", "--comm", evil, folder.path()},
                                             {"compare", "--" + evil},
                                             {evil}}) {
    const Outcome o = run_tool(arguments);
    EXPECT_FALSE(o.out.empty() && o.err.empty()) << arguments[0];
    for (const char c : o.out + o.err) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << o.out << o.err;
    for (const std::string& line : lines(o.err)) EXPECT_EQ(line.rfind("gradprobe: ", 0), 0u) << o.err;
  }
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
