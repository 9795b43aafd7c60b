#include "config.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gradprobe {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"GRADPROBE",
                             "GRADPROBE_DIR",
                             "GRADPROBE_JOB",
                             "GRADPROBE_RING_MB",
                             "GRADPROBE_SKETCH",
                             "GRADPROBE_SEED",
                             "GRADPROBE_GATE_TIMEOUT",
                             "GRADPROBE_MAX_CTAS",
                             "GRADPROBE_ZEROS",
                             "GRADPROBE_OPS_PER_STEP",
                             "GRADPROBE_LOG",
                             "GRADPROBE_COLLECTIVES",
                             "GRADPROBE_MIN_COUNT",
                             "GRADPROBE_DTYPES",
                             "GRADPROBE_COMMS",
                             "GRADPROBE_EVERY",
                             "GRADPROBE_RESULT_EVERY",
                             "GRADPROBE_RESULT",
                             "GRADPROBE_CONTROL",
                             "SLURM_JOB_ID",
                             "TORCHELASTIC_RUN_ID",
                             "CUDA_LAUNCH_BLOCKING",
                             "GROUP_WORLD_SIZE",
                             "SLURM_JOB_NUM_NODES",
                             "SLURM_NNODES",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE"})
      unsetenv(name);
  }
};

TEST_F(ConfigTest, Defaults) {
  const Config c = read_config();
  EXPECT_TRUE(c.enabled);
  EXPECT_TRUE(c.default_directory);
  EXPECT_EQ(c.directory.rfind("/dev/shm/gradprobe-", 0), 0u);
  EXPECT_EQ(c.ring_mb, 32u);
  EXPECT_FALSE(c.ring_mb_set);
  EXPECT_EQ(c.sketch_floats, 1024u);
  EXPECT_EQ(c.gate_timeout_ms, 100u);
  EXPECT_FALSE(c.launch_blocking);
  EXPECT_EQ(c.selection.functions, Selection::kAllFunctions);
  EXPECT_EQ(c.selection.min_count, 0u);
  EXPECT_EQ(c.sampling, Sampling());
  EXPECT_EQ(c.control_file, c.directory + "/control");
  EXPECT_EQ(c.job_nodes, 0u);
  EXPECT_TRUE(c.warnings.empty());
}

TEST_F(ConfigTest, ChoicesAreTaken) {
  setenv("GRADPROBE_DIR", "/some/where", 1);
  setenv("GRADPROBE_COLLECTIVES", "AllReduce", 1);
  setenv("GRADPROBE_MIN_COUNT", "1000", 1);
  setenv("GRADPROBE_DTYPES", "bf16", 1);
  setenv("GRADPROBE_COMMS", "!size=2", 1);
  setenv("GRADPROBE_EVERY", "10", 1);
  setenv("GRADPROBE_RESULT", "7", 1);
  Config c = read_config();
  EXPECT_TRUE(c.warnings.empty());
  EXPECT_EQ(c.selection.functions, Selection::bit(Function::all_reduce));
  EXPECT_EQ(c.selection.min_count, 1000u);
  EXPECT_EQ(c.selection.datatypes, Selection::bit(Datatype::bf16));
  EXPECT_EQ(c.comms.answer(1, "", 2), CommFilter::Answer::leave_out);
  EXPECT_EQ(c.sampling, (Sampling{.measure = true, .every = 10, .result_every = 7, .from_step = 0}));
  EXPECT_EQ(c.control_file, "/some/where/control");
  setenv("GRADPROBE_RESULT_EVERY", "9", 1);  // the newer name counts
  setenv("GRADPROBE_CONTROL", "/else/where", 1);
  c = read_config();
  EXPECT_EQ(c.sampling.result_every, 9u);
  EXPECT_EQ(c.control_file, "/else/where");
  for (const char* line : {"GRADPROBE_COLLECTIVES=AllReduce\n", "GRADPROBE_DTYPES=bf16\n", "GRADPROBE_COMMS=!size=2\n",
                           "GRADPROBE_EVERY=10\n", "GRADPROBE_RESULT_EVERY=9\n", "GRADPROBE_MIN_COUNT=1000\n"})
    EXPECT_NE(c.text().find(line), std::string::npos) << line;
}

TEST_F(ConfigTest, NodesOfTheJob) {
  setenv("WORLD_SIZE", "12", 1);
  EXPECT_EQ(read_config().job_nodes, 0u);
  setenv("LOCAL_WORLD_SIZE", "8", 1);
  EXPECT_EQ(read_config().job_nodes, 2u);
  setenv("SLURM_NNODES", "3", 1);
  EXPECT_EQ(read_config().job_nodes, 3u);
  setenv("GROUP_WORLD_SIZE", "4", 1);
  EXPECT_EQ(read_config().job_nodes, 4u);
}

TEST_F(ConfigTest, ValuesAreTaken) {
  setenv("GRADPROBE_DIR", "/some/where", 1);
  setenv("GRADPROBE_RING_MB", "7", 1);
  setenv("GRADPROBE_SKETCH", "0", 1);
  setenv("GRADPROBE_SEED", "0x10", 1);
  setenv("GRADPROBE_ZEROS", "1", 1);
  setenv("GRADPROBE_LOG", "stderr", 1);
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  const Config c = read_config();
  EXPECT_EQ(c.directory, "/some/where");
  EXPECT_EQ(c.ring_mb, 7u);
  EXPECT_TRUE(c.ring_mb_set);
  EXPECT_EQ(c.sketch_floats, 0u);
  EXPECT_EQ(c.seed, 16u);
  EXPECT_TRUE(c.count_zeros);
  EXPECT_EQ(c.log, LogTarget::stderr_only);
  EXPECT_TRUE(c.launch_blocking);
  EXPECT_TRUE(c.warnings.empty());
  EXPECT_NE(c.text().find("GRADPROBE_RING_MB=7\n"), std::string::npos);
}

TEST_F(ConfigTest, ImpossibleValuesAreNamedOnceEachAndDefaultsTaken) {
  const char* bad[][2] = {{"GRADPROBE_RING_MB", "0"},
                          {"GRADPROBE_SKETCH", "1000"},
                          {"GRADPROBE_SEED", "-1"},
                          {"GRADPROBE_GATE_TIMEOUT", "1s"},
                          {"GRADPROBE_MAX_CTAS", "257"},
                          {"GRADPROBE_ZEROS", "yes"},
                          {"GRADPROBE_COLLECTIVES", "allreduce,sum"},
                          {"GRADPROBE_DTYPES", "half"},
                          {"GRADPROBE_COMMS", "size"},
                          {"GRADPROBE_EVERY", "0"},
                          {"GRADPROBE_RESULT_EVERY", "-1"},
                          {"GRADPROBE_MIN_COUNT", "1k"},
                          {"GRADPROBE_LOG", "loud"},
                          {"GRADPROBE_OPS_PER_STEP", "99999999999999999999999"}};
  for (const auto& b : bad) setenv(b[0], b[1], 1);
  const Config c = read_config();
  ASSERT_EQ(c.warnings.size(), std::size(bad));
  for (const auto& b : bad) {
    bool named = false;
    for (const std::string& w : c.warnings) named |= w.rfind(std::string(b[0]) + "=" + b[1], 0) == 0;
    EXPECT_TRUE(named) << b[0];
  }
  EXPECT_EQ(c.sketch_floats, 1024u);
  EXPECT_EQ(c.max_ctas, 32u);
  EXPECT_EQ(c.ops_per_step, 0u);
}

TEST_F(ConfigTest, JobNameNeverLeavesItsFolder) {
  setenv("SLURM_JOB_ID", "../../etc", 1);
  EXPECT_EQ(read_config().job.find('/'), std::string::npos);
  setenv("GRADPROBE_JOB", "..", 1);
  EXPECT_EQ(read_config().job, "_");
  unsetenv("GRADPROBE_JOB");
  unsetenv("SLURM_JOB_ID");
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  EXPECT_EQ(read_config().job.rfind("ppid-", 0), 0u);
}

TEST_F(ConfigTest, NumbersAreDecimalUnlessTheySayHexadecimal) {
  setenv("GRADPROBE_GATE_TIMEOUT", "0100", 1);
  EXPECT_EQ(read_config().gate_timeout_ms, 100u);
}

TEST_F(ConfigTest, SlashesAtTheEndOfTheFolderDontMatter) {
  setenv("GRADPROBE_DIR", "/some/where//", 1);
  EXPECT_EQ(read_config().directory, "/some/where");
}

TEST_F(ConfigTest, EmptyMeansUnset) {
  setenv("GRADPROBE_RING_MB", "", 1);
  setenv("GRADPROBE_DIR", "", 1);
  const Config c = read_config();
  EXPECT_TRUE(c.warnings.empty());
  EXPECT_TRUE(c.default_directory);
}

}  // namespace
}  // namespace gradprobe
