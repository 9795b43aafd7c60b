#include <gtest/gtest.h>
#include <gradprobe/step_assignment.hpp>

#include <algorithm>

#include "step_sequence.hpp"
#include "synthetic_ring.hpp"

namespace gradprobe {
namespace {

using test::times;

// Records as a collector writes them: the step only from the op on at which it was known.
std::vector<NumberedHead> records_of(const std::string& letters, std::uint64_t first_number = 0) {
  StepDetector detector;
  std::vector<NumberedHead> records;
  for (std::size_t i = 0; i < letters.size(); i++) {
    const auto p = detector.feed(test::signature_of(letters[i]));
    RecordHead head = letters[i] == 'L' ? test::make_scalar(i, kNone, 0, 0, 0.5f)
                                        : test::make_collective(i, kNone, 0, 0, test::count_of(letters[i]), 1);
    if (p.confirmed) {
      head.step = p.step;
      head.step_op = p.step_op;
      head.ops_per_step = p.ops_per_step;
      head.flags = kFlagStepConfirmed | (p.extra ? kFlagExtraOp : 0u);
    }
    records.push_back({first_number + i, head});
  }
  return records;
}

// What a collector that numbers pending ops at the confirmation would say.
void expect_like_collector(const std::string& letters) {
  const auto steps = assign_steps(records_of(letters));
  const auto expected = test::number_all(letters);
  for (std::size_t i = 0; i < letters.size(); i++) {
    ASSERT_EQ(steps[i].step, expected[i].step) << letters << " " << i;
    ASSERT_EQ(steps[i].extra, expected[i].extra) << letters << " " << i;
  }
}

TEST(StepAssignment, AgreesWithTheCollector) {
  for (const std::string& letters :
       {times("ABCL", 20), "XYL" + times("ABCL", 20), "LXY" + times("LABC", 20), times("AAAL", 20), times("A", 240),
        "ABXL" + times("ABCL", 20), times("ABCL", 20) + "V" + times("ABCL", 3)}) {
    expect_like_collector(letters);
  }
}

// A ring may end at any op, also at the very one that confirmed the period, or within the step after it.
TEST(StepAssignment, WhateverTheLengthOfTheRing) {
  for (const std::string pattern : {"L", "AL", "ABCL", "ABCDEL", "ABCDEFGHIJKMNOPQRSTL"}) {
    for (const std::string first : {"", "XYL"}) {
      if (!first.empty() && pattern.size() < 4) continue;  // the prefix would be longer than two periods
      const std::string whole = first + times(pattern, 60 / static_cast<int>(pattern.size()) + 6);
      const std::size_t shortest = first.size() + 2 * pattern.size();
      for (std::size_t length = shortest; length <= whole.size(); length++) {
        const auto steps = assign_steps(records_of(whole.substr(0, length)));
        for (std::size_t i = 0; i < length; i++) {
          const std::uint64_t base = first.empty() ? 0 : 1;
          const std::uint64_t expected = i < first.size() ? 0 : base + (i - first.size()) / pattern.size();
          ASSERT_EQ(steps[i].step, expected) << first << "+" << pattern << ", op " << i << " of " << length;
        }
      }
    }
  }
}

TEST(StepAssignment, HindsightWhenNothingWasConfirmed) {
  for (const std::string first : {"", "XYL", "XL"}) {
    for (const int n : {2, 3, 7}) {
      const std::string letters = first + times("ABCL", n);
      if (first.size() > 4u * static_cast<unsigned>(n)) continue;
      const auto steps = assign_steps(records_of(letters));
      const std::uint64_t base = first.empty() ? 0 : 1;
      for (std::size_t i = 0; i < letters.size(); i++) {
        const std::uint64_t expected = i < first.size() ? 0 : base + (i - first.size()) / 4;
        ASSERT_EQ(steps[i].step, expected) << letters << " " << i;
      }
    }
  }
}

TEST(StepAssignment, HindsightInAnUnfinishedStep) {
  const auto steps = assign_steps(records_of(times("AAAAL", 2) + "AAA"));
  for (std::size_t i = 0; i < steps.size(); i++) EXPECT_EQ(steps[i].step, i / 5) << i;
}

TEST(StepAssignment, LessThanTwoPeriodsStaysUnknown) {
  for (const std::string letters : {"ABCLABC", "A", "ABCDEFGG", ""}) {
    for (const AssignedStep& s : assign_steps(records_of(letters))) EXPECT_EQ(s.step, kNone) << letters;
  }
}

// The ring's beginning was overwritten before any step was known: ranks may have lost different amounts, so a guess
// would not agree between them.
TEST(StepAssignment, NoHindsightWithoutTheBeginning) {
  for (const AssignedStep& s : assign_steps(records_of(times("ABCL", 5), 3))) EXPECT_EQ(s.step, kNone);
}

TEST(StepAssignment, OverwrittenBeginningWithConfirmedSteps) {
  std::vector<NumberedHead> records = records_of("XYL" + times("ABCL", 20));
  const auto whole = assign_steps(records);
  for (std::size_t lost = 1; lost < records.size(); lost++) {
    const std::vector<NumberedHead> rest(records.begin() + static_cast<std::ptrdiff_t>(lost), records.end());
    const auto steps = assign_steps(rest);
    for (std::size_t i = 0; i < rest.size(); i++) {
      if (lost + i >= 3)
        ASSERT_EQ(steps[i].step, whole[lost + i].step) << lost << " " << i;
      else
        ASSERT_TRUE(steps[i].step == kNone || steps[i].step == 0) << lost << " " << i;
    }
  }
}

// A record that can't be read breaks the chain: what lies before can't be counted back.
TEST(StepAssignment, NotAcrossAGap) {
  std::vector<NumberedHead> records = records_of(times("ABCL", 20));
  records.erase(records.begin() + 10);
  const auto steps = assign_steps(records);
  for (std::size_t i = 0; i < records.size(); i++) {
    const std::uint64_t op = records[i].head.op;
    if (op > 10)
      ASSERT_EQ(steps[i].step, op / 4);
    else
      ASSERT_EQ(steps[i].step, kNone);
  }
}

TEST(StepAssignment, StepRecordsBetweenOpsDoNotBreakTheChain) {
  std::vector<NumberedHead> records;
  for (const NumberedHead& r : records_of(times("ABCL", 20))) {
    records.push_back({records.size(), r.head});
    if (r.head.kind != 3) continue;
    RecordHead step{};
    step.kind = 2;
    step.step = 77;
    records.push_back({records.size(), step});
  }
  const auto steps = assign_steps(records);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(steps[i].step, records[i].head.kind == 2 ? 77 : records[i].head.op / 4) << i;
  }
}

// Letters as records_of takes them, each op followed by its result when `after` more ops are there. The records' heads
// are those of records_of.
std::vector<NumberedHead> records_with_results(const std::string& letters, std::size_t after) {
  std::vector<NumberedHead> records;
  const auto add = [&](const RecordHead& head) { records.push_back({records.size(), head}); };
  const std::vector<NumberedHead> ops = records_of(letters);
  for (std::size_t i = 0; i < ops.size() + after; i++) {
    if (i < ops.size()) add(ops[i].head);
    if (i >= after) add(test::make_result(ops[i - after].head, 7 * i));
  }
  return records;
}

TEST(StepAssignment, ResultsAreNoOpsAndHaveTheirInputsStep) {
  for (const std::string& letters :
       {times("ABCL", 20), "XYL" + times("ABCL", 20), times("A", 60), times("ABCL", 2), times("L", 50),
        times("ABCL", 20) + "V" + times("ABCL", 3), std::string("ABCDEFGG")}) {
    const auto expected = assign_steps(records_of(letters));
    for (const std::size_t after : {0u, 1u, 5u, 1000u}) {
      const auto records = records_with_results(letters, after);
      ASSERT_EQ(records.size(), 2 * letters.size());
      const auto steps = assign_steps(records);
      for (std::size_t i = 0; i < records.size(); i++) {
        const AssignedStep& e = expected[records[i].head.op];
        ASSERT_EQ(steps[i].step, e.step) << letters << " " << after << " " << i;
        ASSERT_EQ(steps[i].step_op, e.step_op) << letters << " " << after << " " << i;
        ASSERT_EQ(steps[i].ops_per_step, e.ops_per_step) << letters << " " << after << " " << i;
        ASSERT_EQ(steps[i].extra, e.extra) << letters << " " << after << " " << i;
      }
    }
  }
}

// A ring that begins anywhere, also with results whose inputs are gone: what is assigned is right.
TEST(StepAssignment, OverwrittenBeginningWithResults) {
  const std::string letters = "XYL" + times("ABCL", 20);
  const auto whole = assign_steps(records_of(letters));
  const std::vector<NumberedHead> records = records_with_results(letters, 3);
  for (std::size_t lost = 1; lost < records.size(); lost++) {
    const std::vector<NumberedHead> rest(records.begin() + static_cast<std::ptrdiff_t>(lost), records.end());
    const auto steps = assign_steps(rest);
    for (std::size_t i = 0; i < rest.size(); i++) {
      const RecordHead& head = rest[i].head;
      const bool input_gone = head.kind == 4 && std::none_of(rest.begin(), rest.end(), [&](const NumberedHead& other) {
                                return other.head.kind != 4 && other.head.op == head.op;
                              });
      if (input_gone && (head.flags & kFlagStepConfirmed) == 0)
        ASSERT_EQ(steps[i].step, kNone) << lost << " " << i;
      else if (head.op >= 3)
        ASSERT_EQ(steps[i].step, whole[head.op].step) << lost << " " << i;
      else
        ASSERT_TRUE(steps[i].step == kNone || steps[i].step == 0) << lost << " " << i;
    }
  }
}

// Each replay of a captured call has a result of its own.
TEST(StepAssignment, ResultsOfReplays) {
  std::vector<NumberedHead> records;
  for (std::uint32_t replay = 1; replay <= 50; replay++) {
    for (std::uint64_t op = 0; op < 3; op++) {
      RecordHead head = test::make_collective(op, kNone, 0, 0, 100 + op, 1);
      head.replay = replay;
      records.push_back({records.size(), head});
    }
    for (std::uint64_t op = 0; op < 3; op++) {
      records.push_back({records.size(), test::make_result(records[records.size() - 3].head, 1)});
    }
  }
  const auto steps = assign_steps(records);
  for (std::size_t i = 0; i < records.size(); i++) {
    EXPECT_EQ(steps[i].step, records[i].head.replay - 1) << i;
    EXPECT_EQ(steps[i].step_op, records[i].head.op) << i;
  }
}

// Steps found before the application's first mark count as far as they are lower than its.
TEST(StepAssignment, MarksHoldAgainstWhatWasFoundBefore) {
  for (const std::uint64_t first : {0u, 4u, 100u}) {
    std::vector<NumberedHead> records = records_of(times("ABCL", 20));
    const auto add = [&](const RecordHead& head) { records.push_back({records.size(), head}); };
    for (std::uint64_t s = 0; s < 3; s++) {
      add(test::make_mark(80 + 4 * s, first + s, MarkKind::step, "", 0, first + s));
      for (std::uint32_t i = 0; i < 4; i++) add(test::make_collective(80 + 4 * s + i, first + s, i, 0, 100 + i, 1));
    }
    const auto steps = assign_steps(records);
    for (std::size_t i = 0; i < 80; i++) ASSERT_EQ(steps[i].step, i / 4 < first ? i / 4 : kNone) << first << " " << i;
    for (std::size_t i = 80; i < steps.size(); i++) ASSERT_EQ(steps[i].step, first + (i - 80) / 5) << first << " " << i;
  }
}

// A later mark of the same step voids nothing.
TEST(StepAssignment, MarkedStepsAreNotFoundOnes) {
  std::vector<NumberedHead> records;
  for (std::uint64_t op = 0; op < 3; op++) {
    records.push_back({7 + records.size(), test::make_collective(op, 5, static_cast<std::uint32_t>(op), 0, 100, 1)});
    records.push_back({7 + records.size(), test::make_mark(op + 1, 5, MarkKind::step, "", 0, 5)});
  }
  for (const AssignedStep& s : assign_steps(records)) EXPECT_EQ(s.step, 5u);
}

TEST(StepAssignment, MarksOutsideMarkedStepsBelongToTheOpBefore) {
  std::vector<NumberedHead> records;
  records.push_back({0, test::make_mark(0, kNone, MarkKind::phase, "train")});
  for (const NumberedHead& r : records_of(times("ABCL", 20))) {
    records.push_back({records.size(), r.head});
    if (r.head.kind == 3)
      records.push_back({records.size(), test::make_mark(r.head.op + 1, kNone, MarkKind::scalar, "loss", 1)});
  }
  const auto steps = assign_steps(records);
  EXPECT_EQ(steps[0].step, 0u);
  for (std::size_t i = 1; i < steps.size(); i++) ASSERT_EQ(steps[i].step, (i - 1) / 5) << i;
}

// An evaluation between steps ends the pattern; what comes until it returns is extra, for a reader as for the
// collector.
TEST(StepAssignment, EvaluationsAreExtras) {
  for (const int scalars : {1, 7, 8, 20, 100}) {
    expect_like_collector(times(times("ABCL", 30) + times("L", scalars), 3));
    expect_like_collector(times(times("ABCL", 30) + times("V", scalars), 3) + times("DEFL", 20));
  }
}

// Kinds of a later version: passed over, also by the step detection.
TEST(StepAssignment, UnknownKindsAreNoOps) {
  std::vector<NumberedHead> records;
  for (const NumberedHead& r : records_of(times("ABCL", 20))) {
    records.push_back({records.size(), r.head});
    for (const std::uint16_t kind : {std::uint16_t{0}, std::uint16_t{6}, std::uint16_t{0xFFFF}}) {
      RecordHead other = r.head;
      other.kind = kind;
      records.push_back({records.size(), other});
    }
  }
  const auto steps = assign_steps(records);
  for (std::size_t i = 0; i < records.size(); i++) EXPECT_EQ(steps[i].step, i % 4 == 0 ? i / 16 : kNone) << i;
}

// Fields as a damaged or hostile writer may leave them: any answer, but no crash.
TEST(StepAssignment, NonsenseFields) {
  std::vector<NumberedHead> records = records_of(times("ABCL", 20));
  records[50].head.step = kNone;
  records[51].head.ops_per_step = 0;
  records[52].head.step_op = 4000000000u;
  records[36].head.ops_per_step = 4000000000u;
  records[35].head.step_op = 4000000000u;
  EXPECT_EQ(assign_steps(records).size(), records.size());
}

}  // namespace
}  // namespace gradprobe
