#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

std::vector<Json> compare(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"compare", "--json"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Outcome o = run_tool(all);
  EXPECT_EQ(o.exit_code, 0) << o.err;
  std::vector<Json> objects;
  for (const std::string& line : lines(o.out)) objects.push_back(Json::parse(line));
  return objects;
}

std::string text(const TemporaryFolder& folder) {
  const Outcome o = run_tool({"compare", folder.path()});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  return o.out;
}

void expect_part(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << part << "\nis not in\n" << whole;
}

TEST(Compare, AgainstExactValues) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.steps = 40;
  TrainingRun run(spec);
  run.write(folder);
  const auto steps = compare({folder.path()});
  ASSERT_EQ(steps.size(), 40u);
  int means_held = 0, worst_held = 0;
  for (std::size_t s = 0; s < steps.size(); s++) {
    const Json& j = steps[s];
    EXPECT_EQ(j["comm"], "0000000000c0ffee");
    EXPECT_EQ(j["step"], s);
    EXPECT_EQ(j["ranks"], 4);
    double loss = 0, norm = 0, loss2 = 0, norm2 = 0, cosine = 0;
    std::uint32_t smallest = 0, largest = 0;
    for (std::uint32_t r = 0; r < 4; r++) {
      loss += run.loss(s, r) / 4;
      norm += run.norm(s, r) / 4;
      if (run.norm(s, r) < run.norm(s, smallest)) smallest = r;
      if (run.norm(s, r) > run.norm(s, largest)) largest = r;
      for (std::uint32_t q = r + 1; q < 4; q++) cosine += run.cosine(s, r, q) / 6;
    }
    for (std::uint32_t r = 0; r < 4; r++) {
      loss2 += std::pow(run.loss(s, r) - loss, 2) / 4;
      norm2 += std::pow(run.norm(s, r) - norm, 2) / 4;
    }
    EXPECT_NEAR(j["loss_mean"].get<double>(), loss, 1e-12);
    EXPECT_NEAR(j["loss_std"].get<double>(), std::sqrt(loss2), 1e-12);
    EXPECT_NEAR(j["loss_cv"].get<double>(), std::sqrt(loss2) / loss, 1e-12);
    EXPECT_NEAR(j["loss_range"].get<double>(), 0.375, 1e-6);
    EXPECT_NEAR(j["norm_mean"].get<double>(), norm, 1e-9);
    EXPECT_NEAR(j["norm_std"].get<double>(), std::sqrt(norm2), 1e-9);
    EXPECT_NEAR(j["norm_cv"].get<double>(), std::sqrt(norm2) / norm, 1e-9);
    EXPECT_NEAR(j["norm_min"].get<double>(), run.norm(s, smallest), 1e-9);
    EXPECT_EQ(j["norm_min_rank"], smallest);
    EXPECT_NEAR(j["norm_max"].get<double>(), run.norm(s, largest), 1e-9);
    EXPECT_EQ(j["norm_max_rank"], largest);
    EXPECT_NEAR(j["mean_cosine"].get<double>(), cosine, 0.1);
    means_held += j["cosine_low"].get<double>() <= cosine && cosine <= j["cosine_high"].get<double>() ? 1 : 0;
    const double exact = run.cosine(s, j["worst_pair"][0], j["worst_pair"][1]);
    // The worst of six estimates is low by choice; its interval holds the exact value less often than another's.
    worst_held += j["worst_low"].get<double>() <= exact && exact <= j["worst_high"].get<double>() ? 1 : 0;
  }
  EXPECT_GE(means_held, 36);
  EXPECT_GE(worst_held, 30);
}

TEST(Compare, StepsOfRecordsThatCarryNone) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.confirmed = false;
  TrainingRun run(spec);
  run.write(folder);
  const auto steps = compare({folder.path()});
  ASSERT_EQ(steps.size(), 6u);
  for (const Json& j : steps) EXPECT_EQ(j["ranks"], 4);
}

TEST(Compare, StepRangeAndSummary) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.write(folder);
  EXPECT_EQ(compare({folder.path(), "--step", "2:4"}).size(), 3u);
  EXPECT_EQ(compare({folder.path(), "--step", "4:"}).size(), 2u);
  const auto summary = compare({folder.path(), "--summary"});
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0]["steps"], 6);
  EXPECT_EQ(summary[0]["findings"], Json::array());
  double cv = 0;
  for (const Json& j : compare({folder.path()})) cv += j["norm_cv"].get<double>() / 6;
  EXPECT_NEAR(summary[0]["norm_cv"].get<double>(), cv, 1e-12);
  const Outcome o = run_tool({"compare", "--summary", folder.path()});
  EXPECT_EQ(o.out.find("worst pair"), std::string::npos);
  expect_part(o.out, "Nothing conspicuous found");
  expect_part(o.out, "DDP divides");
}

TEST(Compare, NamesTheFirstNaN) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    // Rank 2 at step 3, second bucket; then everyone, as after an all-reduce.
    const bool first = rank == 2 && head.op == 10;
    if (head.kind != 1 || (!first && head.op < 12)) return;
    head.collective.nan_count = 5;
    head.collective.first_nonfinite = first ? 123 : 7;
  };
  run.write(folder);
  const std::string out = text(folder);
  expect_part(out, "rank 2 had the first NaN: step 3, op 10 (AllReduce f32, 750 elements), element 123 (5 NaN, 0 Inf");
  expect_part(out, "Usual causes");
  const auto steps = compare({folder.path()});
  EXPECT_EQ(steps[2]["norm_buckets"], 2);
  EXPECT_EQ(steps[3]["norm_buckets"], 1);
  EXPECT_EQ(steps[3]["cosine_buckets"], 1);
  expect_part(steps[3]["notes"].dump(), "NaN or Inf on rank(s) 2");
  EXPECT_TRUE(steps[4]["norm_mean"].is_null());
  EXPECT_TRUE(steps[4]["mean_cosine"].is_null());
  EXPECT_EQ(run_tool({"compare", "--fail-on-findings", folder.path()}).exit_code, 1);
}

// Captured calls come again with every replay: the first NaN is the first in time, not that of the lowest op.
TEST(Compare, NamesTheFirstNaNOfReplays) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 2; r++) {
    RingSpec spec;
    spec.rank = r;
    spec.nranks = 2;
    spec.capacity = 100;
    spec.sketch_floats = 0;
    SyntheticRing ring(spec);
    for (std::uint32_t replay = 1; replay <= 8; replay++) {
      for (std::uint64_t op = 0; op < 2; op++) {
        RecordHead input = make_collective(op, replay, static_cast<std::uint32_t>(op), 2, 1000 + op, 1 + r);
        input.replay = replay;
        input.flags |= kFlagCaptured;
        if ((op == 1 && replay == 3 && r == 1) || (op == 0 && replay == 4)) {
          input.collective.nan_count = 2;
          input.collective.first_nonfinite = 10 + op;
        }
        ring.append(input);
      }
    }
    ring.finalize();
    ring.save(folder / ("r" + std::to_string(r) + ".ring"));
  }
  expect_part(text(folder), "rank 1 had the first NaN: step 3, op 1 (AllReduce f32, 1001 elements), element 11 (2 NaN");
}

TEST(Compare, InfInALoss) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    const float inf = INFINITY;
    if (rank == 1 && head.op == 5) std::memcpy(head.collective.raw, &inf, 4);
  };
  run.write(folder);
  expect_part(text(folder), "rank 1 had the first Inf: step 1, op 5 (AllReduce f32, 1 element), element 0");
  expect_part(compare({folder.path()})[1]["notes"].dump(), "the loss of 1 rank(s) is not finite");
}

TEST(Compare, MissingRanks) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.claimed_ranks = 8;
  TrainingRun run(spec);
  run.write(folder);
  std::filesystem::remove(run.path(folder, 1));
  expect_part(text(folder), "3 of 8 ranks have a ring here; rank(s) 1,4-7 are missing");
  for (const Json& j : compare({folder.path()})) {
    EXPECT_EQ(j["ranks"], 3);
    EXPECT_EQ(j["rank_list"], (std::vector<int>{0, 2, 3}));
    EXPECT_FALSE(j["mean_cosine"].is_null());
  }
}

TEST(Compare, RankThatDied) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.steps_of = [](std::uint32_t rank) { return rank == 3 ? std::uint64_t{2} : std::uint64_t{6}; };
  run.write(folder, "", false);
  const std::string out = text(folder);
  expect_part(out, "rank 3's ring ends at step 1, the longest at 5: it was not finalized (no heartbeat for ");
  expect_part(out, " days, and its process can't be seen from here): it died, was killed, or was copied");
  const auto steps = compare({folder.path()});
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[1]["ranks"], 4);
  EXPECT_EQ(steps[2]["ranks"], 3);
}

TEST(Compare, IncompleteLastStep) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.write(folder);
  for (std::uint32_t r = 0; r < 4; r++) {
    run.ring(r).append(make_collective(18, 6, 0, 3, 1500, 1));
    run.ring(r).save(run.path(folder, r));
  }
  const auto steps = compare({folder.path()});
  ASSERT_EQ(steps.size(), 7u);
  EXPECT_EQ(steps[5]["complete"], true);
  EXPECT_EQ(steps[6]["complete"], false);
  EXPECT_TRUE(steps[6]["loss_mean"].is_null());
  expect_part(steps[6]["notes"].dump(), "incomplete: 1 of 3");
}

TEST(Compare, MissedMeasurements) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 0 && head.kind == 1 && head.op % 3 == 0) head.missed = 1;
    if (rank == 1 && head.op >= 15 && head.kind == 1) head.missed = 4;
  };
  run.write(folder);
  const std::string out = text(folder);
  expect_part(out, "6 of 48 gradient inputs were not measured: NCCL named the buffers later");
  expect_part(out, "2 of 48 gradient inputs were not measured: too many collectives were in flight (backlog)");
  const auto steps = compare({folder.path()});
  EXPECT_EQ(steps[0]["norm_buckets"], 1);
  expect_part(steps[0]["notes"].dump(), "op 0 left out: not measured on rank(s) 0");
  expect_part(steps[5]["notes"].dump(), "no gradient measured on rank(s) 1");
  EXPECT_EQ(steps[5]["cosine_buckets"], 1);
}

TEST(Compare, NamesWhatNcclLaunchesWithoutTelling) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 0 && head.kind == 1 && head.op % 3 == 0) head.missed = 9;
  };
  run.write(folder);
  expect_part(text(folder), "reported no launch: symmetric kernels up to NCCL 2.30; broadcasts since 2.29");
}

// PyTorch's DDP with static_graph=True: two iterations with one bucket, then the buckets are made anew.
void write_static_graph(const TemporaryFolder& folder, int iterations_of_first_kind) {
  RingSpec spec;
  spec.capacity = 128;
  SyntheticRing ring(spec);
  std::uint64_t op = 0;
  const auto bucket = [&](std::uint64_t count) { ring.append(make_collective(op++, kNone, 0, 0, count, 4)); };
  const auto loss = [&] { ring.append(make_scalar(op++, kNone, 0, 0, 0.5f)); };
  for (int i = 0; i < iterations_of_first_kind; i++) {
    bucket(24576);
    loss();
  }
  for (int i = 0; i < 12; i++) {
    bucket(12288);
    bucket(12289);
    loss();
  }
  ring.save(folder / "a.ring");
}

TEST(Compare, SaysThatTheFirstStepHoldsSeveralIterations) {
  TemporaryFolder folder;
  write_static_graph(folder, 2);
  const auto steps = compare({folder.path()});
  ASSERT_EQ(steps.size(), 13u);
  expect_part(steps[0]["notes"].dump(), "seems to be 2 iterations, taken for one step");
  for (std::size_t i = 1; i < steps.size(); i++) EXPECT_EQ(steps[i]["notes"].size(), 0u) << i;
}

TEST(Compare, AFirstIterationWithOtherBucketsIsOneStep) {
  TemporaryFolder folder;
  write_static_graph(folder, 1);
  EXPECT_EQ(compare({folder.path()}).at(0)["notes"].size(), 0u);
}

TEST(Compare, SketchesThatDoNotFitTogether) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.key_of_rank = 1;
  TrainingRun run(spec);
  run.write(folder);
  for (const Json& j : compare({folder.path()})) {
    EXPECT_TRUE(j["mean_cosine"].is_null());
    EXPECT_FALSE(j["norm_mean"].is_null());
    expect_part(j["notes"].dump(), "GRADPROBE_SEED must be equal");
  }
}

TEST(Compare, InvalidSketchesAreLeftOut) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 2 && head.op == 0) head.flags |= kFlagSketchInvalid;
  };
  run.write(folder);
  const auto steps = compare({folder.path()});
  EXPECT_EQ(steps[0]["norm_buckets"], 2);
  EXPECT_EQ(steps[0]["cosine_buckets"], 1);
  EXPECT_EQ(steps[1]["cosine_buckets"], 2);
}

TEST(Compare, RanksThatDisagreeOnACollective) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 2 && head.op == 0) head.collective.count = 77;
  };
  run.write(folder);
  expect_part(compare({folder.path()})[0]["notes"].dump(), "disagree on function, datatype or count");
}

TEST(Compare, ZeroGradientOfOneRank) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 3 && head.kind == 1) head.collective.sum_squares = 0;
  };
  run.write(folder);
  expect_part(text(folder), "rank 3's gradient is all zeros");
}

TEST(Compare, NormOutlier) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t rank, RecordHead& head) {
    if (rank == 1 && head.kind == 1) head.collective.sum_squares *= 100;
  };
  run.write(folder);
  expect_part(text(folder), "rank 1's gradient norm is typically 9.");
}

TEST(Compare, SeveralCommunicators) {
  TemporaryFolder folder;
  TrainingSpec spec;
  TrainingRun(spec).write(folder);
  spec.comm_id = 0xBEEF;
  TrainingRun(spec).write(folder);
  EXPECT_EQ(compare({folder.path()}).size(), 12u);
  for (const char* id : {"beef", "0xBEEF", "000000000000beef"}) {
    const auto one = compare({folder.path(), "--comm", id});
    ASSERT_EQ(one.size(), 6u);
    EXPECT_EQ(one[0]["comm"], "000000000000beef");
  }
  EXPECT_EQ(text(folder).find("several runs"), std::string::npos);
  for (const char* id : {"cafe", "xyz", "", " ", "0x", "12345678901234567"}) {
    const Outcome o = run_tool({"compare", folder.path(), "--comm", id});
    EXPECT_EQ(o.exit_code, 2) << id;
    EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
  }
}

TEST(Compare, SeveralRunsInOneFolder) {
  TemporaryFolder folder;
  TrainingSpec spec;
  TrainingRun(spec).write(folder);
  spec.start_time_ns += 1'000'000'000;
  TrainingRun later(spec);
  later.ring(0).set_heartbeat(spec.start_time_ns + 5);
  later.write(folder, "later-");
  expect_part(text(folder), "holds an earlier ring of a rank that is here twice; the newer was used");
  EXPECT_EQ(compare({folder.path()}).size(), 6u);
}

TEST(Compare, OtherRunsCommunicator) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  TrainingSpec spec;
  spec.comm_id = 0xBEEF;
  spec.start_time_ns += 1'000'000'000;
  TrainingRun run(spec);
  for (std::uint32_t r = 0; r < 4; r++) {
    // Other processes than the first run's.
    FileHeader h = make_header(run.ring(r).spec());
    h.pid -= 100;
    h.crc = slow_crc32c(reinterpret_cast<const unsigned char*>(&h), offsetof(FileHeader, crc));
    std::memcpy(run.ring(r).bytes().data(), &h, sizeof h);
  }
  run.write(folder);
  expect_part(text(folder), "several runs seem to be mixed in this folder");
  const auto mixed = [](const Json& summary) {
    std::size_t n = 0;
    for (const Json& finding : summary["findings"]) {
      if (finding["kind"] != "mixed_runs") continue;
      expect_part(finding["text"], "communicator 0000000000c0ffee ended before 000000000000beef began");
      EXPECT_EQ(finding["notable"], false);
      n++;
    }
    return n;
  };
  const auto both = compare({folder.path(), "--summary"});
  ASSERT_EQ(both.size(), 2u);
  for (const Json& summary : both) EXPECT_EQ(mixed(summary), 1u) << summary;
  // One communicator was chosen, as the finding advises: nothing is mixed then.
  for (const char* id : {"beef", "c0ffee"}) {
    const auto one = compare({folder.path(), "--summary", "--comm", id});
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(mixed(one[0]), 0u);
  }
}

// Folders in which no step can be compared: what is said instead of "nothing found".
void expect_not_compared(const std::vector<std::string>& arguments, const std::string& why) {
  std::vector<std::string> all = {"compare"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  for (const bool only_summary : {false, true}) {
    if (only_summary) all.push_back("--summary");
    const Outcome o = run_tool(all);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    expect_part(o.out, "No step compared: " + why);
    EXPECT_EQ(o.out.find("Nothing conspicuous"), std::string::npos) << o.out;
  }
  all.insert(all.begin() + 1, "--json");
  const Json summary = Json::parse(run_tool(all).out);
  EXPECT_EQ(summary["steps_compared"], 0);
  expect_part(summary["not_compared"], why);
}

TEST(NotCompared, NoSuchSteps) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  expect_not_compared({folder.path(), "--step", "999"},
                      "none of those asked for is there; the rings have steps from 0 to 5");
  expect_not_compared({folder.path(), "--step", "6:"}, "none of those asked for is there");
}

TEST(NotCompared, NoRecords) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.steps_of = [](std::uint32_t) { return std::uint64_t{0}; };
  run.write(folder);
  expect_not_compared({folder.path()}, "no ring has a readable record");
  expect_not_compared({folder.path(), "--step", "3"}, "no ring has a readable record");
}

TEST(NotCompared, NoKnownStep) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.confirmed = false;
  spec.steps = 1;
  TrainingRun(spec).write(folder);
  expect_not_compared({folder.path()}, "no record belongs to a known step");
}

TEST(NotCompared, OneRank) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.ranks = 1;
  TrainingRun(spec).write(folder);
  expect_not_compared({folder.path()}, "the communicator has one rank");
  spec.claimed_ranks = 4;
  TrainingRun(spec).write(folder);
  expect_not_compared({folder.path()}, "only rank 0 has a ring here");
}

TEST(NotCompared, NoStepInCommon) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.steps_of = [](std::uint32_t rank) { return rank == 0 ? std::uint64_t{6} : std::uint64_t{2}; };
  run.write(folder);
  expect_not_compared({folder.path(), "--step", "3:"}, "no step is there on more than one rank");
}

TEST(NotCompared, NothingMeasured) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.change = [](std::uint32_t, RecordHead& head) { head.missed = 4; };
  run.write(folder);
  expect_not_compared({folder.path()}, "no loss or gradient was measured on more than one rank");
}

TEST(NotCompared, OtherwiseSteps) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  const auto summary = compare({folder.path(), "--summary"});
  EXPECT_EQ(summary.at(0)["steps_compared"], 6);
  EXPECT_TRUE(summary.at(0)["not_compared"].is_null());
  EXPECT_EQ(text(folder).find("No step compared"), std::string::npos);
}

TEST(Compare, DamagedHeaderNumbersAreHarmless) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.claimed_ranks = 0xFFFFFFFF;
  TrainingRun(spec).write(folder);
  expect_part(text(folder), "4 of 4294967295 ranks have a ring here; rank(s) 4-4294967294 are missing");
}

TEST(Compare, OneRing) {
  const Outcome o = run_tool({"compare", GRADPROBE_TEST_DATA "/golden/ring-v1.ring"});
  EXPECT_EQ(o.exit_code, 0);
  expect_part(o.out, "rank 3 had the first NaN: step 2, op 6 (AllReduce f32, 100 elements), element 17 (2 NaN, 0 Inf");
}

}  // namespace
}  // namespace gradprobe::test
