// Real training with the plugin attached: what the rings say against what the training itself knows. All-reduces are in
// place, so a measurement taken too late would see the sum of all ranks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <gradprobe/estimators.hpp>
#include <map>
#include <string>
#include <vector>

#include "training_run.hpp"

namespace gradprobe::demo {
namespace {

using Json = nlohmann::json;

std::vector<Json> truth_of(const std::string& folder, std::uint32_t rank) {
  return read_json_lines(read_file(folder + "/rank" + std::to_string(rank) + ".jsonl"));
}

// Collectives and scalars of a ring by op.
std::map<std::uint64_t, const Record*> by_op(const Ring& ring) {
  std::map<std::uint64_t, const Record*> records;
  for (const Record& record : ring.records) {
    if (!record.has_body()) continue;
    EXPECT_TRUE(records.emplace(record.head.op, &record).second) << "op " << record.head.op << " is there twice";
  }
  return records;
}

// Every all-reduce of the training was measured, before it was reduced.
void expect_rings_tell_the_truth(const std::string& rings_folder, const std::string& truth_folder, std::size_t ranks) {
  const auto rings = read_rings(rings_folder);
  ASSERT_EQ(rings.size(), ranks);
  for (const auto& [rank, ring] : rings) {
    const auto records = by_op(ring);
    const auto truth = truth_of(truth_folder, rank);
    ASSERT_FALSE(truth.empty());
    for (const Json& line : truth) {
      const auto op = line["op"].get<std::uint64_t>();
      SCOPED_TRACE("rank " + std::to_string(rank) + ", op " + std::to_string(op));
      ASSERT_TRUE(records.contains(op));
      const RecordHead& head = records.at(op)->head;
      const CollectiveBody& body = head.collective;
      EXPECT_EQ(head.missed, 0);
      EXPECT_NE(head.flags & kFlagInPlace, 0u);
      EXPECT_EQ(body.count, line["count"].get<std::uint64_t>());
      EXPECT_STREQ(name(static_cast<Datatype>(body.datatype)), line["dtype"].get<std::string>().c_str());
      if (body.count == 1) {
        float value = 0;
        std::memcpy(&value, body.raw, sizeof value);
        EXPECT_EQ(value, line["value"].get<float>());
        continue;
      }
      const double norm = line["norm"].get<double>();
      EXPECT_GT(norm, 0);
      EXPECT_NEAR(std::sqrt(body.sum_squares), norm, 1e-6 * norm);
      EXPECT_EQ(body.max_abs, line["max_abs"].get<double>());
      EXPECT_EQ(body.nan_count, 0u);
      EXPECT_EQ(body.inf_count, 0u);
      EXPECT_EQ(body.first_nonfinite, kNone);
    }
    // Besides these only the broadcast of the first weights, which isn't gradprobe's business.
    EXPECT_LE(records.size(), truth.size() + 1);
    EXPECT_EQ(ring.counters.measured, truth.size());
    EXPECT_EQ(ring.counters.state, static_cast<std::uint64_t>(RingState::finalized));
  }
}

class EightRanks : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kRanks = 8;

  void SetUp() override {
    std::filesystem::create_directory(truth_);
    arguments_ = {"--ranks", "8", "--steps", "8", "--setting", GetParam()};
    std::vector<std::string> all = arguments_;
    for (const std::string& more :
         {std::string("--truth"), truth_, std::string("--truth-buckets"), std::string("--weights"), weights_}) {
      all.push_back(more);
    }
    const Outcome outcome = train_measured(all, rings_);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  // Share of (pair of ranks, step)s whose interval holds the float64 cosine of the buckets themselves.
  void expect_cosines_in_their_intervals() const {
    const auto rings = read_rings(rings_);
    ASSERT_EQ(rings.size(), kRanks);
    std::array<std::map<std::uint64_t, const Record*>, kRanks> records;
    std::array<std::vector<Json>, kRanks> truth;
    std::array<std::string, kRanks> bytes;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      records[rank] = by_op(rings.at(rank));
      truth[rank] = truth_of(truth_, rank);
      bytes[rank] = read_file(truth_ + "/rank" + std::to_string(rank) + ".bin");
    }
    std::map<int, std::vector<std::size_t>> buckets;  // truth lines by step
    for (std::size_t i = 0; i < truth[0].size(); ++i) {
      if (truth[0][i]["count"] > 1) buckets[truth[0][i]["step"].get<int>()].push_back(i);
    }
    ASSERT_EQ(buckets.size(), 8u);
    int pairs = 0;
    int held = 0;
    double width = 0;
    for (const auto& [step, lines] : buckets) {
      std::vector<double> total(kRanks, 0.0);
      for (const std::size_t line : lines) {
        for (std::size_t r = 0; r < kRanks; ++r) total[r] += record(records[r], truth[r][line]).collective.sum_squares;
      }
      CosineEstimator estimator(total, rings.at(0).header.sketch_floats);
      std::array<std::array<double, kRanks>, kRanks> products{};
      for (const std::size_t line : lines) {
        std::vector<const float*> sketches;
        std::vector<double> squares;
        std::array<std::vector<float>, kRanks> input;
        for (std::size_t r = 0; r < kRanks; ++r) {
          const Record& measured = *records[r].at(truth[r][line]["op"].get<std::uint64_t>());
          ASSERT_EQ(measured.sketch.size(), rings.at(0).header.sketch_floats);
          sketches.push_back(measured.sketch.data());
          squares.push_back(measured.head.collective.sum_squares);
          input[r].resize(truth[r][line]["count"].get<std::size_t>());
          std::memcpy(input[r].data(), bytes[r].data() + truth[r][line]["offset"].get<std::size_t>(),
                      4 * input[r].size());
        }
        estimator.add_bucket(sketches, squares);
        for (std::size_t a = 0; a < kRanks; ++a) {
          for (std::size_t b = a; b < kRanks; ++b) products[a][b] += dot(input[a], input[b]);
        }
      }
      for (std::size_t a = 0; a < kRanks; ++a) {
        for (std::size_t b = a + 1; b < kRanks; ++b) {
          const double exact = products[a][b] / std::sqrt(products[a][a] * products[b][b]);
          const Cosine cosine = estimator.pair(a, b);
          EXPECT_NEAR(cosine.value, exact, 0.1) << "ranks " << a << ", " << b << ", step " << step;
          held += cosine.low <= exact && exact <= cosine.high ? 1 : 0;
          width += cosine.high - cosine.low;
          ++pairs;
        }
      }
    }
    EXPECT_EQ(pairs, 8 * 28);
    EXPECT_GE(held, 0.9 * pairs) << held << " of " << pairs;
    // An interval that says nothing would hold everything.
    EXPECT_LT(width / pairs, 0.1);
    RecordProperty("held", held);
    RecordProperty("pairs", pairs);
  }

  const TemporaryFolder folder_;
  const std::string rings_ = folder_ / "rings";
  const std::string truth_ = folder_ / "truth";
  const std::string weights_ = folder_ / "weights";
  std::vector<std::string> arguments_;

 private:
  static const RecordHead& record(const std::map<std::uint64_t, const Record*>& records, const Json& line) {
    return records.at(line["op"].get<std::uint64_t>())->head;
  }
  static double dot(const std::vector<float>& x, const std::vector<float>& y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    return sum;
  }
};

TEST_P(EightRanks, NormsCosinesAndWeightsAreRight) {
  expect_rings_tell_the_truth(rings_, truth_, kRanks);
  expect_cosines_in_their_intervals();

  arguments_.insert(arguments_.end(), {"--weights", folder_ / "weights-alone"});
  const Outcome alone = train(arguments_);
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_TRUE(read_file(weights_) == read_file(folder_ / "weights-alone")) << "the plugin changed the training";
}

INSTANTIATE_TEST_SUITE_P(Settings, EightRanks, testing::Values("s1-2", "s1-3"),
                         [](const auto& test) { return std::string(test.param) == "s1-2" ? "S12" : "S13"; });

class CompressedBuckets : public testing::TestWithParam<const char*> {};

TEST_P(CompressedBuckets, NormsAreRight) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "truth");
  const Outcome outcome = train_measured(
      {"--ranks", "2", "--steps", "3", "--dtype", GetParam(), "--truth", folder / "truth"}, folder / "rings");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_rings_tell_the_truth(folder / "rings", folder / "truth", 2);
}

INSTANTIATE_TEST_SUITE_P(Types, CompressedBuckets, testing::Values("bf16", "f16"),
                         [](const auto& test) { return std::string(test.param); });

// By LD_PRELOAD, as a release of NCCL whose profiler interface tells too little.
TEST(PreloadedTraining, NormsAndWeightsAreRight) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "truth");
  const std::vector<std::string> arguments = {"--ranks", "3", "--steps", "4", "--weights"};
  std::vector<std::string> measured = arguments;
  measured.insert(measured.end(), {folder / "weights", "--truth", folder / "truth"});
  const Outcome outcome = train_measured(measured, folder / "rings",
                                         {{"NCCL_PROFILER_PLUGIN", "none"},
                                          {"LD_PRELOAD", GRADPROBE_PRELOAD},
                                          {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                                          {"STANDIN_NCCL_VERSION", "2.23.4"},
                                          {"GRADPROBE_RESULT", "1"}});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_rings_tell_the_truth(folder / "rings", folder / "truth", 3);

  std::map<std::uint64_t, std::vector<std::uint64_t>> fingerprints;
  for (const auto& [rank, ring] : read_rings(folder / "rings")) {
    EXPECT_EQ(ring.header.profiler_abi, 0u);
    EXPECT_GT(ring.counters.results, 0u);
    for (const Record& r : ring.records)
      if (r.kind() == RecordKind::result) fingerprints[r.head.op].push_back(r.head.collective.fingerprint);
  }
  for (const auto& [op, values] : fingerprints)
    EXPECT_EQ(values, std::vector<std::uint64_t>(3, values.front())) << "op " << op;

  std::vector<std::string> alone = arguments;
  alone.push_back(folder / "weights-alone");
  ASSERT_EQ(train(alone, {{"STANDIN_NCCL_VERSION", "2.23.4"}}).status, 0);
  EXPECT_TRUE(read_file(folder / "weights") == read_file(folder / "weights-alone")) << "the training changed";
}

TEST(Training, TheSameBitsFromRunToRun) {
  const TemporaryFolder folder;
  for (const char* file : {"a", "b"}) {
    ASSERT_EQ(train({"--ranks", "3", "--steps", "3", "--weights", folder / file}).status, 0);
  }
  const std::string weights = read_file(folder / "a");
  EXPECT_GT(weights.size(), 4u * 301000u);
  EXPECT_TRUE(weights == read_file(folder / "b"));
}

}  // namespace
}  // namespace gradprobe::demo
