// GRADPROBE_CHAIN inside NCCL (the stand-in): behind gradprobe the call log must see what the real library's recordings
// say that a plugin sees, and for releases and masks without a recording what it sees when it is loaded alone. What
// gradprobe records is the same with and without it.
#include <gradprobe/ring_reader.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "call_trace.h"
#include "scenarios.h"

namespace gradprobe::test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "gradprobe-chain-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr const char* kCallLog = CALL_LOG_FILE;

struct Case {
  std::string release, scenario;
  unsigned long long mask = 0;
};

class ChainTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("GRADPROBE_RING_MB", "4", 1);
    setenv("GRADPROBE_GATE_TIMEOUT", "5000", 1);
    setenv("GRADPROBE_LOG", "off", 1);
  }

  // The calls that the call log gets, without gradprobe's own kernels.
  call_trace::Sequences calls(const Case& run, bool chained) {
    Folder folder;
    const fs::path trace = folder.path() / "trace.jsonl";
    scenarios::run(run.scenario, {run.release, chained ? prepare_chain() : kCallLog, trace.string(), run.mask});
    std::string text;
    std::ifstream in(trace);
    for (std::string line; std::getline(in, line);)
      if (line.find("gradprobe_measure") == std::string::npos) text += line + "\n";
    return call_trace::read(text);
  }

  // Makes gradprobe the plugin and the call log the chained one.
  std::string prepare_chain() {
    setenv("GRADPROBE_CHAIN", kCallLog, 1);
    setenv("GRADPROBE_DIR", rings_.path().c_str(), 1);
    return GRADPROBE_PLUGIN_FILE;
  }

  // What gradprobe recorded, by rank, without what is new in every run.
  static std::map<std::uint32_t, std::vector<std::string>> records(const fs::path& folder) {
    std::map<std::uint32_t, std::vector<std::string>> by_rank;
    for (const auto& file : fs::directory_iterator(folder)) {
      auto opened = RingReader::open(file.path());
      EXPECT_TRUE(opened.reader) << opened.error;
      if (!opened.reader) continue;
      auto& lines = by_rank[opened.reader->header().rank];
      RingCursor cursor(*opened.reader);
      for (Record r; cursor.next(r) == Next::record;) {
        const CollectiveBody& body = r.head.collective;
        lines.push_back(nlohmann::json{r.head.kind, r.head.missed, r.head.op, r.head.replay, r.head.flags, r.head.step,
                                       r.has_body() ? body.count : 0, r.has_body() ? body.function : 0,
                                       r.has_body() ? body.datatype : 0, r.has_body() ? body.nan_count : 0}
                            .dump());
      }
    }
    return by_rank;
  }

  void expect_equal_records(const Case& run) {
    Folder alone;
    unsetenv("GRADPROBE_CHAIN");
    setenv("GRADPROBE_DIR", alone.path().c_str(), 1);
    Folder unused;
    scenarios::run(run.scenario, {run.release, GRADPROBE_PLUGIN_FILE, (unused.path() / "trace").string(), run.mask});
    const auto expected = records(alone.path());
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(records(rings_.path()), expected);
  }

  Folder rings_;
};

class RecordedChain : public ChainTrace, public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {};

TEST_P(RecordedChain, SeesTheRealLibrarysCalls) {
  const auto& [release, scenario] = GetParam();
  const std::string recorded = std::string(NCCL_TRACES) + "/nccl-" + release + "-" + scenario + ".jsonl";
  Case run{release, scenario};
  std::ifstream in(recorded);
  for (std::string line; run.mask == 0 && std::getline(in, line);)
    run.mask = nlohmann::json::parse(line).value("mask", 0ull);
  ASSERT_NE(run.mask, 0u) << recorded;
  const call_trace::Sequences found = calls(run, true);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(call_trace::difference(call_trace::read_file(recorded), found), "");
  expect_equal_records(run);
}

std::string plain(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, RecordedChain,
                         ::testing::Combine(::testing::Values("2.27.7", "2.28.9", "2.30.7"),
                                            ::testing::ValuesIn(scenarios::kNames)),
                         [](const auto& info) {
                           return "v" + plain(std::get<0>(info.param) + "_" + std::get<1>(info.param));
                         });

class AloneOrChained : public ChainTrace, public ::testing::WithParamInterface<Case> {};

void PrintTo(const Case& run, std::ostream* out) {
  *out << run.release << " " << run.scenario << " mask " << run.mask;
}

TEST_P(AloneOrChained, SameCalls) {
  const call_trace::Sequences alone = calls(GetParam(), false);
  const call_trace::Sequences chained = calls(GetParam(), true);
  ASSERT_FALSE(HasFailure());
  EXPECT_FALSE(alone.by_name.empty());
  EXPECT_EQ(call_trace::difference(alone, chained), "");
}

// Releases 2.23 to 2.26 tell init no rank, so only what one process does in one order can be compared.
INSTANTIATE_TEST_SUITE_P(, AloneOrChained,
                         ::testing::Values(Case{"2.23.4", "multidev", 7}, Case{"2.23.4", "multidev-group2", 2},
                                           Case{"2.23.4", "multidev", 1}, Case{"2.24.3", "multidev-group2", 7},
                                           Case{"2.26.2", "multidev-group2", 7}, Case{"2.26.2", "multidev", 1},
                                           Case{"2.27.7", "single", 1}, Case{"2.27.7", "graph-net", 66},
                                           Case{"2.28.9", "group3sizes", 2}, Case{"2.28.9", "single", 1},
                                           Case{"2.28.9", "graph", 0x7fff}, Case{"2.30.7", "group3", 256},
                                           Case{"2.30.7", "graph-net", 0x7fff}, Case{"2.30.7", "single", 0}),
                         [](const auto& info) {
                           return "v" + plain(info.param.release + "_" + info.param.scenario + "_mask" +
                                              std::to_string(info.param.mask));
                         });

}  // namespace
}  // namespace gradprobe::test
