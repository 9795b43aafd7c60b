// What all-reduces left on the ranks: compare says when it isn't the same everywhere, and is otherwise as without
// results.
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

Json summary(const TemporaryFolder& folder) {
  return compare({"--summary", folder.path()}).at(0);
}

std::vector<std::string> texts(const TemporaryFolder& folder, const std::string& kind) {
  std::vector<std::string> found;
  const Json whole = summary(folder);
  for (const Json& finding : whole["findings"])
    if (finding["kind"] == kind) found.push_back(finding["text"]);
  return found;
}

void expect_part(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << part << "\nis not in\n" << whole;
}

void expect_only(const std::vector<std::string>& texts, const std::string& part) {
  ASSERT_EQ(texts.size(), 1u);
  expect_part(texts[0], part);
}

TrainingSpec with_results() {
  TrainingSpec spec;
  spec.results = true;
  return spec;
}

void flip_bit(std::vector<float>& x, std::size_t element, int bit) {
  std::uint32_t word;
  std::memcpy(&word, &x[element], 4);
  word ^= 1u << bit;
  std::memcpy(&x[element], &word, 4);
}

// Nothing else in the comparison may depend on whether there are results, wherever they lie in the rings.
TEST(Results, ChangeNothingElse) {
  for (const bool confirmed : {true, false}) {
    TemporaryFolder plain;
    TrainingSpec spec;
    spec.confirmed = confirmed;
    TrainingRun(spec).write(plain);
    const auto expected = compare({plain.path()});
    ASSERT_EQ(expected.size(), 6u);
    const Json expected_summary = summary(plain);
    EXPECT_EQ(expected_summary["results_compared"], 0);
    for (const std::size_t after : {0u, 1u, 7u, 1000u}) {
      TemporaryFolder folder;
      spec = with_results();
      spec.confirmed = confirmed;
      spec.results_after = after;
      TrainingRun(spec).write(folder);
      auto steps = compare({folder.path()});
      ASSERT_EQ(steps.size(), expected.size());
      for (std::size_t i = 0; i < steps.size(); i++) {
        EXPECT_EQ(steps[i]["results_compared"], 3);
        steps[i]["results_compared"] = 0;
        EXPECT_EQ(steps[i], expected[i]) << after;
      }
      Json with = summary(folder);
      EXPECT_EQ(with["results_compared"], 18);
      EXPECT_EQ(with["results_different"], 0);
      with["results_compared"] = 0;
      EXPECT_EQ(with, expected_summary);
      const Outcome o = run_tool({"compare", "--fail-on-findings", folder.path()});
      EXPECT_EQ(o.exit_code, 0) << o.out;
      expect_part(o.out, "results: 18 all-reduces compared between ranks, 0 differ");
      expect_part(o.out, "Nothing conspicuous found");
    }
  }
}

// One bit of one element, once: the highest, the lowest, of the first and the last bucket and of the loss.
TEST(Results, OneFlippedBitIsFound) {
  for (const int bit : {0, 22, 31}) {
    for (const std::uint64_t op : {9u, 10u, 11u}) {
      TemporaryFolder folder;
      TrainingRun run(with_results());
      run.damage = [&](std::uint32_t rank, std::uint64_t at, std::vector<float>& result) {
        if (rank == 2 && at == op) flip_bit(result, result.size() / 2, bit);
      };
      run.write(folder);
      const std::string count = op == 9 ? "1500 elements" : op == 10 ? "750 elements" : "1 element";
      expect_only(texts(folder, "result_mismatch"),
                  "rank 2 got another all-reduce result than the majority (ranks 0-1,3): first step 3, op " +
                      std::to_string(op) + " (AllReduce f32, " + count + ", collective " + std::to_string(op - 8) +
                      " of the step's 3); 1 of 18 all-reduces compared. ");
      const auto steps = compare({folder.path()});
      for (std::size_t s = 0; s < steps.size(); s++) {
        const Json& found = steps[s]["result_mismatches"];
        ASSERT_EQ(found.size(), s == 3 ? 1u : 0u) << found;
        if (s != 3) continue;
        EXPECT_EQ(found[0]["op"], op);
        EXPECT_EQ(found[0]["replay"], 0);
        EXPECT_EQ(found[0]["datatype"], "f32");
        EXPECT_EQ(found[0]["differing"], Json::array({2}));
        EXPECT_EQ(found[0]["equal_ranks"], Json::array({{0, 1, 3}, {2}}));
      }
      const Outcome o = run_tool({"compare", "--fail-on-findings", folder.path()});
      EXPECT_EQ(o.exit_code, 1);
      expect_part(o.out, "FINDING: rank 2 got another");
      expect_part(o.out, "silent data corruption");
      expect_part(o.out, "Resume from a checkpoint");
    }
  }
}

TEST(Results, AlwaysTheSameCollective) {
  TemporaryFolder folder;
  TrainingRun run(with_results());
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (rank == 1 && op % 3 == 1 && op > 3) result[5] += 1;
  };
  run.write(folder);
  expect_only(texts(folder, "result_mismatch"),
              "first step 1, op 4 (AllReduce f32, 750 elements, collective 2 of the step's 3); 5 of 18 all-reduces "
              "compared, always that collective of the step.");
}

TEST(Results, SeveralRanksAndCollectives) {
  TemporaryFolder folder;
  TrainingSpec spec = with_results();
  spec.ranks = 7;
  TrainingRun run(spec);
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (op >= 6 && op % 3 != 2 && (rank == 4 || rank == 5)) result[rank] += 1;  // not the same on both
    if (op == 16 && rank == 0) result[1] += 1;
  };
  run.write(folder);
  const auto found = texts(folder, "result_mismatch");
  ASSERT_EQ(found.size(), 2u);
  expect_part(found[0], "ranks 4-5 got another all-reduce result than the majority (ranks 0-3,6): first step 2, op 6");
  expect_part(found[0], "; 7 of 18 all-reduces compared, in 2 of the step's collectives.");
  expect_part(found[1],
              "ranks 0,4-5 got another all-reduce result than the majority (ranks 1-3,6): first step 5, op 16");
  expect_part(found[1], "; 1 of 18 all-reduces compared. ");
  EXPECT_EQ(summary(folder)["results_different"], 8);
}

TEST(Results, ManySetsOfRanksAreCounted) {
  TemporaryFolder folder;
  TrainingSpec spec = with_results();
  spec.ranks = 8;
  TrainingRun run(spec);
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (op % 8 == rank) result[0] += 1;
  };
  run.write(folder);
  const auto found = texts(folder, "result_mismatch");
  ASSERT_EQ(found.size(), 5u);
  // 18 ops; ranks 0 and 1 differ in three, the others in two each.
  expect_part(found[0], "rank 0 got another");
  expect_part(found[0], "; 3 of 18 all-reduces");
  expect_part(found[4], "the results of 8 all-reduces more differ on other ranks");
}

TEST(Results, TwoRanksHaveNoMajority) {
  TemporaryFolder folder;
  TrainingSpec spec = with_results();
  spec.ranks = 2;
  TrainingRun run(spec);
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (rank == 1 && op == 3) result[0] += 1;
  };
  run.write(folder);
  expect_only(
      texts(folder, "result_mismatch"),
      "the ranks got different all-reduce results, and no majority says which is right (rank 0 against rank 1): "
      "first step 1, op 3");
  EXPECT_TRUE(compare({folder.path()})[1]["result_mismatches"][0]["differing"].is_null());
}

TEST(Results, HalvesAndSingleRanksHaveNoMajority) {
  for (const bool halves : {true, false}) {
    TemporaryFolder folder;
    TrainingSpec spec = with_results();
    spec.ranks = 6;
    TrainingRun run(spec);
    run.damage = [&](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
      if (op == 3) result[0] += halves ? static_cast<float>(rank % 2) : static_cast<float>(rank);
    };
    run.write(folder);
    expect_only(texts(folder, "result_mismatch"),
                halves ? "(ranks 0,2,4 against ranks 1,3,5)"
                       : "(rank 0 against rank 1 against rank 2 against rank 3 and 2 results more)");
  }
}

// A majority is of the ranks whose results are there.
TEST(Results, MissingOnSomeRanks) {
  TemporaryFolder folder;
  TrainingSpec spec = with_results();
  spec.ranks = 5;
  TrainingRun run(spec);
  run.has_result = [](std::uint32_t rank, std::uint64_t op) {
    if (op < 3) return rank == 2;  // on one rank only
    if (op < 6) return rank != 1;  // one is missing
    if (op < 9) return rank <= 1;  // on two
    return rank == 0 ? op % 2 == 0 : true;
  };
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (rank == 2 && (op == 0 || op == 4)) result[0] += 1;  // the former has nothing to be compared with
  };
  run.write(folder);
  expect_only(texts(folder, "result_mismatch"),
              "rank 2 got another all-reduce result than the majority (ranks 0,3-4): first step 1, op 4");
  EXPECT_EQ(summary(folder)["results_compared"], 15);
}

TEST(Results, MissedOnesAreNotComparedAndSaid) {
  TemporaryFolder folder;
  TrainingRun run(with_results());
  run.change_result = [](std::uint32_t rank, RecordHead& head) {
    if (rank != 3 || head.op < 9) return;
    head.missed = 11;
    head.collective.fingerprint = 0;
  };
  run.write(folder);
  EXPECT_TRUE(texts(folder, "result_mismatch").empty());
  expect_only(texts(folder, "missed_result"), "9 of 72 results were not measured: measured, but the collector fell");
  EXPECT_TRUE(texts(folder, "missed").empty());
  EXPECT_EQ(run_tool({"compare", "--fail-on-findings", folder.path()}).exit_code, 0);
}

// Rings of different length that have been overwritten to different ends.
TEST(Results, LappedRings) {
  const auto write = [](const TemporaryFolder& folder, bool damaged) {
    for (std::uint32_t r = 0; r < 4; r++) {
      RingSpec spec;
      spec.rank = r;
      spec.nranks = 4;
      spec.capacity = 40 + 7 * r;
      spec.sketch_floats = 0;
      SyntheticRing ring(spec);
      for (std::uint64_t op = 0; op < 100; op++) {
        const std::uint64_t step = op / 2;
        const RecordHead input =
            make_collective(op, step, static_cast<std::uint32_t>(op % 2), 2, 1000 + op % 2, 1.0 + r);
        ring.append(input);
        const bool differs = damaged && (r == 1 || (r == 3 && op == 88));
        if (op % 4 < 2) ring.append(make_result(input, 0xABC000 + op + (differs ? 1 : 0)));
      }
      ring.finalize();
      ring.save(folder / ("r" + std::to_string(r) + ".ring"));
    }
  };
  TemporaryFolder good, bad;
  write(good, false);
  EXPECT_TRUE(texts(good, "result_mismatch").empty());
  write(bad, true);
  // Of 150 records, six for every four ops, the rings hold the last 40, 47, 54 and 61: results from op 73, 68, 64 and
  // 60 on. Rank 1's oldest is there without its input. Two ranks or more have results of ops 64, 65, 68, 69, ... 97.
  const auto found = texts(bad, "result_mismatch");
  ASSERT_EQ(found.size(), 2u);
  expect_part(found[0], "rank 1 got another all-reduce result than the majority (ranks 2-3): first step 34, op 68 ");
  expect_part(found[0], "; 15 of 18 all-reduces compared, in 2 of the step's collectives.");
  expect_part(found[1], "no majority says which is right (ranks 0,2 against ranks 1,3): first step 44, op 88 ");
  expect_part(found[1], "; 1 of 18 all-reduces compared. ");
}

// Only all-reduces leave the same on all ranks.
TEST(Results, OfOtherFunctionsAreNotCompared) {
  for (const Function function :
       {Function::reduce_scatter, Function::reduce, Function::all_gather, Function::broadcast, Function::unknown}) {
    TemporaryFolder folder;
    TrainingRun run(with_results());
    run.change = [&](std::uint32_t, RecordHead& head) {
      head.collective.function = static_cast<std::uint8_t>(function);
    };
    run.change_result = [&](std::uint32_t rank, RecordHead& head) { head.collective.fingerprint += rank; };
    run.write(folder);
    EXPECT_TRUE(texts(folder, "result_mismatch").empty());
    EXPECT_EQ(summary(folder)["results_compared"], 0);
    EXPECT_EQ(run_tool({"compare", folder.path()}).out.find("results:"), std::string::npos);
  }
}

// Ranks that called something else there: their inputs' records say so, and their results have to differ.
TEST(Results, OfDifferentShapesAreNotCompared) {
  for (const bool datatype : {true, false}) {
    TemporaryFolder folder;
    TrainingRun run(with_results());
    run.change_result = [&](std::uint32_t rank, RecordHead& head) {
      if (rank != 1 || head.op != 4) return;
      if (datatype)
        head.collective.datatype = static_cast<std::uint8_t>(Datatype::f16);
      else
        head.collective.count++;
      head.collective.fingerprint++;
    };
    run.write(folder);
    EXPECT_TRUE(texts(folder, "result_mismatch").empty());
    EXPECT_EQ(summary(folder)["results_compared"], 17);
  }
}

// NaNs of equal bits are equal.
TEST(Results, NaNsAreComparedByTheirBits) {
  const auto mismatches = [](int bit) {
    TemporaryFolder folder;
    TrainingRun run(with_results());
    run.damage = [&](std::uint32_t rank, std::uint64_t, std::vector<float>& result) {
      result[0] = NAN;
      if (rank == 3 && bit >= 0) flip_bit(result, 0, bit);
    };
    run.change_result = [](std::uint32_t, RecordHead& head) {
      head.collective.nan_count = 1;
      head.collective.first_nonfinite = 0;
    };
    run.write(folder);
    // NaN in a result is no rank's own.
    EXPECT_TRUE(texts(folder, "nonfinite").empty());
    return texts(folder, "result_mismatch").size();
  };
  EXPECT_EQ(mismatches(-1), 0u);
  EXPECT_EQ(mismatches(3), 1u);
}

// Replays of captured calls are compared one by one; the first mismatch is the first in time, not of the lowest op.
TEST(Results, OfReplays) {
  TemporaryFolder folder;
  for (std::uint32_t r = 0; r < 3; r++) {
    RingSpec spec;
    spec.rank = r;
    spec.nranks = 3;
    spec.capacity = 100;
    spec.sketch_floats = 0;
    SyntheticRing ring(spec);
    for (std::uint32_t replay = 1; replay <= 10; replay++) {
      for (std::uint64_t op = 0; op < 2; op++) {
        RecordHead input = make_collective(op, replay, static_cast<std::uint32_t>(op), 2, 1000 + op, 1 + r);
        input.replay = replay;
        input.flags |= kFlagCaptured;
        ring.append(input);
        const bool damaged = r == 1 && ((op == 1 && replay == 4) || (op == 0 && replay == 7));
        ring.append(make_result(input, 1000 * op + replay + (damaged ? 500 : 0)));
      }
    }
    ring.finalize();
    ring.save(folder / ("r" + std::to_string(r) + ".ring"));
  }
  expect_only(texts(folder, "result_mismatch"),
              "rank 1 got another all-reduce result than the majority (ranks 0,2): first step 4, op 1, replay 4 "
              "(AllReduce f32, 1001 elements, collective 2 of the step's 2); 2 of 20 all-reduces compared, in 2 of the "
              "step's collectives.");
}

// Without a known step there is still an op.
TEST(Results, OfUnknownSteps) {
  TemporaryFolder folder;
  TrainingSpec spec = with_results();
  spec.steps = 1;
  spec.confirmed = false;
  TrainingRun run(spec);
  run.damage = [](std::uint32_t rank, std::uint64_t op, std::vector<float>& result) {
    if (rank == 0 && op == 1) result[0] += 1;
  };
  run.write(folder);
  expect_only(texts(folder, "result_mismatch"),
              "rank 0 got another all-reduce result than the majority (ranks 1-3): first step unknown, op 1 (AllReduce "
              "f32, 750 elements); 1 of 3 all-reduces compared. ");
}

}  // namespace
}  // namespace gradprobe::test
