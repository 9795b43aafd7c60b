// What frameworks call on one communicator, op by op, with the true step of each op.
#pragma once

#include <gradprobe/step_detector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "step_sequence.hpp"

namespace gradprobe::test {

class TrainingSequence {
 public:
  struct Op {
    Function function;
    Datatype datatype;
    std::uint64_t count;
    std::optional<std::size_t> step;  // none: belongs to no step (an evaluation, a log line, a checkpoint)
    std::uint64_t signature() const { return step_signature(function, datatype, count); }
  };

  void all_reduce(std::uint64_t count, Datatype datatype = Datatype::f32) {
    ops_.push_back({Function::all_reduce, datatype, count, step_});
  }
  void reduce_scatter(std::uint64_t count, Datatype datatype = Datatype::bf16) {
    ops_.push_back({Function::reduce_scatter, datatype, count, step_});
  }
  void all_reduces(const std::vector<std::uint64_t>& counts) {
    for (const std::uint64_t count : counts) all_reduce(count);
  }
  void loss() { all_reduce(1); }
  void end_step() { step_++; }
  // Calls that no step's gradients belong to.
  void other(std::uint64_t count, std::size_t times = 1, Datatype datatype = Datatype::f32) {
    for (std::size_t i = 0; i < times; i++) ops_.push_back({Function::all_reduce, datatype, count, std::nullopt});
  }

  std::size_t step() const { return step_; }
  const std::vector<Op>& ops() const { return ops_; }
  std::vector<std::uint64_t> signatures() const {
    std::vector<std::uint64_t> all;
    for (const Op& op : ops_) all.push_back(op.signature());
    return all;
  }

 private:
  std::vector<Op> ops_;
  std::size_t step_ = 0;
};

struct Accuracy {
  std::size_t steps = 0;  // looked at
  std::size_t right = 0;  // all of its ops have one step number, which no other step's ops have
  double fraction() const { return steps == 0 ? 0 : static_cast<double>(right) / static_cast<double>(steps); }
};

// `found` are the positions of the sequence's ops. Steps before `settled` and a last, unfinished one don't count.
inline Accuracy accuracy(const TrainingSequence& run, const std::vector<Numbered>& found, std::size_t settled) {
  std::map<std::size_t, std::set<std::uint64_t>> numbers;    // true step -> step numbers of its ops
  std::map<std::uint64_t, std::set<std::size_t>> true_ones;  // step number -> true steps
  for (std::size_t i = 0; i < found.size(); i++) {
    const TrainingSequence::Op& op = run.ops()[i];
    if (!op.step) continue;
    const std::uint64_t number = found[i].extra ? kNone : found[i].step;
    numbers[*op.step].insert(number);
    if (number != kNone) true_ones[number].insert(*op.step);
  }
  Accuracy result;
  std::uint64_t previous = kNone;
  for (const auto& [step, its] : numbers) {
    if (step < settled || step >= run.step()) continue;
    result.steps++;
    const std::uint64_t number = *its.begin();
    const bool alone = its.size() == 1 && number != kNone && true_ones[number].size() == 1;
    if (alone && (previous == kNone || number > previous)) result.right++;
    if (alone) previous = number;
  }
  return result;
}

inline double fraction_right(const TrainingSequence& run, std::size_t settled) {
  StepDetector detector;
  return accuracy(run, number_all(detector, run.signatures()), settled).fraction();
}

// The number of different steps found.
inline std::size_t steps_found(const TrainingSequence& run) {
  StepDetector detector;
  std::set<std::uint64_t> steps;
  for (const Numbered& op : number_all(detector, run.signatures()))
    if (op.step != kNone) steps.insert(op.step);
  return steps.size();
}

}  // namespace gradprobe::test
