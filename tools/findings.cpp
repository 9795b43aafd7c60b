#include "findings.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <gradprobe/scalar.hpp>

#include "output.hpp"
#include "words.hpp"

namespace gradprobe::tool {
namespace {

std::string plural(const std::vector<std::uint32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks);
}

std::string step_text(std::uint64_t step) {
  return step == kNone ? "unknown" : std::to_string(step);
}

struct NonFinite {
  OpKey op;
  std::uint32_t rank = 0;
  std::uint64_t step = kNone;
  std::uint64_t element = kNone;
  std::uint64_t nans = 0, infs = 0;
  const RecordHead* head = nullptr;
};

std::optional<NonFinite> non_finite(const RankRing& ring, std::size_t i) {
  const RecordHead& head = ring.heads[i].head;
  if (!detail::is_op(head) || head.missed != 0) return std::nullopt;
  const CollectiveBody& b = head.collective;
  NonFinite found{
      {head.op, head.replay}, ring.rank(), ring.steps[i].step, b.first_nonfinite, b.nan_count, b.inf_count, &head};
  if (static_cast<RecordKind>(head.kind) == RecordKind::scalar) {
    found.nans = found.infs = 0;
    found.element = kNone;
    for (std::size_t e = 0; e < kMaxRawElements; e++) {
      const auto value = raw_value(b, e);
      if (!value || std::isfinite(*value)) continue;
      if (found.element == kNone) found.element = e;
      (std::isnan(*value) ? found.nans : found.infs)++;
    }
  }
  if (found.nans == 0 && found.infs == 0) return std::nullopt;
  return found;
}

void find_non_finite(const Communicator& comm, std::vector<Finding>& findings) {
  std::vector<NonFinite> all;
  for (const RankRing& ring : comm.rings)
    for (std::size_t i = 0; i < ring.heads.size(); i++)
      if (auto found = non_finite(ring, i)) all.push_back(*found);
  if (all.empty()) return;
  const auto first = std::min_element(all.begin(), all.end(), [](const NonFinite& a, const NonFinite& b) {
    // Ops of a graph come again with every replay.
    return std::tuple(a.step, a.op.replay, a.op.op, a.rank) < std::tuple(b.step, b.op.replay, b.op.op, b.rank);
  });
  std::vector<std::uint32_t> together;
  for (const NonFinite& f : all)
    if (f.op == first->op) together.push_back(f.rank);
  const CollectiveBody& b = first->head->collective;
  const char* what = first->nans > 0 && first->infs > 0 ? "NaN and Inf" : first->nans > 0 ? "NaN" : "Inf";
  std::string text = fmt::format(
      "{} had the first {}: step {}, op {} ({} {}, {} element{}), element {} ({} NaN, {} Inf in this input{}).",
      plural(together), what, step_text(first->step), first->op.op, name(static_cast<Function>(b.function)),
      name(static_cast<Datatype>(b.datatype)), b.count, b.count == 1 ? "" : "s", step_text(first->element), first->nans,
      first->infs, together.size() > 1 ? fmt::format(" on rank {}", first->rank) : std::string());
  const std::size_t later = all.size() - together.size();
  if (later > 0) {
    text += fmt::format(" {} later input(s) have some too: a sum of anything with NaN is NaN on every rank.", later);
  }
  text +=
      " Usual causes: a bad sample or label in that rank's batch, a division by zero or log of zero in the loss, "
      "overflow "
      "in float16 (Inf first, then NaN), a faulty device. Check that rank's data at that step, then the layer of that "
      "element.";
  findings.push_back({"nonfinite", text});
}

void find_identical(const Communicator& comm, const std::vector<StepComparison>& steps,
                    std::vector<Finding>& findings) {
  std::map<std::vector<std::uint32_t>, std::vector<std::uint64_t>> groups;
  std::size_t compared = 0;
  for (const StepComparison& step : steps) {
    if (step.cosine_buckets == 0) continue;
    compared++;
    for (const auto& group : step.identical) groups[group].push_back(step.step);
  }
  for (const auto& [group, in_steps] : groups) {
    const std::string where = in_steps.size() == compared ? fmt::format("every step compared ({})", compared)
                                                          : fmt::format("{} of {} steps (first: {})", in_steps.size(),
                                                                        compared, in_steps.front());
    const bool everyone = group.size() == comm.rings.size();
    findings.push_back(
        {"identical",
         fmt::format("{} computed identical gradients, to the last bit, in {}: same data and same seed. {} Check the "
                     "sampler's rank and number of replicas, and how each rank's generators are seeded.",
                     plural(group), where,
                     everyone ? "More ranks then add cost and no information."
                              : "These ranks count the same samples several times.")});
  }
}

// Cosines of 1 but for rounding, yet not bit-equal: the same data, when the sizes agree as well. Else something scales.
void find_same_direction(const std::vector<StepComparison>& steps, std::vector<Finding>& findings) {
  constexpr double kNearly = 0.9999, kSameSize = 2e-3;
  std::vector<std::uint64_t> same_size, other_size;
  std::size_t compared = 0;
  for (const StepComparison& step : steps) {
    if (step.cosine_buckets == 0) continue;
    compared++;
    if (!step.worst || step.all_identical || !(step.worst->cosine.value > kNearly)) continue;
    (step.direction_norm_spread < kSameSize ? same_size : other_size).push_back(step.step);
  }
  const auto where = [&](const std::vector<std::uint64_t>& in_steps) {
    return fmt::format("in {} of {} steps (first: {})", in_steps.size(), compared, in_steps.front());
  };
  if (!same_size.empty()) {
    findings.push_back({"identical", fmt::format("all ranks computed nearly identical gradients (every cosine above "
                                                 "{}, equal norms) {}: probably the same data with the rounding of "
                                                 "different kernels. Check the sampler's rank.",
                                                 kNearly, where(same_size))});
  }
  if (!other_size.empty()) {
    findings.push_back(
        {"same_direction", fmt::format("all ranks' gradients have the same direction (every cosine above {}) and "
                                       "different size {}: do loss scale, gradient accumulation or batch size differ "
                                       "between ranks? Check these, and the sampler's rank.",
                                       kNearly, where(other_size))});
  }
}

void find_outliers(const std::vector<StepComparison>& steps, std::vector<Finding>& findings) {
  constexpr double kFactor = 3;
  std::map<std::uint32_t, std::vector<double>> ratios;
  std::set<std::uint32_t> zero;
  for (const StepComparison& step : steps) {
    if (step.norms.size() < 3) continue;
    std::vector<double> values;
    for (const RankValue& n : step.norms) values.push_back(n.value);
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    const double median = values[values.size() / 2];
    if (!(median > 0)) continue;
    for (const RankValue& n : step.norms) ratios[n.rank].push_back(n.value / median);
  }
  for (auto& [rank, values] : ratios) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    const double typical = values[values.size() / 2];
    if (typical == 0) {
      findings.push_back(
          {"norm_outlier", fmt::format("rank {}'s gradient is all zeros in most steps: it trains nothing. "
                                       "Check its loss, its mask and whether its batches are empty.",
                                       rank)});
    } else if (typical > kFactor || typical < 1 / kFactor) {
      findings.push_back(
          {"norm_outlier",
           fmt::format("rank {}'s gradient norm is typically {:.3g} times the median rank's: usual causes "
                       "are a different batch size or loss scale, or bad data on that rank.",
                       rank, typical)});
    }
  }
}

// "op 10 (AllReduce f32, 750 elements, collective 2 of the step's 3)"
std::string place_text(const ResultMismatch& m) {
  const bool in_step = m.where.ops_per_step > 0 && !m.where.extra;
  return fmt::format(
      "step {}, op {}{} (AllReduce {}, {} element{}{})", step_text(m.where.step), m.key.op,
      m.key.replay == 0 ? "" : fmt::format(", replay {}", m.key.replay), name(m.datatype), m.count,
      m.count == 1 ? "" : "s",
      in_step ? fmt::format(", collective {} of the step's {}", m.where.step_op + 1, m.where.ops_per_step) : "");
}

// The step's collectives that are among `mismatches`; 0 when that isn't known of all.
std::size_t collectives_among(const std::vector<const ResultMismatch*>& mismatches) {
  std::set<std::uint32_t> step_ops;
  for (const ResultMismatch* m : mismatches) {
    if (m->where.ops_per_step == 0 || m->where.extra) return 0;
    step_ops.insert(m->where.step_op);
  }
  return step_ops.size();
}

std::string groups_text(const std::vector<std::vector<std::uint32_t>>& groups) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(groups.size(), kShown); i++)
    text += (i == 0 ? "" : " against ") + plural(groups[i]);
  if (groups.size() > kShown) text += fmt::format(" and {} results more", groups.size() - kShown);
  return text;
}

std::string mismatch_text(const std::vector<const ResultMismatch*>& mismatches, std::size_t compared) {
  const ResultMismatch& first = *mismatches.front();
  std::string text = first.majority ? fmt::format("{} got another all-reduce result than the majority ({})",
                                                  plural(first.differing()), plural(first.groups.front()))
                                    : fmt::format(
                                          "the ranks got different all-reduce results, and no majority says "
                                          "which is right ({})",
                                          groups_text(first.groups));
  text += fmt::format(": first {}; {} of {} all-reduces compared", place_text(first), mismatches.size(), compared);
  const std::size_t collectives = collectives_among(mismatches);
  if (mismatches.size() > 1 && collectives > 0) {
    text += collectives == 1 ? ", always that collective of the step"
                             : fmt::format(", in {} of the step's collectives", collectives);
  }
  return text +
         ". An all-reduce leaves the same bits on every rank; from here on the ranks train different models. Usual "
         "causes: silent data corruption in a GPU or on a link (damaged data is passed on, so that several ranks can "
         "share it), ranks that call their collectives in different order, another stream that writes to the buffer "
         "while it is reduced. Check these GPUs' ECC and link error counters and run their diagnostics; if they are "
         "clean, check which streams use that buffer. Resume from a checkpoint before that step.";
}

void find_result_mismatches(const Communicator& comm, std::vector<Finding>& findings) {
  constexpr std::size_t kShown = 4;
  // One finding for each set of ranks that differs, in the order of their first mismatches.
  std::map<std::vector<std::uint32_t>, std::size_t> place_of;
  std::vector<std::vector<const ResultMismatch*>> sets;
  for (const ResultMismatch& m : comm.results.mismatches) {
    const auto [place, fresh] = place_of.try_emplace(m.differing(), sets.size());
    if (fresh) sets.emplace_back();
    sets[place->second].push_back(&m);
  }
  std::size_t others = 0;
  for (std::size_t i = 0; i < sets.size(); i++) {
    if (i < kShown)
      findings.push_back({"result_mismatch", mismatch_text(sets[i], comm.results.compared)});
    else
      others += sets[i].size();
  }
  if (others > 0) {
    findings.push_back({"result_mismatch", fmt::format("the results of {} all-reduces more differ on other ranks (see "
                                                       "--json).",
                                                       others)});
  }
}

void find_missing_ranks(const Communicator& comm, std::vector<Finding>& findings) {
  if (comm.rings.size() >= comm.nranks) return;
  // Gaps between the ranks that are there, without walking through a number that a damaged header may hold.
  std::string gaps;
  std::uint64_t expected = 0;
  const auto gap = [&](std::uint64_t first, std::uint64_t end) {
    if (first >= end) return;
    gaps +=
        (gaps.empty() ? "" : ",") + (end - first == 1 ? std::to_string(first) : fmt::format("{}-{}", first, end - 1));
  };
  for (const RankRing& ring : comm.rings) {
    gap(expected, ring.rank());
    expected = std::uint64_t{ring.rank()} + 1;
  }
  gap(expected, comm.nranks);
  findings.push_back({"missing_rank",
                      fmt::format("{} of {} ranks have a ring here; rank(s) {} are missing: copy their files from the "
                                  "other hosts, or look in their logs why none was written. Compared on those that are "
                                  "here.",
                                  comm.rings.size(), comm.nranks, gaps),
                      false});
}

std::string fate(const RankRing& ring) {
  switch (ring.writer) {
    case Writer::dead:
      return "its process is gone without finalizing: it died or was killed";
    case Writer::finalized:
      return "it was finalized";
    case Writer::exited:
      return "its process ended in order without destroying the communicator";
    case Writer::alive:
      return "its process is still running";
    case Writer::stalled:
      return "its process exists and has stopped recording";
    case Writer::alive_elsewhere:
      return fmt::format("its process is alive elsewhere ({})", heartbeat_in_words(ring.counters));
    case Writer::unseen:
      return fmt::format(
          "it was not finalized ({}, and its process can't be seen from here): it died, was killed, or was copied "
          "while running",
          heartbeat_in_words(ring.counters));
  }
  return {};
}

void find_lengths(const Communicator& comm, std::vector<Finding>& findings) {
  std::uint64_t furthest = 0;
  bool running = false;
  for (const RankRing& ring : comm.rings) {
    if (!ring.by_step.empty()) furthest = std::max(furthest, ring.by_step.rbegin()->first);
    running = running || is_running(ring.writer);
  }
  // Ranks that run are a step apart now and then.
  const std::uint64_t slack = running ? 1 : 0;
  std::map<std::uint64_t, std::vector<const RankRing*>> short_ones;
  for (const RankRing& ring : comm.rings) {
    if (ring.by_step.empty()) continue;
    const std::uint64_t last = ring.by_step.rbegin()->first;
    if (last + slack < furthest) short_ones[last].push_back(&ring);
  }
  for (const auto& [last, rings] : short_ones) {
    for (const RankRing* ring : rings) {
      findings.push_back(
          {"length", fmt::format("rank {}'s ring ends at step {}, the longest at {}: {}. Later steps are compared on "
                                 "the ranks that have them.",
                                 ring->rank(), last, furthest, fate(*ring))});
    }
  }
  for (const RankRing& ring : comm.rings) {
    const bool ended_early = !ring.by_step.empty() && ring.by_step.rbegin()->first + slack < furthest;
    if (ring.writer == Writer::dead && !ended_early) {
      findings.push_back({"length", fmt::format("rank {}'s process is gone without finalizing its ring: it died or was "
                                                "killed.",
                                                ring.rank())});
    }
  }
}

void find_losses_of_data(const Communicator& comm, std::vector<Finding>& findings) {
  std::map<std::uint16_t, std::uint64_t> missed, missed_results;
  std::uint64_t gradients = 0, results = 0, without_step = 0, damaged = 0;
  std::uint64_t first_step = 0;
  for (const RankRing& ring : comm.rings) {
    for (const NumberedHead& record : ring.heads) {
      const bool result = static_cast<RecordKind>(record.head.kind) == RecordKind::result;
      if (!result && !carries_gradient(record.head)) continue;
      (result ? results : gradients)++;
      if (record.head.missed != 0) (result ? missed_results : missed)[record.head.missed]++;
    }
    without_step += ring.without_step;
    damaged += ring.losses.torn_count + ring.losses.corrupt_count + ring.losses.missing;
    if (ring.losses.overwritten > 0 && !ring.by_step.empty()) {
      first_step = std::max(first_step, ring.by_step.begin()->first);
    }
  }
  const std::uint32_t abi = comm.rings.empty() ? 0 : comm.rings.front().reader->header().profiler_abi;
  for (const auto& [reason, count] : missed) {
    findings.push_back({"missed",
                        fmt::format("{} of {} gradient inputs were not measured: {} ({}).", count, gradients,
                                    missed_in_words(static_cast<Missed>(reason), abi), status_name(reason)),
                        false});
  }
  for (const auto& [reason, count] : missed_results) {
    findings.push_back({"missed_result",
                        fmt::format("{} of {} results were not measured: {} ({}).", count, results,
                                    missed_in_words(static_cast<Missed>(reason), abi), status_name(reason)),
                        false});
  }
  if (first_step > 0) {
    findings.push_back({"overwritten",
                        fmt::format("records before about step {} were overwritten by later ones; a larger "
                                    "GRADPROBE_RING_MB keeps more.",
                                    first_step),
                        false});
  }
  if (without_step > 0) {
    findings.push_back({"no_step",
                        fmt::format("{} record(s) belong to no step that could be found and are left out; "
                                    "GRADPROBE_OPS_PER_STEP sets the number of collectives in a step.",
                                    without_step),
                        false});
  }
  if (damaged > 0) {
    findings.push_back({"damaged",
                        fmt::format("{} record(s) can't be read (torn, damaged or cut off); gradprobe info says "
                                    "which.",
                                    damaged),
                        false});
  }
  for (const std::string& ring : comm.superseded) {
    findings.push_back({"mixed_runs",
                        fmt::format("{} holds an earlier ring of a rank that is here twice; the newer was "
                                    "used. Keep one folder a run.",
                                    printable(ring)),
                        false});
  }
}

void find_step_marks(const Communicator& comm, std::vector<Finding>& findings) {
  const MarkedSteps& steps = comm.marked_steps;
  if (!steps.any()) return;
  if (!steps.unmarked.empty()) {
    findings.push_back({"step_marks",
                        fmt::format("{} marked steps (gradprobe_step), {} did not: each collective there was given the "
                                    "step that it has on {}. Mark steps on every rank.",
                                    plural(steps.marked), plural(steps.unmarked), plural(steps.marked)),
                        false});
  }
  if (steps.disagreements > 0) {
    findings.push_back({"step_marks",
                        fmt::format("the ranks' marks put {} collective(s) into different steps, first op {}: the "
                                    "lowest rank's were taken. Call gradprobe_step where no other thread calls a "
                                    "collective, with equal numbers on all ranks.",
                                    steps.disagreements, steps.first_disagreement.op),
                        false});
  }
}

struct Lifetime {
  std::uint64_t start = UINT64_MAX, end = 0;
  std::set<std::tuple<std::string, std::uint64_t, std::uint32_t>> processes;  // host, PID namespace, PID
};

Lifetime lifetime_of(const Communicator& comm) {
  Lifetime life;
  for (const RankRing& ring : comm.rings) {
    const FileHeader& h = ring.reader->header();
    life.start = std::min(life.start, h.start_time_ns);
    life.end = std::max({life.end, h.start_time_ns, ring.counters.heartbeat_ns});
    life.processes.insert({field_text(h.host), h.pid_namespace, h.pid});
  }
  return life;
}

}  // namespace

std::vector<Finding> find_in(const Communicator& comm, const std::vector<StepComparison>& steps) {
  std::vector<Finding> findings;
  find_non_finite(comm, findings);
  find_result_mismatches(comm, findings);
  find_identical(comm, steps, findings);
  find_same_direction(steps, findings);
  find_outliers(steps, findings);
  find_lengths(comm, findings);
  find_missing_ranks(comm, findings);
  find_step_marks(comm, findings);
  find_losses_of_data(comm, findings);
  return findings;
}

std::size_t steps_compared(const std::vector<StepComparison>& steps) {
  return static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), [](const StepComparison& s) {
    return s.ranks.size() > 1 && (s.loss.count > 1 || s.norm.count > 1 || s.cosine_buckets > 0);
  }));
}

std::string why_not_compared(const Communicator& comm, const std::vector<StepComparison>& steps) {
  if (steps_compared(steps) > 0) return {};
  const bool no_records =
      std::all_of(comm.rings.begin(), comm.rings.end(), [](const RankRing& r) { return r.heads.empty(); });
  if (no_records) return "no ring has a readable record; see gradprobe info";
  const std::vector<std::uint64_t> known = steps_of(comm, StepRange{});
  if (known.empty()) {
    return "no record belongs to a known step; GRADPROBE_OPS_PER_STEP sets the number of collectives in a step";
  }
  if (steps.empty()) {
    return fmt::format("none of those asked for is there; the rings have steps from {} to {}", known.front(),
                       known.back());
  }
  if (comm.nranks == 1) return "the communicator has one rank";
  if (comm.rings.size() == 1) return fmt::format("only rank {} has a ring here", comm.rings.front().rank());
  if (std::all_of(steps.begin(), steps.end(), [](const StepComparison& s) { return s.ranks.size() == 1; })) {
    return "no step is there on more than one rank";
  }
  return "no loss or gradient was measured on more than one rank in the same step; the notes and findings say why";
}

std::vector<Finding> find_across(const std::vector<Communicator>& communicators) {
  std::vector<Lifetime> lives;
  for (const Communicator& comm : communicators) lives.push_back(lifetime_of(comm));
  for (std::size_t i = 0; i < lives.size(); i++) {
    for (std::size_t j = 0; j < lives.size(); j++) {
      if (i == j || lives[i].end >= lives[j].start) continue;
      const bool shared = std::any_of(lives[i].processes.begin(), lives[i].processes.end(),
                                      [&](const auto& process) { return lives[j].processes.count(process) > 0; });
      if (shared) continue;
      return {
          {"mixed_runs",
           fmt::format("several runs seem to be mixed in this folder: communicator {} ended before {} began, and no "
                       "process has both. Keep one folder a run, or choose one with --comm.",
                       hex(communicators[i].id), hex(communicators[j].id)),
           false}};
    }
  }
  return {};
}

}  // namespace gradprobe::tool
