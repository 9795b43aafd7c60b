// Aligns the rings of a communicator's ranks and compares them step by step.
#pragma once

#include <gradprobe/dispersion.hpp>
#include <gradprobe/estimators.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "marked_steps.hpp"
#include "rank_ring.hpp"
#include "results.hpp"

namespace gradprobe::tool {

// All ranks of one communicator in one run, by rank.
struct Communicator {
  std::uint64_t id = 0;
  std::string name;
  std::uint32_t nranks = 0;
  std::vector<RankRing> rings;
  MarkedSteps marked_steps;
  ResultComparison results;
  std::vector<std::string> superseded;  // rings of the same rank from an earlier run
};

// Reads the rings into communicators, in order of their ids. The readers must outlive the result.
std::vector<Communicator> group_by_communicator(const std::vector<RingReader>& readers);

struct WorstPair {
  std::uint32_t first = 0, second = 0;
  Cosine cosine;
};

struct StepComparison {
  std::uint64_t step = 0;
  std::vector<std::uint32_t> ranks;  // seen in this step
  bool complete = true;              // false: the records end within it on every rank
  Dispersion loss;                   // count 0: no loss in this step
  bool loss_marked = false;          // from marks rather than from what is reduced
  Dispersion norm;                   // count 0: nothing measured on all ranks
  std::vector<RankValue> norms;
  std::size_t norm_buckets = 0;
  Cosine mean_cosine;  // NaN: not known
  std::optional<WorstPair> worst;
  std::size_t cosine_buckets = 0;
  double direction_norm_spread = NAN;  // (max - min) / mean of the norms over the cosines' buckets, without zeros
  bool all_identical = false;          // every pair that has a cosine is bit-equal
  std::vector<std::vector<std::uint32_t>> identical;  // groups of at least two ranks with bit-equal gradients
  std::size_t results_compared = 0;
  std::vector<ResultMismatch> result_mismatches;
  std::vector<std::string> notes;
};

StepComparison compare_step(const Communicator& comm, std::uint64_t step);

// Steps that any rank has, within `range`.
std::vector<std::uint64_t> steps_of(const Communicator& comm, const StepRange& range);

// Gradients travel in these; others are bookkeeping or parameters.
bool carries_gradient(const RecordHead& head);

// "0-7", "0,2,5-6".
std::string rank_list(std::vector<std::uint32_t> ranks);

}  // namespace gradprobe::tool
