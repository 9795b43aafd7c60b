// What one ring says, without its sketches: the records by step, the results by collective.
#pragma once

#include <gradprobe/step_assignment.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "ring_files.hpp"

namespace gradprobe::tool {

// One collective of a communicator: the same on every rank.
struct OpKey {
  std::uint64_t op = 0;
  std::uint32_t replay = 0;
  auto operator<=>(const OpKey&) const = default;
};

struct RankRing {
  const RingReader* reader = nullptr;
  std::vector<NumberedHead> heads;
  std::vector<AssignedStep> steps;
  // Per step: index into `heads` of its collectives and scalars; extras are left out.
  std::map<std::uint64_t, std::map<OpKey, std::size_t>> by_step;
  std::set<std::uint64_t> marked_steps;           // steps whose beginning the application marked, as far as it is here
  std::map<std::uint64_t, double> marked_losses;  // by step: the last scalar named "loss"
  std::map<OpKey, std::size_t> results;           // index into `heads`; only those that were measured
  RingCursor::Losses losses;
  LiveCounters counters{};
  Writer writer = Writer::unseen;
  std::uint64_t without_step = 0;  // inputs

  std::uint32_t rank() const { return reader->header().rank; }
};

// Fills by_step and marked_losses from `steps`.
void index_by_step(RankRing& ring);

// The reader must outlive the result.
RankRing load(const RingReader& reader);

}  // namespace gradprobe::tool
