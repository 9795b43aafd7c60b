// Training goes on, or ends in an orderly way, whatever happens to a rank or to the plugin.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "training_run.hpp"

namespace gradprobe::demo {
namespace {

const std::vector<std::string> kShort = {"--ranks", "2", "--steps", "4"};

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The training ends as if there were no plugin, and each of the two ranks says once why it isn't measured.
class PluginTrouble : public testing::Test {
 protected:
  void expect_harmless(const std::string& rings, const Environment& extra, const std::vector<std::string>& words) {
    const Outcome alone = train(with(kShort, {"--weights", folder_ / "alone"}));
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_EQ(count_lines(alone.out + alone.err, {"WARN"}), 0) << alone.out << alone.err;
    const Outcome outcome = train_measured(with(kShort, {"--weights", folder_ / "weights"}), rings, extra);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(read_file(folder_ / "weights") == read_file(folder_ / "alone")) << "other weights than without plugin";
    const std::string said = outcome.out + outcome.err;  // NCCL logs to stdout
    EXPECT_EQ(count_lines(said, {"WARN"}), 2) << said;
    for (const char* rank : {"rank 0", "rank 1"}) {
      std::vector<std::string> line = {"gradprobe: ", rank};
      EXPECT_EQ(count_lines(said, line), 1) << said;
      line.insert(line.end(), words.begin(), words.end());
      EXPECT_EQ(count_lines(said, line), 1) << said;
    }
  }

  const TemporaryFolder folder_;
};

TEST_F(PluginTrouble, TheFirstLaunchFails) {
  expect_harmless(folder_ / "rings", {{"STANDIN_CUDA_FAIL", "cuLaunchKernel/gradprobe:1"}}, {"not measured", "CUDA_"});
}

TEST_F(PluginTrouble, ALaunchInMidRunFails) {
  expect_harmless(folder_ / "rings", {{"STANDIN_CUDA_FAIL", "cuLaunchKernel/gradprobe_measure_f32:9"}},
                  {"launch", "CUDA_", "not measured"});
  // What was measured before is still there, and the rest is counted.
  for (const auto& [rank, ring] : read_rings(folder_ / "rings")) {
    EXPECT_GT(ring.counters.measured, 0u) << rank;
    EXPECT_GT(ring.counters.missed[static_cast<std::size_t>(Missed::launch_failed)], 0u) << rank;
  }
}

TEST_F(PluginTrouble, TheFolderCannotBeWritten) {
  // Nobody can make folders there, root included.
  expect_harmless("/proc/gradprobe-test", {}, {"/proc/gradprobe-test", "GRADPROBE_DIR"});
}

class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& where) : where_(where) {
    std::filesystem::create_directory(where_);
    mounted_ = mount("tmpfs", where_.c_str(), "tmpfs", 0, "size=256k") == 0;
    error_ = errno;
  }
  ~SmallFileSystem() {
    if (mounted_) umount(where_.c_str());
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  bool mounted() const { return mounted_; }
  int error() const { return error_; }

 private:
  std::string where_;
  bool mounted_ = false;
  int error_ = 0;
};

TEST_F(PluginTrouble, TheFileSystemIsFull) {
  const SmallFileSystem small(folder_ / "small");
  if (!small.mounted()) GTEST_SKIP() << "can't mount a tmpfs of 256 KiB here: " << std::strerror(small.error());
  expect_harmless(folder_ / "small/rings", {}, {"No space left", "GRADPROBE_RING_MB"});
}

TEST(Killed, AllRingsStayReadable) {
  const TemporaryFolder folder;
  const std::string rings = folder / "rings";
  const Outcome outcome =
      train_measured({"--ranks", "4", "--steps", "40", "--kill-rank", "2", "--kill-step", "9"}, rings);
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  EXPECT_EQ(count_lines(outcome.err, {"rank 2", "step 9", "signal 9"}), 1) << outcome.err;
  // Another rank may say so before the launcher has stopped it.
  const int others = count_lines(outcome.err, {"gradprobe-demo-train", "a remote rank failed or is gone"});
  EXPECT_EQ(count_lines(outcome.err, {"gradprobe-demo-train"}), 1 + others) << outcome.err;

  const auto read = read_rings(rings);
  ASSERT_EQ(read.size(), 4u);
  for (const auto& [rank, ring] : read) {
    // The killed rank's host had seen step 6 done, so its records had left the device. Op 0 is the broadcast.
    std::set<std::uint64_t> steps;
    for (const Record& record : ring.records) {
      if (record.kind() == RecordKind::scalar && record.head.missed == 0) steps.insert((record.head.op - 1) / 6);
    }
    for (std::uint64_t step = 0; step < 6; ++step) EXPECT_TRUE(steps.contains(step)) << "rank " << rank << " " << step;
    EXPECT_EQ(ring.counters.state == static_cast<std::uint64_t>(RingState::finalized), rank != 2) << "rank " << rank;
  }

  const Outcome dump = gradprobe_tool({"dump", "--json", rings});
  EXPECT_EQ(dump.status, 0) << dump.err;
  std::set<int> dumped;
  for (const auto& line : read_json_lines(dump.out)) dumped.insert(line["rank"].get<int>());
  EXPECT_EQ(dumped, (std::set<int>{0, 1, 2, 3}));
  const Outcome compare = gradprobe_tool({"compare", "--json", rings});
  EXPECT_EQ(compare.status, 0) << compare.err;
  int complete = 0;
  for (const auto& line : read_json_lines(compare.out)) {
    complete += line["ranks"] == 4 && line["norm_cv"].is_number() && line["mean_cosine"].is_number() ? 1 : 0;
  }
  EXPECT_GE(complete, 6);
}

TEST(PlantedNan, ItsRankStepAndElementAreNamed) {
  const TemporaryFolder folder;
  const std::string rings = folder / "rings";
  const Outcome outcome = train_measured({"--ranks", "4", "--steps", "6", "--nan-rank", "2", "--nan-step", "3"}, rings);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  // The broadcast, then 6 calls a step: the third bucket of step 3, and the last call before the NaN is everywhere.
  constexpr std::uint64_t kPlantedOp = 1 + 3 * 6 + 2;
  constexpr std::uint64_t kLastOp = 4 * 6;
  for (const auto& [rank, ring] : read_rings(rings)) {
    for (const Record& record : ring.records) {
      if (record.kind() != RecordKind::collective || record.head.op > kLastOp) continue;
      const bool planted = rank == 2 && record.head.op == kPlantedOp;
      EXPECT_EQ(record.head.collective.nan_count, planted ? 1u : 0u) << "rank " << rank << " op " << record.head.op;
      EXPECT_EQ(record.head.collective.first_nonfinite, planted ? 54321u : kNone);
    }
  }
  const Outcome compare = gradprobe_tool({"compare", "--json", "--summary", rings});
  ASSERT_EQ(compare.status, 0) << compare.err;
  int named = 0;
  const auto summaries = read_json_lines(compare.out);
  ASSERT_EQ(summaries.size(), 1u);
  for (const auto& finding : summaries[0]["findings"]) {
    if (finding["kind"] == "nonfinite") named += count_lines(finding["text"], {"rank 2", "step 3", "54321"});
  }
  EXPECT_EQ(named, 1) << compare.out;
}

TEST(Usage, MistakesGetOneLine) {
  const std::vector<std::vector<std::string>> mistakes = {{"--ranks", "65"},
                                                          {"--setting", "s2"},
                                                          {"--steps", "0"},
                                                          {"--nan-rank", "1"},
                                                          {"--nan-rank", "8", "--nan-step", "1"},
                                                          {"--kill-step", "60", "--kill-rank", "1"},
                                                          {"--frob"}};
  for (const auto& mistake : mistakes) {
    const Outcome outcome = train(mistake);
    EXPECT_EQ(outcome.status, 2) << mistake[0];
    EXPECT_EQ(count_lines(outcome.err, {}), 1) << outcome.err;
    EXPECT_EQ(count_lines(outcome.err, {"gradprobe-demo-train: ", mistake[0]}), 1) << outcome.err;
  }
  const Outcome missing = train({"--ranks", "2", "--data", "/nonexistent.csv"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_EQ(count_lines(missing.err, {}), 1) << missing.err;
  EXPECT_EQ(count_lines(missing.err, {"/nonexistent.csv"}), 1) << missing.err;
}

}  // namespace
}  // namespace gradprobe::demo
