// Runs each recorded scenario on the stand-in and compares the profiler's calls with the real library's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "call_trace.h"
#include "scenarios.h"

namespace {

namespace fs = std::filesystem;

std::string recorded_path(const std::string& version, const std::string& scenario) {
  return std::string(NCCL_TRACES) + "/nccl-" + version + "-" + scenario + ".jsonl";
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The event mask with which the trace was recorded.
unsigned long long recorded_mask(const std::string& path) {
  for (const std::string& line : lines_of(path)) {
    auto record = nlohmann::json::parse(line);
    if (record.contains("mask")) return record.at("mask").get<unsigned long long>();
  }
  return 0;
}

struct TemporaryFile {
  fs::path path = fs::temp_directory_path() / ("nccl-trace-" + std::to_string(getpid()) + ".jsonl");
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path, ignored);
    fs::remove(path.string() + ".seq", ignored);
  }
};

class Recorded : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Recorded, SameCalls) {
  auto [version, scenario] = GetParam();
  std::string recorded = recorded_path(version, scenario);
  ASSERT_TRUE(fs::exists(recorded)) << recorded;
  TemporaryFile trace;
  scenarios::run(scenario, {version, CALL_LOG_FOLDER "/libcall_log_v6.so", trace.path, recorded_mask(recorded)});
  ASSERT_FALSE(HasFailure());
  std::string difference = call_trace::difference(call_trace::read_file(recorded), call_trace::read_file(trace.path));
  EXPECT_TRUE(difference.empty()) << "- only the real library, + only the stand-in\n" << difference;
}

std::string test_name(const testing::TestParamInfo<Recorded::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  for (char& c : name)
    if (c == '.' || c == '-') c = '_';
  return "v" + name;
}

INSTANTIATE_TEST_SUITE_P(Traces, Recorded,
                         testing::Combine(testing::Values("2.27.7", "2.28.9", "2.30.7"),
                                          testing::ValuesIn(scenarios::kNames)),
                         test_name);

TEST(Traces, EveryRecordedFileHasAScenario) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(NCCL_TRACES)) files += entry.path().extension() == ".jsonl";
  EXPECT_EQ(files, 3 * scenarios::kNames.size());
}

// Tampered traces must differ from what they were made of.

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& l : lines) text += l + "\n";
  return text;
}

size_t find(const std::vector<std::string>& lines, const std::string& what, size_t from = 0) {
  for (size_t i = from; i < lines.size(); i++)
    if (lines[i].find(what) != std::string::npos) return i;
  ADD_FAILURE() << "the recorded trace has no " << what;
  return 0;
}

std::string replaced(std::string line, const std::string& what, const std::string& with) {
  size_t at = line.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? line : line.replace(at, what.size(), with);
}

// The value of `field`, as it is written.
std::string raw(const std::string& line, const std::string& field) {
  size_t at = line.find("\"" + field + "\":") + field.size() + 3;
  return line.substr(at, line.find_first_of(",}", at) - at);
}

void swap_order(std::vector<std::string>* lines, size_t a, size_t b) {
  std::string seq_a = raw((*lines)[a], "seq"), seq_b = raw((*lines)[b], "seq");
  (*lines)[a] = replaced((*lines)[a], "\"seq\":" + seq_a, "\"seq\":" + seq_b);
  (*lines)[b] = replaced((*lines)[b], "\"seq\":" + seq_b, "\"seq\":" + seq_a);
}

class Tampered : public testing::Test {
 protected:
  void SetUp() override { lines_ = lines_of(recorded_path("2.28.9", "single")); }
  void expect_difference() {
    std::string difference = call_trace::difference(call_trace::read_file(recorded_path("2.28.9", "single")),
                                                    call_trace::read(join(lines_)));
    EXPECT_NE(difference.find("  - "), std::string::npos) << difference;
    EXPECT_NE(difference.find("  + "), std::string::npos) << difference;
  }
  std::vector<std::string> lines_;
};

TEST_F(Tampered, Untouched) {
  auto same = call_trace::read(join(lines_));
  EXPECT_GE(same.by_name.size(), 6u);
  EXPECT_EQ(call_trace::difference(call_trace::read_file(recorded_path("2.28.9", "single")), same), "");
}
TEST_F(Tampered, OrderOfLaunchAndKernelLaunchStop) {
  size_t launch = find(lines_, "\"ev\":\"launch\"");
  size_t stop = find(lines_, "\"stopEvent\",\"handle\":\"KernelLaunch", launch);
  while (raw(lines_[stop], "pid") != raw(lines_[launch], "pid"))
    stop = find(lines_, "\"stopEvent\",\"handle\":\"KernelLaunch", stop + 1);
  swap_order(&lines_, launch, stop);
  expect_difference();
}
TEST_F(Tampered, Parent) {
  size_t at = find(lines_, "\"type\":\"Coll\"");
  lines_[at] = replaced(lines_[at], "\"parentObj\":\"CollApi", "\"parentObj\":\"GroupApi");
  lines_[at] = replaced(lines_[at], "GroupApi#3", "GroupApi#2");
  expect_difference();
}
TEST_F(Tampered, Count) {
  size_t at = find(lines_, "\"count\":1024");
  lines_[at] = replaced(lines_[at], "\"count\":1024", "\"count\":1025");
  expect_difference();
}
TEST_F(Tampered, State) {
  size_t at = find(lines_, "\"stateId\":24");
  lines_[at] = replaced(lines_[at], "\"stateId\":24", "\"stateId\":23");
  expect_difference();
}
TEST_F(Tampered, MissingCall) {
  lines_.erase(lines_.begin() + static_cast<long>(find(lines_, "\"stopEvent\",\"handle\":\"Group#")));
  std::string difference =
      call_trace::difference(call_trace::read_file(recorded_path("2.28.9", "single")), call_trace::read(join(lines_)));
  EXPECT_NE(difference.find("  - stopEvent Group."), std::string::npos) << difference;
}
TEST_F(Tampered, Thread) {
  size_t at = find(lines_, "\"type\":\"Coll\"");
  std::string tid = raw(lines_[at], "tid");
  lines_[at] = replaced(lines_[at], "\"tid\":" + tid, "\"tid\":" + tid + "0");
  std::string difference =
      call_trace::difference(call_trace::read_file(recorded_path("2.28.9", "single")), call_trace::read(join(lines_)));
  EXPECT_NE(difference.find("library thread"), std::string::npos) << difference;
}
TEST_F(Tampered, BrokenLine) {
  lines_[4] = "{";
  EXPECT_THROW(call_trace::read(join(lines_)), std::runtime_error);
}

}  // namespace
