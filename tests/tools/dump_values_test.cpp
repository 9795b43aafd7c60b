// Results, all datatypes and all sizes of sketch in what the tool prints.
#include <gtest/gtest.h>

#include <map>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

const std::string kGolden = GRADPROBE_TEST_DATA "/golden/ring-v1.ring";
const std::string kGoldenResults = GRADPROBE_TEST_DATA "/golden/ring-v1-results.ring";

std::vector<Json> objects(const Outcome& o) {
  EXPECT_EQ(o.exit_code, 0) << o.err;
  std::vector<Json> all;
  for (const std::string& line : lines(o.out)) all.push_back(Json::parse(line));
  return all;
}

void expect_part(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << part << "\nis not in\n" << whole;
}

TEST(DumpResults, Text) {
  const auto table = lines(run_tool({"dump", kGoldenResults}).out);
  ASSERT_EQ(table.size(), 7u);
  const std::size_t value = table[0].find("value"), status = table[0].find("status");
  EXPECT_EQ(table[1].substr(value), "-");
  expect_part(table[3], " result     ReduceScatter bf16          1000          2.5          1.5 ");
  EXPECT_EQ(table[3].substr(value), "0xfedcba9876543210");
  EXPECT_EQ(table[5].substr(status, 11), "result_lost");
  expect_part(table[6], " result     AllReduce     f64 ");
  EXPECT_EQ(table[6].substr(value), "0x00000000d9833333 0.8");
}

TEST(DumpResults, Json) {
  const auto o = objects(run_tool({"dump", "--json", "--sketch", kGoldenResults}));
  ASSERT_EQ(o.size(), 6u);
  for (const std::size_t input : {0u, 1u, 3u}) EXPECT_TRUE(o[input]["fingerprint"].is_null());
  EXPECT_EQ(o[2]["kind"], "result");
  EXPECT_EQ(o[2]["op"], 0);
  EXPECT_EQ(o[2]["step"], 0);
  EXPECT_EQ(o[2]["count"], 1000);
  EXPECT_EQ(o[2]["norm"], 2.5);
  EXPECT_EQ(o[2]["max_abs"], 1.5);
  EXPECT_EQ(o[2]["fingerprint"], "0xfedcba9876543210");
  EXPECT_TRUE(o[2]["values"].is_null());
  EXPECT_EQ(o[2]["sketch"][128], 1.5);
  EXPECT_EQ(o[4]["status"], "result_lost");
  EXPECT_TRUE(o[4]["fingerprint"].is_null());
  EXPECT_TRUE(o[4]["norm"].is_null());
  EXPECT_EQ(o[5]["values"], Json::array({0.8}));
  EXPECT_EQ(o[5]["norm"], 0.8);
}

TEST(DumpResults, Filter) {
  EXPECT_EQ(objects(run_tool({"dump", "--json", "--kind", "result", kGoldenResults})).size(), 3u);
  EXPECT_EQ(objects(run_tool({"dump", "--json", "--kind", "result", "--kind", "scalar", kGoldenResults})).size(), 4u);
  EXPECT_EQ(objects(run_tool({"dump", "--json", "--kind", "result", kGolden})).size(), 0u);
}

// A result is found under the step of its input, also where the records carry none.
TEST(DumpResults, Steps) {
  for (const bool confirmed : {true, false}) {
    TemporaryFolder folder;
    TrainingSpec spec;
    spec.results = true;
    spec.results_after = 2;
    spec.confirmed = confirmed;
    TrainingRun(spec).write(folder);
    const auto o = objects(run_tool({"dump", "--json", "--kind", "result", folder.path()}));
    ASSERT_EQ(o.size(), 72u);
    for (const Json& j : o) EXPECT_EQ(j["step"], j["op"].get<int>() / 3);
    EXPECT_EQ(objects(run_tool({"dump", "--json", "--step", "2", folder.path()})).size(), 4u * 6);
  }
}

TEST(DumpResults, Follow) {
  const auto o = objects(run_tool({"dump", "--json", "--follow", kGoldenResults}));
  ASSERT_EQ(o.size(), 6u);
  EXPECT_EQ(o[2]["fingerprint"], "0xfedcba9876543210");
}

TEST(InfoResults, CountsThem) {
  const std::string out = run_tool({"info", kGoldenResults}).out;
  expect_part(out, "7 announced by NCCL, 3 inputs measured");
  expect_part(out, "results        2 measured");
  expect_part(out, "6: 2 collective, 0 step, 1 scalar, 3 result");
  EXPECT_EQ(out.find("unknown kind"), std::string::npos);
  expect_part(run_tool({"info", kGolden}).out, "results        not counted");
}

TEST(UnknownKind, IsPassedOver) {
  TemporaryFolder folder;
  SyntheticRing ring(RingSpec{});
  ring.append(make_collective(0, 0, 0, 1, 100, 4));
  RecordHead other = make_collective(0, 0, 0, 1, 100, 4);
  other.kind = 6;
  ring.append(other);
  ring.save(folder / "a.ring");
  EXPECT_EQ(objects(run_tool({"dump", "--json", folder / "a.ring"})).size(), 1u);
  expect_part(run_tool({"info", folder / "a.ring"}).out,
              "2: 1 collective, 0 step, 0 scalar, 0 result, 0 mark, 1 of unknown");
}

TEST(Symmetric, IsSaidInTextAndJsonWhereTheWriterKnows) {
  TemporaryFolder folder;
  RingSpec spec;
  spec.features = 4;
  SyntheticRing ring(spec);
  for (std::uint64_t op = 0; op < 3; op++) {
    RecordHead head =
        op == 2 ? make_scalar(op, 0, 2, 3, 0.5) : make_collective(op, 0, static_cast<std::uint32_t>(op), 3, 100, 4);
    if (op != 0) head.flags |= 1u << 7;
    ring.append(head);
  }
  ring.save(folder / "a.ring");
  const auto o = objects(run_tool({"dump", "--json", folder / "a.ring"}));
  ASSERT_EQ(o.size(), 3u);
  EXPECT_EQ(o[0]["symmetric"], false);
  EXPECT_EQ(o[1]["symmetric"], true);
  EXPECT_EQ(o[2]["symmetric"], true);
  const auto table = lines(run_tool({"dump", folder / "a.ring"}).out);
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table[1].find("symmetric"), std::string::npos) << table[1];
  EXPECT_TRUE(table[2].ends_with(" symmetric")) << table[2];
  EXPECT_TRUE(table[3].ends_with("0.5 symmetric")) << table[3];
}

TEST(Symmetric, IsUnknownBeforeProfilerStruct7) {
  EXPECT_TRUE(objects(run_tool({"dump", "--json", kGoldenResults})).at(0)["symmetric"].is_null());
}

TEST(NoEvents, NamesItsCausesByTheVersionOfTheProfilerStruct) {
  const std::pair<std::uint32_t, const char*> causes[] = {
      {0, "reported no launch: a call that NCCL refused (no_events)"},
      {5, "reported no launch: symmetric kernels; copy engines; "},
      {6, "reported no launch: symmetric kernels up to NCCL 2.30; broadcasts since 2.29 (PyTorch's DDP makes two"},
      {7, "reported no launch: broadcasts (PyTorch's DDP makes two when it rebuilds its buckets); "}};
  for (const auto& [version, text] : causes) {
    TemporaryFolder folder;
    RingSpec spec;
    spec.profiler_abi = version;
    SyntheticRing ring(spec);
    ring.set_counter(2112 + 8 * 9, 2);
    ring.save(folder / "a.ring");
    expect_part(run_tool({"info", folder / "a.ring"}).out, std::string("2: NCCL announced the call and ") + text);
  }
}

TEST(Info, NamesTheWorkspace) {
  TemporaryFolder folder;
  SyntheticRing ring(RingSpec{});
  ring.set_counter(2112 + 8 * 10, 4);
  RecordHead missed = make_collective(0, 0, 0, 1, 100, 4);
  missed.missed = 10;
  ring.append(missed);
  ring.save(folder / "a.ring");
  expect_part(
      run_tool({"info", folder / "a.ring"}).out,
      "4: another measurement held the stream's workspace, or the communicator used more streams than there are "
      "workspaces (workspace)");
  EXPECT_EQ(objects(run_tool({"dump", "--json", folder / "a.ring"})).at(0)["status"], "workspace");
}

// A tiny input of each datatype: its bits, and what JSON and text say.
TEST(DumpDatatypes, Values) {
  struct Case {
    Datatype type;
    std::uint64_t bits;
    Json json;
    std::string text;
  };
  const std::vector<Case> cases = {
      {Datatype::i8, 0x80, -128, "-128"},
      {Datatype::u8, 0xFF, 255, "255"},
      {Datatype::i32, 0x80000000, -2147483648LL, "-2147483648"},
      {Datatype::u32, 0xFFFFFFFF, 4294967295u, "4294967295"},
      {Datatype::i64, 0x8000000000000001, INT64_MIN + 1, "-9223372036854775807"},
      {Datatype::u64, 0xFFFFFFFFFFFFFFFF, UINT64_MAX, "18446744073709551615"},
      {Datatype::f16, 0x7BFF, 65504.0, "65504"},
      {Datatype::bf16, 0xC040, -3.0, "-3"},
      {Datatype::f32, 0x3DCCCCCD, static_cast<double>(0.1f), "0.100000001"},
      {Datatype::f64, 0x3FB999999999999A, 0.1, "0.1"},
      {Datatype::f64, 0x7FEFFFFFFFFFFFFF, 1.7976931348623157e308, "1.7976931348623157e+308"},
      {Datatype::f8e4m3, 0x7E, 448.0, "448"},
      {Datatype::f8e4m3, 0x01, std::ldexp(1.0, -9), "0.001953125"},
      {Datatype::f8e4m3, 0xFF, "NaN", "NaN"},
      {Datatype::f8e5m2, 0x7B, 57344.0, "57344"},
      {Datatype::f8e5m2, 0xFC, "-Infinity", "-Infinity"},
      {Datatype::f8e5m2, 0x01, std::ldexp(1.0, -16), "1.52587891e-05"},
  };
  for (const Case& c : cases) {
    TemporaryFolder folder;
    SyntheticRing ring(RingSpec{});
    RecordHead head = make_scalar(0, 0, 0, 1, 0);
    head.collective.datatype = static_cast<std::uint8_t>(c.type);
    std::memcpy(head.collective.raw, &c.bits, 8);
    ring.append(head);
    ring.append(make_result(head, c.bits));
    ring.save(folder / "a.ring");
    for (const Json& j : objects(run_tool({"dump", "--json", folder / "a.ring"}))) {
      EXPECT_EQ(j["datatype"], name(c.type));
      EXPECT_EQ(j["values"], Json::array({c.json})) << name(c.type);
      const bool measures = j["kind"] == "result" && c.type >= Datatype::f16;
      for (const char* key : {"norm", "sum_squares", "max_abs", "nan", "inf"}) EXPECT_EQ(j[key].is_null(), !measures);
    }
    const auto table = lines(run_tool({"dump", folder / "a.ring"}).out);
    ASSERT_EQ(table.size(), 3u);
    EXPECT_EQ(table[1].substr(table[0].find("value")), c.text);
    EXPECT_TRUE(table[2].ends_with(" " + c.text)) << table[2];
  }
}

// A sketch for tests: each element is added to or subtracted from one of k floats.
std::vector<float> random_sketch(const std::vector<double>& x, std::uint32_t k, std::uint64_t key) {
  std::mt19937_64 random(key);
  std::vector<double> sums(k);
  for (const double v : x) {
    const std::uint64_t place = random();
    sums[place % k] += (place >> 63) != 0 ? -v : v;
  }
  return {sums.begin(), sums.end()};
}

struct Pair {
  std::vector<double> x, y;
  double xx = 0, yy = 0, cosine = 0;
};

Pair random_pair(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> gauss;
  Pair p;
  double xy = 0;
  for (int i = 0; i < 5000; i++) {
    p.x.push_back(gauss(random));
    p.y.push_back(0.6 * p.x.back() + 0.8 * gauss(random));
    p.xx += p.x.back() * p.x.back();
    p.yy += p.y.back() * p.y.back();
    xy += p.x.back() * p.y.back();
  }
  p.cosine = xy / std::sqrt(p.xx * p.yy);
  return p;
}

// Writes rings of two ranks with one bucket a step, all with the same gradients but other sketches; `scale` is of the
// gradient.
void write_pair(const TemporaryFolder& folder, const Pair& p, std::uint32_t k, Datatype type, double scale) {
  for (std::uint32_t r = 0; r < 2; r++) {
    RingSpec spec;
    spec.rank = r;
    spec.nranks = 2;
    spec.sketch_floats = k;
    spec.capacity = 24;
    SyntheticRing ring(spec);
    for (std::uint64_t s = 0; s < 20; s++) {
      std::vector<double> x = r == 0 ? p.x : p.y;
      for (double& v : x) v *= scale;
      RecordHead head = make_collective(s, s, 0, 1, x.size(), (r == 0 ? p.xx : p.yy) * scale * scale);
      head.collective.datatype = static_cast<std::uint8_t>(type);
      ring.append(head, random_sketch(x, k, s));
    }
    ring.finalize();
    ring.save(folder / ("r" + std::to_string(r) + ".ring"));
  }
}

TEST(SketchSizes, CompareAndDumpTakeEach) {
  const Pair p = random_pair(1);
  std::map<std::uint32_t, double> rms;
  for (const std::uint32_t k : {256u, 512u, 1024u, 2048u, 4096u}) {
    TemporaryFolder folder;
    write_pair(folder, p, k, Datatype::f32, 1);
    const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
    ASSERT_EQ(steps.size(), 20u);
    double squares = 0;
    int held = 0;
    for (const Json& j : steps) {
      const double estimate = j["mean_cosine"];
      squares += std::pow(estimate - p.cosine, 2) / 20;
      held += j["cosine_low"] <= p.cosine && p.cosine <= j["cosine_high"] ? 1 : 0;
    }
    EXPECT_GE(held, 17) << k;
    // Twice the margin estimator's standard deviation in theory, (1 - c^2) / sqrt((1 + c^2) k).
    EXPECT_LT(std::sqrt(squares), 2 * (1 - 0.36) / std::sqrt(1.36 * k)) << k;
    const auto dumped = objects(run_tool({"dump", "--json", "--sketch", folder / "r1.ring"}));
    ASSERT_EQ(dumped.size(), 20u);
    const auto sketch = random_sketch(p.y, k, 7);
    EXPECT_EQ(dumped[7]["sketch_floats"], k);
    ASSERT_EQ(dumped[7]["sketch"].size(), k);
    EXPECT_EQ(dumped[7]["sketch"][k - 1].get<double>(), static_cast<double>(sketch[k - 1]));
    expect_part(run_tool({"info", folder / "r1.ring"}).out, "sketch of " + std::to_string(k) + " floats");
  }
}

TEST(CompareDatatypes, OfBuckets) {
  const Pair p = random_pair(2);
  for (const Datatype type :
       {Datatype::f64, Datatype::f32, Datatype::f16, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2}) {
    TemporaryFolder folder;
    const double scale = type == Datatype::f64 ? 1e20 : 1;
    write_pair(folder, p, 1024, type, scale);
    for (const Json& j : objects(run_tool({"compare", "--json", folder.path()}))) {
      EXPECT_NEAR(j["norm_max"].get<double>() / (std::sqrt(std::max(p.xx, p.yy)) * scale), 1, 1e-9);
      EXPECT_NEAR(j["mean_cosine"].get<double>(), p.cosine, 0.15);
      EXPECT_EQ(j["notes"], Json::array());
    }
  }
}

// Finite float64 elements may have squares that are not.
TEST(CompareDatatypes, DoublesBeyondTheirSquares) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (head.kind != 1) return;
    head.collective.datatype = static_cast<std::uint8_t>(Datatype::f64);
    if (rank != 1 || head.op != 3) return;
    head.collective.max_abs = 1e200;
    head.collective.sum_squares = INFINITY;
    head.flags |= kFlagSketchInvalid;
  };
  run.write(folder);
  const auto steps = objects(run_tool({"compare", "--json", folder.path()}));
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[0]["norm_buckets"], 2);
  EXPECT_EQ(steps[1]["norm_buckets"], 1);
  expect_part(steps[1]["notes"].dump(), "op 3 left out: values too large for a norm on rank(s) 1");
  EXPECT_EQ(run_tool({"compare", "--fail-on-findings", folder.path()}).exit_code, 0);
  const auto o = objects(run_tool({"dump", "--json", "--kind", "collective", run.path(folder, 1)}));
  EXPECT_EQ(o[2]["norm"], "Infinity");
  EXPECT_EQ(o[2]["max_abs"], 1e200);
}

}  // namespace
}  // namespace gradprobe::test
