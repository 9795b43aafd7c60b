// gradprobe run: the command is run as if it had been started directly, in surroundings that measure it.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "installation.hpp"

namespace gradprobe::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class RunCommand : public testing::Test {
 protected:
  Surroundings around(const Words& environment = {}) {
    Surroundings s;
    s.program = installed_.tool();
    s.environment = neutral_environment();
    s.environment.insert(s.environment.end(), environment.begin(), environment.end());
    s.folder = folder_.path();
    return s;
  }
  Outcome run(const Words& options, const Words& command, const Words& environment = {}) {
    return run_tool(words(options, command), around(environment));
  }
  static Words words(const Words& options, const Words& command) {
    Words all = {"run"};
    all.insert(all.end(), options.begin(), options.end());
    all.emplace_back("--");
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  // The command's environment, as it printed it.
  static std::string variable(const Outcome& o, const std::string& name) {
    for (const std::string& line : lines(o.out))
      if (line.rfind(name + "=", 0) == 0) return line.substr(name.size() + 1);
    return "(unset)";
  }

  Installation installed_;
  TemporaryFolder folder_;
};

TEST_F(RunCommand, EndsWithTheCommandsExitCode) {
  EXPECT_EQ(run({"--quiet"}, {"true"}).exit_code, 0);
  EXPECT_EQ(run({"--quiet"}, {"sh", "-c", "exit 7"}).exit_code, 7);
  EXPECT_EQ(run({"--quiet"}, {"sh", "-c", "kill -9 $$"}).exit_code, 128 + SIGKILL);
  EXPECT_EQ(run({"--quiet"}, {"sh", "-c", "kill -SEGV $$"}).exit_code, 128 + SIGSEGV);
  EXPECT_EQ(run({}, {"nosuchcommand"}).exit_code, 127);
  EXPECT_EQ(run({}, {"/nonexistent/command"}).exit_code, 127);
  std::ofstream(folder_ / "plain") << "x";
  EXPECT_EQ(run({}, {folder_ / "plain"}).exit_code, 126);
  EXPECT_EQ(run({}, {folder_.path()}).exit_code, 126);
  // A run that never began leaves no folder behind.
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "gradprobe-runs")) left += entry.is_directory() ? 1u : 0u;
  EXPECT_EQ(left, 4u);
}

TEST_F(RunCommand, WrongUsageRunsNothing) {
  for (const Words& all : {Words{"run"},
                           {"run", "--"},
                           {"run", "true"},
                           {"run", "--nonsense", "--", "touch", "mark"},
                           {"run", "--every", "0", "--", "touch", "mark"},
                           {"run", "--sketch", "7", "--", "touch", "mark"},
                           {"run", "--comms", "size~3", "--", "touch", "mark"},
                           {"run", "--dir", "", "--", "touch", "mark"}}) {
    const Outcome o = run_tool(all, around());
    EXPECT_EQ(o.exit_code, 2) << all.back();
    EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
    EXPECT_FALSE(fs::exists(folder_ / "mark"));
  }
  const Installation bare(true, false);
  Surroundings without = around();
  without.program = bare.tool();
  EXPECT_EQ(run_tool(words({"--preload"}, {"touch", "mark"}), without).exit_code, 2);
  fs::remove(bare.plugin());
  EXPECT_EQ(run_tool(words({}, {"touch", "mark"}), without).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "mark"));
}

TEST_F(RunCommand, SetsTheEnvironment) {
  const Outcome plain = run({"--quiet"}, {"env"});
  EXPECT_EQ(variable(plain, "NCCL_PROFILER_PLUGIN"), installed_.plugin());
  EXPECT_EQ(variable(plain, "GRADPROBE_DIR").rfind(fs::canonical(folder_.path()).string() + "/gradprobe-runs/", 0), 0u)
      << plain.out;
  EXPECT_EQ(variable(plain, "LD_LIBRARY_PATH"), kStandin);
  EXPECT_EQ(variable(plain, "LD_PRELOAD"), "(unset)");
  EXPECT_NE(plain.err.find("this run is recorded in " + variable(plain, "GRADPROBE_DIR")), std::string::npos)
      << plain.err;

#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's library must come before preloaded ones";
#endif
  const Outcome all =
      run({"--quiet", "--dir",     "there",  "--every",       "5",         "--result-every", "10",       "--sketch",
           "512",     "--comms",   "size>2", "--collectives", "allreduce", "--dtypes",       "bf16,f32", "--min-count",
           "4096",    "--ring-mb", "8",      "--job",         "j",         "--preload"},
          {"env"}, {"LD_PRELOAD=" + kDoctorFiles + "/plugins/libnccl-profiler-other.so"});
  EXPECT_EQ(variable(all, "GRADPROBE_DIR"), (fs::canonical(folder_.path()) / "there").string());
  EXPECT_EQ(fs::status(folder_ / "there").permissions(), fs::perms::owner_all);
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"GRADPROBE_EVERY", "5"},
                                                        {"GRADPROBE_RESULT_EVERY", "10"},
                                                        {"GRADPROBE_SKETCH", "512"},
                                                        {"GRADPROBE_COMMS", "size>2"},
                                                        {"GRADPROBE_COLLECTIVES", "allreduce"},
                                                        {"GRADPROBE_DTYPES", "bf16,f32"},
                                                        {"GRADPROBE_MIN_COUNT", "4096"},
                                                        {"GRADPROBE_RING_MB", "8"},
                                                        {"GRADPROBE_JOB", "j"}})
    EXPECT_EQ(variable(all, name), value);
  EXPECT_EQ(variable(all, "LD_PRELOAD"), kDoctorFiles + "/plugins/libnccl-profiler-other.so:" + installed_.preload());
}

// A path that NCCL would cut off is replaced by the name, which the search path then finds.
TEST_F(RunCommand, AvoidsPathsThatNcclCutsOff) {
  const Installation deep(true, false, "/" + std::string(120, 'a') + "/" + std::string(120, 'b'));
  Surroundings there = around();
  there.program = deep.tool();
  const Outcome o = run_tool(words({"--quiet"}, {"env"}), there);
  EXPECT_EQ(variable(o, "NCCL_PROFILER_PLUGIN"), kPluginName);
  EXPECT_EQ(variable(o, "LD_LIBRARY_PATH"), fs::path(deep.plugin()).parent_path().string() + ":" + kStandin);
}

TEST_F(RunCommand, KeepsAnotherPluginWhenAsked) {
  const std::string other = kDoctorFiles + "/plugins/libnccl-profiler-other.so";
  const Outcome replaced = run({"--quiet"}, {"env"}, {"NCCL_PROFILER_PLUGIN=" + other});
  EXPECT_EQ(variable(replaced, "NCCL_PROFILER_PLUGIN"), installed_.plugin());
  EXPECT_EQ(variable(replaced, "GRADPROBE_CHAIN"), "(unset)");
  EXPECT_NE(replaced.err.find("--chain keeps both"), std::string::npos) << replaced.err;
  const Outcome chained = run({"--quiet", "--chain"}, {"env"},
                              {"NCCL_PROFILER_PLUGIN=other", "LD_LIBRARY_PATH=" + kDoctorFiles + "/plugins"});
  EXPECT_EQ(variable(chained, "GRADPROBE_CHAIN"), other);
  EXPECT_NE(chained.err.find(other), std::string::npos) << chained.err;
  EXPECT_EQ(run({"--chain"}, {"env"}, {"NCCL_PROFILER_PLUGIN=missing"}).exit_code, 2);
  for (const std::string& ours : {std::string("gradprobe"), installed_.plugin()})
    EXPECT_EQ(lines(run({"--quiet", "--chain"}, {"true"}, {"NCCL_PROFILER_PLUGIN=" + ours}).err).size(), 1u);
}

TEST_F(RunCommand, NeverMixesTwoRuns) {
  fs::create_directory(folder_ / "empty");
  EXPECT_EQ(run({"--quiet", "--dir", "empty"}, {"true"}).exit_code, 0);
  // Prepared settings are welcome.
  std::ofstream(folder_ / "empty/control") << "every=10\n";
  EXPECT_EQ(run({"--quiet"}, {"true"}, {"GRADPROBE_DIR=" + (folder_ / "empty")}).exit_code, 0);
  std::ofstream(folder_ / "empty/a.ring") << "x";
  for (const Words& options : {Words{"--dir", "empty"}, {"--dir", folder_ / "empty/"}}) {
    const Outcome o = run(options, {"touch", "mark"});
    EXPECT_EQ(o.exit_code, 2);
    EXPECT_NE(o.err.find("holds 1 file(s) already"), std::string::npos) << o.err;
  }
  EXPECT_EQ(run({}, {"touch", "mark"}, {"GRADPROBE_DIR=empty"}).exit_code, 2);
  EXPECT_EQ(run({"--dir", "empty/a.ring"}, {"touch", "mark"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "mark"));
}

TEST_F(RunCommand, RanksShareAFolder) {
  const Words second = {"RANK=1", "WORLD_SIZE=2"}, first = {"RANK=0", "WORLD_SIZE=2"};
  std::filesystem::create_directory(folder_ / "job");
  std::ofstream(folder_ / "job/other-rank.ring") << "x";
  const Outcome quiet = run({"--dir", "job"}, {"true"}, second);
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.err, "");
  EXPECT_NE(run({"--dir", "job"}, {"true"}, first).err.find("recorded in"), std::string::npos);
  // Without a folder, the job's name must be one for all its ranks and for no other job.
  const Outcome none = run({}, {"touch", "mark"}, second);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("--dir"), std::string::npos) << none.err;
  EXPECT_EQ(run({}, {"touch", "mark"}, {"RANK=1", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "mark"));
  for (const Words& launcher : {Words{"RANK=1", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=abc"},
                                {"RANK=0", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=abc"},
                                {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=abc"}}) {
    EXPECT_EQ(variable(run({"--quiet"}, {"env"}, launcher), "GRADPROBE_DIR"),
              fs::canonical(folder_.path()).string() + "/gradprobe-runs/abc");
  }
  const Words task = {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=4", "SLURM_JOB_ID=9", "SLURM_STEP_ID=3"};
  EXPECT_EQ(variable(run({"--quiet"}, {"env"}, task), "GRADPROBE_DIR"),
            fs::canonical(folder_.path()).string() + "/gradprobe-runs/slurm-9.3");
}

TEST_F(RunCommand, LeavesOutputAndInputToTheCommand) {
  const Outcome o = run({}, {"sh", "-c", "echo one; echo two >&2"});
  EXPECT_EQ(o.out, "one\n");
  EXPECT_NE(o.err.find("two\n"), std::string::npos);
  EXPECT_NE(o.err.find("nothing was recorded"), std::string::npos) << o.err;
  // Signals have the dispositions that they would have had.
  const Words status = {"grep", "-E", "^(SigBlk|SigIgn|SigCgt)", "/proc/self/status"};
  Surroundings direct = around();
  direct.program = "/bin/grep";
  EXPECT_EQ(run({"--quiet"}, status).out, run_tool({status.begin() + 1, status.end()}, direct).out);
  // A launcher that ignores SIGCHLD hands that down.
  signal(SIGCHLD, SIG_IGN);
  Tool heir(words({"--quiet"}, {"sh", "-c", "exit 7"}), "", "", around());
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(heir.wait().exit_code, 7);
}

TEST_F(RunCommand, PassesSignalsOn) {
  for (const auto& [name, number] : std::vector<std::pair<std::string, int>>{{"TERM", SIGTERM},
                                                                             {"INT", SIGINT},
                                                                             {"HUP", SIGHUP},
                                                                             {"QUIT", SIGQUIT},
                                                                             {"USR1", SIGUSR1},
                                                                             {"USR2", SIGUSR2}}) {
    Tool tool(words({"--quiet"},
                    {"sh", "-c", "trap 'echo got; exit 3' " + name + "; echo ready; while :; do sleep 0.05; done"}),
              "", "", around());
    ASSERT_TRUE(tool.printed("ready"));
    tool.signal(number);
    const Outcome o = tool.wait();
    EXPECT_EQ(o.exit_code, 3) << name << o.err;
    EXPECT_EQ(o.out, "ready\ngot\n");
  }
  Tool dies(words({"--quiet"}, {"sh", "-c", "echo ready; exec sleep 60"}), "", "", around());
  ASSERT_TRUE(dies.printed("ready"));
  dies.signal(SIGTERM);
  EXPECT_EQ(dies.wait().exit_code, 128 + SIGTERM);
}

// A key typed at the terminal reaches the whole process group; passed on as well it would come twice.
TEST_F(RunCommand, TerminalSignalsArriveOnce) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const std::string name = ptsname(terminal);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    setsid();
    const int fd = open(name.c_str(), O_RDWR);  // becomes the session's terminal
    for (const int standard : {0, 1, 2}) dup2(fd, standard);
    const std::string tool = installed_.tool(), folder = folder_ / "rings", command = kDoctorFiles + "/bin/lacks";
    execl(tool.c_str(), tool.c_str(), "run", "--quiet", "--dir", folder.c_str(), "--", command.c_str(), "count",
          nullptr);
    _exit(127);
  }
  // What the terminal shows, until the command is there.
  std::string shown;
  char buffer[512];
  for (ssize_t n = 0; shown.find("ready") == std::string::npos && (n = read(terminal, buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<std::size_t>(n));
  constexpr int kKeys = 10;
  for (int i = 0; i < kKeys; i++) {
    EXPECT_EQ(write(terminal, "\x03", 1), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(pid, SIGTERM);
  int status = 0;
  waitpid(pid, &status, 0);
  close(terminal);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_GE(WEXITSTATUS(status), 1) << shown;
  EXPECT_LE(WEXITSTATUS(status), kKeys) << shown;
}

TEST_F(RunCommand, NeverEndsBeforeTheCommand) {
  Tool tool(words({"--quiet"},
                  {"sh", "-c", "trap '' TERM INT; echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done"}),
            "", "", around());
  ASSERT_TRUE(tool.printed("ready"));
  tool.signal(SIGTERM);
  tool.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(kill(tool.pid(), 0), 0);
  std::ofstream(folder_ / "go");
  const Outcome o = tool.wait();
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.out, "ready\ndone\n");
}

// What kills the tool outright must not leave the training behind, with the devices' memory.
TEST_F(RunCommand, CommandDiesWithTheTool) {
  Tool tool(words({"--quiet"}, {"sh", "-c", "echo pid $$; exec sleep 60"}), "", "", around());
  ASSERT_TRUE(tool.printed("\n"));
  const pid_t command = std::stoi(tool.output_so_far().substr(4));
  tool.signal(SIGKILL);
  tool.wait();
  const auto gone = [&] {
    std::string state;
    std::ifstream in("/proc/" + std::to_string(command) + "/stat");
    std::string word;
    return !(in >> word >> word >> state) || state == "Z";  // a container may have nobody who reaps it
  };
  for (int i = 0; i < 1000 && !gone(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(gone());
}

TEST_F(RunCommand, PrintsTheComparisonOfATraining) {
  const Outcome o =
      run({"--dir", "rings", "--ring-mb", "1"}, {GRADPROBE_DEMO_TRAIN, "--ranks", "2", "--steps", "4", "--quiet"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "");
  const Outcome compared = run_tool({"compare", "--summary", folder_ / "rings"}, around());
  EXPECT_NE(compared.out.find("2 of 2 ranks"), std::string::npos) << compared.out;
  EXPECT_NE(compared.out.find("4 step(s)"), std::string::npos) << compared.out;
  EXPECT_NE(o.err.find(compared.out), std::string::npos) << o.err << "\n---\n" << compared.out;
  // A second run can't join the first.
  EXPECT_EQ(run({"--dir", "rings"}, {GRADPROBE_DEMO_TRAIN, "--ranks", "2", "--steps", "2"}).exit_code, 2);
}

// An NCCL that a profiler plugin can't measure with: nothing but the advice, and then what is advised.
TEST_F(RunCommand, MeasuresAnOlderNcclAsAdvised) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's library must come before preloaded ones";
#endif
  Surroundings real = around({"STANDIN_NCCL_VERSION=2.27.7"});
  real.program = GRADPROBE_TOOL;
  const Words training = {GRADPROBE_DEMO_TRAIN, "--ranks", "2", "--steps", "3", "--quiet"};
  const Outcome without = run_tool(words({"--dir", "without"}, training), real);
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_NE(without.err.find("gradprobe run --preload"), std::string::npos) << without.err;
  const Outcome with = run_tool(words({"--dir", "with", "--preload"}, training), real);
  EXPECT_EQ(with.exit_code, 0);
  EXPECT_NE(with.err.find("3 step(s)"), std::string::npos) << with.err;
}

TEST_F(RunCommand, SaysWhyNothingWasRecorded) {
  const Outcome off = run({}, {GRADPROBE_DEMO_TRAIN, "--ranks", "2", "--steps", "1", "--quiet"}, {"GRADPROBE=0"});
  EXPECT_EQ(off.exit_code, 0);
  ASSERT_FALSE(lines(off.err).empty());
  EXPECT_NE(lines(off.err).back().find("nothing was recorded. GRADPROBE: GRADPROBE=0"), std::string::npos) << off.err;
  EXPECT_NE(lines(off.err).back().find("unset GRADPROBE"), std::string::npos) << off.err;
  const Outcome left_out =
      run({"--comms", "size=8"}, {GRADPROBE_DEMO_TRAIN, "--ranks", "2", "--steps", "1", "--quiet"});
  EXPECT_EQ(left_out.exit_code, 0);
  ASSERT_FALSE(lines(left_out.err).empty());
  EXPECT_NE(lines(left_out.err).back().find("GRADPROBE_COMMS=size=8 leaves all of them out"), std::string::npos)
      << left_out.err;
  // Nobody left to tell.
  for (const char* stderr_path : {"/dev/full", "closed"})
    EXPECT_EQ(Tool(words({}, {"sh", "-c", "exit 5"}), "", stderr_path, around()).wait().exit_code, 5);
}

}  // namespace
}  // namespace gradprobe::test
