// What all-reduces left on the ranks: the same bits on each, or something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "rank_ring.hpp"

namespace gradprobe::tool {

// An all-reduce whose result is not the same on all ranks that measured it.
struct ResultMismatch {
  OpKey key;
  AssignedStep where;  // step kNone: not known
  Datatype datatype = Datatype::unknown;
  std::uint64_t count = 0;                         // elements
  std::vector<std::vector<std::uint32_t>> groups;  // of ranks with equal results, at least two, the largest first
  bool majority = false;                           // the first group has more than half of these ranks

  // Ranks outside the majority; empty when there is none.
  std::vector<std::uint32_t> differing() const;
};

struct ResultComparison {
  std::size_t compared = 0;                      // all-reduces with a measured result on at least two ranks
  std::map<std::uint64_t, std::size_t> by_step;  // of these, where the step is known
  std::vector<ResultMismatch> mismatches;        // by step, unknown ones last
};

// By fingerprint, for all-reduces that have the same datatype and count on all ranks with a result. Other functions
// leave different data on the ranks.
ResultComparison compare_results(const std::vector<RankRing>& rings);

}  // namespace gradprobe::tool
