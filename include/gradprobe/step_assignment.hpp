// Gives every record of a ring its step, also those written before the step's period was known.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ring_format.hpp"
#include "step_detector.hpp"

namespace gradprobe {

// A record without its sketch.
struct NumberedHead {
  std::uint64_t number = 0;  // of the ring
  RecordHead head{};
};

struct AssignedStep {
  std::uint64_t step = kNone;
  std::uint32_t step_op = 0;
  std::uint32_t ops_per_step = 0;  // 0 while unknown
  bool extra = false;
};

namespace detail {

// The inputs are the sequence in which steps are found. Results follow theirs whenever they are read from the device.
constexpr bool is_op(const RecordHead& head) {
  const auto kind = static_cast<RecordKind>(head.kind);
  return kind == RecordKind::collective || kind == RecordKind::scalar;
}

inline std::uint64_t signature_of(const RecordHead& head) {
  const CollectiveBody& body = head.collective;
  return step_signature(static_cast<Function>(body.function), static_cast<Datatype>(body.datatype), body.count);
}

// One op in ring order. `joined`: no record is missing between it and the op before.
struct SequenceOp {
  std::size_t record;
  std::uint64_t signature;
  bool joined;
};

// Numbers ops[begin, anchor) backwards from ops[anchor], whose step is known; ops[begin - 1] is the one before whose
// step is, if there is one.
inline void assign_before(std::span<const SequenceOp> ops, std::size_t begin, std::size_t anchor, bool whole_run,
                          std::vector<AssignedStep>& steps) {
  const AssignedStep known = steps[ops[anchor].record];
  const std::size_t period = known.ops_per_step;
  if (period == 0) return;
  // ops[first, anchor) continue the pattern backwards. The writer confirms a period only after at least a whole one has
  // repeated, so the ops nearest to the anchor belong to it even where the ring holds nothing a period later yet.
  std::size_t first = anchor;
  while (first > begin && ops[first].joined &&
         (first - 1 + period >= ops.size() || ops[first - 1].signature == ops[first - 1 + period].signature)) {
    first--;
  }
  // A step that had begun before is over: its pattern had ended.
  std::uint64_t lowest = 0;
  if (begin > 0) {
    const AssignedStep& before = steps[ops[begin - 1].record];
    lowest = before.step + (before.extra && before.step_op == 0 ? 0 : 1);
  }
  std::uint64_t step = known.step;
  std::size_t phase = known.step_op;
  std::size_t whole = phase == 0 ? anchor : first;  // where the earliest whole period begins
  std::size_t reached = anchor;                     // from here on, ops have a step
  for (std::size_t i = anchor; i > first; i--) {
    if (phase == 0) {
      if (step <= lowest) break;
      step--;
      phase = period;
    }
    phase--;
    steps[ops[i - 1].record] = {step, static_cast<std::uint32_t>(phase), known.ops_per_step, false};
    reached = i - 1;
    if (phase == 0) whole = i - 1;
  }
  const bool gapless = std::all_of(ops.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                                   ops.begin() + static_cast<std::ptrdiff_t>(anchor) + 1,
                                   [](const SequenceOp& op) { return op.joined; });
  if (!gapless) return;
  if (begin > 0 && ops[begin].joined) {
    // What ended the old pattern and came before the next.
    for (std::size_t i = begin; i < reached; i++)
      steps[ops[i].record] = {steps[ops[begin - 1].record].step, 0, known.ops_per_step, true};
  }
  if (begin > 0 || !whole_run) return;
  // From the run's first op on: what comes before the first whole period is the irregular first iteration.
  const AssignedStep& earliest = steps[ops[whole].record];
  const std::uint64_t before = earliest.step_op == 0 && earliest.step > 0 ? earliest.step - 1 : earliest.step;
  for (std::size_t i = begin; i < whole; i++) {
    steps[ops[i].record] = {before, static_cast<std::uint32_t>(i - begin), known.ops_per_step, false};
  }
}

// The longest stretch of ops that repeat with a period, of equals the one with the shortest period.
struct Stretch {
  std::size_t first = 0, ops = 0, period = 0;
};
inline Stretch longest_stretch(std::span<const SequenceOp> ops) {
  Stretch best;
  const std::size_t longest_period = std::min<std::size_t>(StepDetector::kMaxPeriod, ops.size() / 2);
  for (std::size_t period = 1; period <= longest_period; period++) {
    std::size_t run = 0;
    for (std::size_t i = period; i < ops.size(); i++) {
      run = ops[i].signature == ops[i - period].signature ? run + 1 : 0;
      if (run >= period && run + period > best.ops) best = {i + 1 - run - period, run + period, period};
    }
  }
  return best;
}

// No step was ever confirmed: with hindsight over all ops of the run. At least two periods, covering half of the ops.
inline void assign_by_hindsight(std::span<const SequenceOp> ops, std::vector<AssignedStep>& steps) {
  const Stretch s = longest_stretch(ops);
  if (s.period == 0 || 2 * s.ops < ops.size()) return;
  std::size_t whole = s.first;
  if (s.first != 0) {
    const auto bucket =
        std::find_if(ops.begin(), ops.end(), [](const SequenceOp& op) { return signature_is_bucket(op.signature); });
    const auto leading = static_cast<std::uint64_t>(bucket - ops.begin());
    whole += step_phase(ops[0].signature, leading, s.period, [&](std::size_t i) { return ops[s.first + i].signature; });
  }
  const auto period = static_cast<std::uint32_t>(s.period);
  const std::uint64_t base = whole == 0 ? 0 : 1;
  for (std::size_t i = 0; i < ops.size(); i++) {
    AssignedStep& a = steps[ops[i].record];
    if (i < whole) {
      a = {0, static_cast<std::uint32_t>(i), period, false};
    } else if (i < s.first + s.ops) {
      a = {base + (i - whole) / s.period, static_cast<std::uint32_t>((i - whole) % s.period), period, false};
    } else {
      a = {base + (s.first + s.ops - 1 - whole) / s.period, 0, period, true};
    }
  }
}

// A result belongs to the step of its input, as far as that is there and its step known.
inline void assign_results(std::span<const NumberedHead> records, std::vector<AssignedStep>& steps) {
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < records.size(); i++) {
    const RecordHead& head = records[i].head;
    if (static_cast<RecordKind>(head.kind) != RecordKind::result) continue;
    if ((head.flags & kFlagStepConfirmed) != 0)
      steps[i] = {head.step, head.step_op, head.ops_per_step, (head.flags & kFlagExtraOp) != 0};
    else
      unknown.push_back(i);
  }
  if (unknown.empty()) return;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::size_t> inputs;
  for (std::size_t i = 0; i < records.size(); i++)
    if (is_op(records[i].head)) inputs.try_emplace({records[i].head.op, records[i].head.replay}, i);
  for (const std::size_t i : unknown) {
    const auto input = inputs.find({records[i].head.op, records[i].head.replay});
    if (input != inputs.end()) steps[i] = steps[input->second];
  }
}

// A mark from which on ops belong to a step.
constexpr bool is_step_mark(const RecordHead& head) {
  return static_cast<RecordKind>(head.kind) == RecordKind::mark &&
         static_cast<MarkKind>(head.mark.kind) == MarkKind::step && head.step != kNone;
}

// A mark has the step that its writer gave it; without one, that of the last op before it, or of the first.
inline void assign_marks(std::span<const NumberedHead> records, std::vector<AssignedStep>& steps) {
  std::uint64_t last = kNone;
  std::vector<std::size_t> before_all;
  for (std::size_t i = 0; i < records.size(); i++) {
    const RecordHead& head = records[i].head;
    if (is_op(head)) {
      last = steps[i].step;
      for (const std::size_t mark : before_all) steps[mark].step = last;
      before_all.clear();
    } else if (static_cast<RecordKind>(head.kind) == RecordKind::mark) {
      if ((head.flags & kFlagStepConfirmed) != 0)
        steps[i].step = head.step;
      else if (last != kNone)
        steps[i].step = last;
      else
        before_all.push_back(i);
    }
  }
}

// The application's numbers hold, and what was found before its first mark may have got as far: such steps are void.
inline void void_before_marks(std::span<const NumberedHead> records, std::vector<AssignedStep>& steps) {
  const auto first =
      std::find_if(records.begin(), records.end(), [](const NumberedHead& r) { return is_step_mark(r.head); });
  if (first == records.end()) return;
  for (std::size_t i = 0; i < static_cast<std::size_t>(first - records.begin()); i++) {
    const bool found = steps[i].ops_per_step != 0;
    if (found && steps[i].step >= first->head.step) steps[i] = {};
  }
}

// Steps of the inputs and of step records.
inline std::vector<AssignedStep> assign_ops(std::span<const NumberedHead> records) {
  std::vector<AssignedStep> steps(records.size());
  std::vector<SequenceOp> ops;
  std::vector<std::size_t> confirmed;  // indexes into ops
  for (std::size_t i = 0; i < records.size(); i++) {
    const RecordHead& head = records[i].head;
    if (static_cast<RecordKind>(head.kind) == RecordKind::step) {
      steps[i] = {head.step, 0, head.ops_per_step, false};
      continue;
    }
    if (!is_op(head)) continue;
    const bool joined = !ops.empty() && [&] {
      for (std::size_t j = ops.back().record; j < i; j++)
        if (records[j + 1].number != records[j].number + 1) return false;
      return true;
    }();
    if ((head.flags & kFlagStepConfirmed) != 0) {
      steps[i] = {head.step, head.step_op, head.ops_per_step, (head.flags & kFlagExtraOp) != 0};
      confirmed.push_back(ops.size());
    }
    ops.push_back({i, signature_of(head), joined});
  }
  if (ops.empty()) return steps;
  const bool from_start = records.front().number == 0;
  const bool regular =
      std::any_of(confirmed.begin(), confirmed.end(), [&](std::size_t op) { return !steps[ops[op].record].extra; });
  if (!regular) {
    const bool gapless = std::all_of(ops.begin() + 1, ops.end(), [](const auto& op) { return op.joined; });
    if (from_start && gapless) assign_by_hindsight(ops, steps);
    return steps;
  }
  std::size_t begin = 0;
  for (const std::size_t anchor : confirmed) {
    const bool extra = steps[ops[anchor].record].extra;
    if (anchor > begin && !extra) assign_before(ops, begin, anchor, from_start && begin == 0, steps);
    // Extras are no anchors, but their step is known.
    if (anchor == begin || !extra) begin = anchor + 1;
  }
  return steps;
}

}  // namespace detail

// The step of every record, in the order given (oldest first; records of all kinds, since a gap in the numbers is
// something lost). Steps that the writer confirmed are taken as they are; earlier ops are derived from the first
// confirmed one after them. If the writer never confirmed any, and the ring goes back to the run's first op, the whole
// sequence is searched. A result has its input's step. Steps that the application marked are the writer's; those found
// before its first mark count as far as they are lower. What stays unknown is kNone.
inline std::vector<AssignedStep> assign_steps(std::span<const NumberedHead> records) {
  std::vector<AssignedStep> steps = detail::assign_ops(records);
  detail::assign_results(records, steps);
  detail::void_before_marks(records, steps);
  detail::assign_marks(records, steps);
  return steps;
}

}  // namespace gradprobe
