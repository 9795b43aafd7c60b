// Steps that the application marked (gradprobe_step): brings ranks that marked none, or others, to the same steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rank_ring.hpp"

namespace gradprobe::tool {

struct MarkedSteps {
  std::vector<std::uint32_t> marked, unmarked;  // ranks with and without step marks
  std::size_t disagreements = 0;                // collectives that ranks put in different steps
  OpKey first_disagreement;

  bool any() const { return !marked.empty(); }
};

// Every rank calls the same collectives, so where any rank marked steps, each collective gets the step that it has on
// the lowest rank that did. On the others it has none where no such rank has a record of it.
MarkedSteps align_marked_steps(std::vector<RankRing>& rings);

}  // namespace gradprobe::tool
