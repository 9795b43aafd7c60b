// What `gradprobe compare` says of all-reduce results in every mode of calling NCCL: nothing as long as they are equal,
// however many there are, and rank, op and step of one wrong bit.
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "nccl_fixture.hpp"
#include "run_tool.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

enum class Style { plain, grouped, mixed, captured, non_blocking };
struct Mode {
  const char* name;
  Style style;
  const char* callbacks = "0";
  const char* per_launch = "0";
  const char* version = "2.28.9";
};
constexpr Mode kModes[] = {
    {"plain", Style::plain},
    {"plain_v6", Style::plain, "0", "0", "2.30.7"},
    {"plain_callbacks", Style::plain, "2"},
    {"grouped", Style::grouped},
    {"grouped_launches", Style::grouped, "0", "2", "2.30.7"},
    {"grouped_callbacks", Style::grouped, "2", "0", "2.30.7"},
    {"grouped_callbacks_launches", Style::grouped, "2", "1"},
    {"mixed", Style::mixed, "0", "0", "2.30.7"},
    {"mixed_launches", Style::mixed, "0", "2"},
    {"mixed_callbacks_launches", Style::mixed, "2", "2", "2.30.7"},
    {"captured", Style::captured},
    {"captured_callbacks", Style::captured, "1", "0", "2.30.7"},
    {"captured_callbacks_launches", Style::captured, "1", "1"},
    {"non_blocking", Style::non_blocking},
};
constexpr std::size_t kBuckets = 4;  // and a loss
constexpr std::size_t kPerStep = kBuckets + 1;

// GRADPROBE_TEST_COLLECTIVES: all-reduces of all modes together.
std::size_t steps_of_a_mode() {
  const char* text = std::getenv("GRADPROBE_TEST_COLLECTIVES");
  const std::size_t collectives = text != nullptr ? std::strtoul(text, nullptr, 10) : 5600;
  return std::max<std::size_t>(collectives / std::size(kModes) / kPerStep, 20);
}

// One rank's training: gradients that are put back before each step, averaged in place or out of place.
class Trainer {
 public:
  explicit Trainer(Rank* rank) : r_(*rank) {
    constexpr std::array<std::size_t, kPerStep> kCounts = {64, 200, 33, 130, 1};
    for (std::size_t i = 0; i < kPerStep; i++) {
      counts_[i] = kCounts[i];
      original_[i] = r_.input(counts_[i]);
      data_[i] = Rank::buffer(counts_[i] * sizeof(float));
      output_[i] = i == 1 ? Rank::buffer(counts_[i] * sizeof(float)) : data_[i];
    }
    gathered_ = Rank::buffer(300 * sizeof(float) * static_cast<std::size_t>(r_.ranks));
  }

  void step(Style style) const {
    for (std::size_t i = 0; i < kPerStep; i++)
      CUDA_OK(cuMemcpyDtoDAsync(data_[i], original_[i], counts_[i] * sizeof(float), r_.stream));
    if (style == Style::plain || style == Style::captured) {
      for (std::size_t i = 0; i < kPerStep; i++) all_reduce(i);
      return;
    }
    NCCL_OK(ncclGroupStart());
    for (std::size_t i = 0; i < kPerStep; i++) {
      if (i == 2) NCCL_OK(ncclGroupStart());
      if (style == Style::mixed && i == 1) gather();
      all_reduce(i);
      if (i == 2) NCCL_OK(ncclGroupEnd());
      if (style == Style::mixed && i == 3) exchange();
    }
    const ncclResult_t ended = ncclGroupEnd();
    ASSERT_TRUE(ended == ncclSuccess || ended == ncclInProgress);
    r_.wait();
    if (style == Style::mixed) exchange();
  }

 private:
  void all_reduce(std::size_t i) const {
    const ncclResult_t r =
        ncclAllReduce(Rank::ptr(data_[i]), Rank::ptr(output_[i]), counts_[i], ncclFloat32, ncclAvg, r_.comm, r_.stream);
    ASSERT_TRUE(r == ncclSuccess || r == ncclInProgress);
  }
  void gather() const {
    const CUdeviceptr mine = gathered_ + 300 * sizeof(float) * static_cast<unsigned>(r_.rank);
    NCCL_OK(ncclAllGather(Rank::ptr(mine), Rank::ptr(gathered_), 300, ncclFloat32, r_.comm, r_.stream));
  }
  void exchange() const {
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(Rank::ptr(gathered_), 100, ncclFloat32, (r_.rank + 1) % r_.ranks, r_.comm, r_.stream));
    NCCL_OK(ncclRecv(Rank::ptr(gathered_ + 800), 100, ncclFloat32, (r_.rank + 2) % r_.ranks, r_.comm, r_.stream));
    NCCL_OK(ncclGroupEnd());
  }

  Rank& r_;
  std::array<std::size_t, kPerStep> counts_{};
  std::array<CUdeviceptr, kPerStep> original_{}, data_{}, output_{};
  CUdeviceptr gathered_ = 0;
};

class AllReduceResults : public Nccl, public ::testing::WithParamInterface<Mode> {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    setenv("STANDIN_NCCL_VERSION", GetParam().version, 1);
    setenv("STANDIN_NCCL_HOST_CALLBACK", GetParam().callbacks, 1);
    setenv("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", GetParam().per_launch, 1);
    setenv("GRADPROBE_RESULT", "1", 1);
    setenv("GRADPROBE_SKETCH", "256", 1);
    setenv("GRADPROBE_RING_MB", "64", 1);
  }

  void train(std::size_t steps) {
    const Style style = GetParam().style;
    run_ranks(
        [&](Rank& r) {
          const Trainer trainer(&r);
          if (style != Style::captured) {
            // The host doesn't run ahead without bounds: what is in flight must have room.
            for (std::size_t i = 0; i < steps; i++) {
              trainer.step(style);
              if (i % 40 == 39) r.synchronize();
            }
            return;
          }
          CUgraph graph = nullptr;
          CUgraphExec exec = nullptr;
          CUDA_OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
          trainer.step(style);
          CUDA_OK(cuStreamEndCapture(r.stream, &graph));
          CUDA_OK(cuGraphInstantiate(&exec, graph, 0));
          for (std::size_t i = 0; i < steps; i++) {
            CUDA_OK(cuGraphLaunch(exec, r.stream));
            if (i % 40 == 39) r.synchronize();
          }
          r.synchronize();
          CUDA_OK(cuGraphExecDestroy(exec));
          CUDA_OK(cuGraphDestroy(graph));
        },
        style != Style::non_blocking);
  }

  std::vector<Json> compare(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"compare", "--json"});
    arguments.push_back(folder_.path());
    const Outcome outcome = run_tool(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<Json> objects;
    for (const std::string& line : lines(outcome.out)) objects.push_back(Json::parse(line));
    return objects;
  }
};
INSTANTIATE_TEST_SUITE_P(Nccl, AllReduceResults, ::testing::ValuesIn(kModes),
                         [](const auto& mode) { return std::string(mode.param.name); });

TEST_P(AllReduceResults, EqualOnesGiveNoAlarm) {
  const std::size_t steps = steps_of_a_mode();
  train(steps);
  const Json summary = compare({"--summary"}).at(0);
  // Nothing may be left out either: then nothing would have been compared.
  EXPECT_EQ(summary["results_compared"], steps * kPerStep);
  EXPECT_EQ(summary["results_different"], 0);
  for (const Json& finding : summary["findings"]) {
    EXPECT_NE(finding["kind"], "result_mismatch") << finding["text"];
    EXPECT_NE(finding["kind"], "missed") << finding["text"];
    EXPECT_NE(finding["kind"], "missed_result") << finding["text"];
  }
  for (const std::string& file : folder_.files()) {
    auto opened = RingReader::open(file);
    ASSERT_TRUE(opened.reader);
    EXPECT_EQ(opened.reader->counters().measured, steps * kPerStep);
  }
}

// One bit of one element of one rank's result; in a graph, of every replay's.
TEST_P(AllReduceResults, AWrongBitIsFound) {
  constexpr std::size_t kSteps = 20, kStep = 15, kBucket = 3;
  const bool captured = GetParam().style == Style::captured, mixed = GetParam().style == Style::mixed;
  // Unrecorded calls are counted, too: the step's all-gather comes before the second bucket.
  const std::size_t op = captured ? kBucket : mixed ? kStep * (kPerStep + 1) + kBucket + 1 : kStep * kPerStep + kBucket;
  setenv("STANDIN_NCCL_FLIP", ("1:" + std::to_string(op) + ":100:0").c_str(), 1);
  train(kSteps);
  std::size_t found = 0;
  for (const Json& step : compare({})) {
    if (!step.contains("result_mismatches")) continue;
    for (const Json& mismatch : step["result_mismatches"]) {
      found++;
      EXPECT_EQ(mismatch["differing"], Json::array({1})) << mismatch;
      EXPECT_EQ(mismatch["op"], op);
      EXPECT_EQ(mismatch["count"], 130);
      EXPECT_EQ(step["step"], captured ? mismatch["replay"].get<std::size_t>() - 1 : kStep);
    }
  }
  EXPECT_EQ(found, captured ? kSteps : 1);
  const Json summary = compare({"--summary"}).at(0);
  EXPECT_EQ(summary["results_different"], found);
  std::size_t findings = 0;
  for (const Json& finding : summary["findings"]) {
    if (finding["kind"] != "result_mismatch") continue;
    findings++;
    const std::string text = finding["text"];
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("op " + std::to_string(op)), std::string::npos) << text;
    EXPECT_NE(text.find("step"), std::string::npos) << text;
  }
  EXPECT_EQ(findings, 1u);
}

}  // namespace
}  // namespace gradprobe::test
