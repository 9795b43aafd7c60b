#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <gradprobe/scalar.hpp>

namespace gradprobe::tool {
namespace {

// What all ranks must agree on before two buckets are the same.
auto shape_of(const RecordHead& head) {
  const CollectiveBody& b = head.collective;
  return std::tuple(head.kind, b.function, b.datatype, b.count);
}

bool all_finite(const RecordHead& head) {
  return head.collective.nan_count == 0 && head.collective.inf_count == 0;
}

// Finite f64 elements beyond 10^154 have squares that float64 doesn't hold.
bool has_norm(const RecordHead& head) {
  return std::isfinite(head.collective.sum_squares) && head.collective.sum_squares >= 0;
}

struct RankInStep {
  const RankRing* ring;
  const std::map<OpKey, std::size_t>* ops;

  const RecordHead* head(const OpKey& key) const {
    const auto found = ops->find(key);
    return found == ops->end() ? nullptr : &ring->heads[found->second].head;
  }
};

// Notes in which the same words come for several buckets are counted instead of repeated.
class Notes {
 public:
  void bucket(const OpKey& key, const std::string& why) {
    auto [entry, fresh] = by_reason_.try_emplace(why, 0, key);
    entry->second.first++;
  }
  void move_to(std::vector<std::string>& notes) const {
    for (const auto& [why, where] : by_reason_) {
      notes.push_back(where.first == 1
                          ? fmt::format("op {} left out: {}", where.second.op, why)
                          : fmt::format("{} ops from {} on left out: {}", where.first, where.second.op, why));
    }
  }

 private:
  std::map<std::string, std::pair<std::size_t, OpKey>> by_reason_;
};

std::optional<double> last_loss(const RankInStep& rank) {
  for (auto op = rank.ops->rbegin(); op != rank.ops->rend(); ++op)
    if (const auto loss = loss_value(rank.ring->heads[op->second].head)) return loss;
  return std::nullopt;
}

void compare_losses(const std::vector<RankInStep>& ranks, StepComparison& result) {
  std::vector<RankValue> losses;
  for (const RankInStep& rank : ranks) {
    const auto marked = rank.ring->marked_losses.find(result.step);
    if (marked != rank.ring->marked_losses.end()) losses.push_back({rank.ring->rank(), marked->second});
  }
  // Of one step only one kind: what is reduced may be another number than what is marked.
  result.loss_marked = !losses.empty();
  for (const RankInStep& rank : ranks)
    if (const auto loss = last_loss(rank); loss && !result.loss_marked) losses.push_back({rank.ring->rank(), *loss});
  result.loss = dispersion(losses);
  if (result.loss.non_finite > 0) {
    result.notes.push_back(fmt::format("the loss of {} rank(s) is not finite", result.loss.non_finite));
  }
  if (!losses.empty() && losses.size() < ranks.size()) {
    result.notes.push_back(fmt::format("{} of {} ranks have a loss", losses.size(), ranks.size()));
  }
}

// A marked step is whole where its mark is there and more steps follow, or the run ended in order.
bool marked_whole(const std::vector<RankInStep>& ranks, std::uint64_t step) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankInStep& rank) {
    const RankRing& ring = *rank.ring;
    const bool ended = ring.writer == Writer::finalized || ring.writer == Writer::exited;
    return ring.marked_steps.count(step) > 0 && (ended || ring.by_step.rbegin()->first > step);
  });
}

// A run that ends, or is looked at, within a step leaves it incomplete on every rank. Step 0 may be an irregular first
// iteration, whose length is nobody's business.
void check_complete(const std::vector<RankInStep>& ranks, StepComparison& result) {
  std::size_t most = 0, expected = 0;
  for (const RankInStep& rank : ranks) {
    most = std::max(most, rank.ops->size());
    expected = std::max<std::size_t>(expected, rank.ring->steps[rank.ops->begin()->second].ops_per_step);
  }
  result.complete = result.step == 0 || most >= expected;
  if (result.complete && expected == 0 && !marked_whole(ranks, result.step)) {
    result.complete = false;
    result.notes.emplace_back("incomplete: the records don't go from its mark to its end; not in the summary");
  } else if (!result.complete) {
    result.notes.push_back(fmt::format("incomplete: {} of {} collectives; not in the summary", most, expected));
  }
}

// The step's one-element losses. Only one that follows a bucket of gradients counts.
std::size_t reduced_losses(const RankRing& ring, std::uint64_t step) {
  const auto ops = ring.by_step.find(step);
  if (ops == ring.by_step.end()) return 0;
  std::size_t losses = 0;
  bool bucket = false;
  for (const auto& [key, index] : ops->second) {
    const RecordHead& head = ring.heads[index].head;
    const CollectiveBody& body = head.collective;
    if (carries_gradient(head)) {
      bucket = true;
    } else if (bucket && body.count == 1 && is_floating_point(static_cast<Datatype>(body.datatype))) {
      losses++;
      bucket = false;
    }
  }
  return losses;
}

// All that comes before the first repeating pattern is step 0, be it one iteration or several: DDP's static_graph has
// two before it rebuilds its buckets. The number of losses tells.
void note_iterations_of_first_step(const std::vector<RankInStep>& ranks, StepComparison& result) {
  if (result.step != 0 || ranks.empty()) return;
  const RankRing& ring = *ranks.front().ring;
  if (ring.marked_steps.count(0) > 0) return;
  const std::size_t first = reduced_losses(ring, 0), usual = reduced_losses(ring, 1);
  if (usual == 0 || first <= usual) return;
  result.notes.push_back(fmt::format(
      "seems to be {} iterations, taken for one step: its collectives differ from those of all later steps, "
      "as in PyTorch's DDP with static_graph=True; marks (gradprobe.h) tell the iterations apart",
      first / usual));
}

// Ranks that measured no gradient in this step say nothing about it, and would leave no bucket that all have.
std::vector<RankInStep> with_gradients(const std::vector<RankInStep>& ranks, StepComparison& result) {
  std::vector<RankInStep> kept;
  std::vector<std::uint32_t> silent;
  for (const RankInStep& rank : ranks) {
    const bool any = std::any_of(rank.ops->begin(), rank.ops->end(), [&](const auto& op) {
      const RecordHead& head = rank.ring->heads[op.second].head;
      return carries_gradient(head) && head.missed == 0;
    });
    if (any)
      kept.push_back(rank);
    else
      silent.push_back(rank.ring->rank());
  }
  if (!silent.empty() && !kept.empty()) {
    result.notes.push_back(fmt::format("no gradient measured on rank(s) {}", rank_list(silent)));
  }
  return kept;
}

// The buckets that are measured, finite and the same on all ranks.
std::vector<OpKey> common_buckets(const std::vector<RankInStep>& ranks, Notes& notes) {
  std::set<OpKey> keys;
  for (const RankInStep& rank : ranks)
    for (const auto& [key, index] : *rank.ops)
      if (carries_gradient(rank.ring->heads[index].head)) keys.insert(key);
  std::vector<OpKey> common;
  for (const OpKey& key : keys) {
    std::vector<std::uint32_t> absent, missed, bad, no_norm;
    const RecordHead* first = nullptr;
    bool same = true;
    for (const RankInStep& rank : ranks) {
      const RecordHead* head = rank.head(key);
      if (head == nullptr) {
        absent.push_back(rank.ring->rank());
        continue;
      }
      if (first == nullptr) first = head;
      same = same && shape_of(*head) == shape_of(*first);
      if (head->missed != 0)
        missed.push_back(rank.ring->rank());
      else if (!all_finite(*head))
        bad.push_back(rank.ring->rank());
      else if (!has_norm(*head))
        no_norm.push_back(rank.ring->rank());
    }
    if (!same)
      notes.bucket(key, "the ranks' records disagree on function, datatype or count");
    else if (!bad.empty())
      notes.bucket(key, "NaN or Inf on rank(s) " + rank_list(bad));
    else if (!no_norm.empty())
      notes.bucket(key, "values too large for a norm on rank(s) " + rank_list(no_norm));
    else if (!missed.empty())
      notes.bucket(key, "not measured on rank(s) " + rank_list(missed));
    else if (!absent.empty())
      notes.bucket(key, "no record on rank(s) " + rank_list(absent));
    else
      common.push_back(key);
  }
  return common;
}

void compare_norms(const std::vector<RankInStep>& ranks, const std::vector<OpKey>& buckets, StepComparison& result) {
  result.norm_buckets = buckets.size();
  if (buckets.empty()) return;
  for (const RankInStep& rank : ranks) {
    double sum = 0;
    for (const OpKey& key : buckets) sum += rank.head(key)->collective.sum_squares;
    result.norms.push_back({rank.ring->rank(), std::sqrt(sum)});
  }
  result.norm = dispersion(result.norms);
}

// Why the sketches of a bucket can't be combined; empty when they can.
std::string sketch_problem(const std::vector<RankInStep>& ranks, const OpKey& key) {
  const FileHeader& first_header = ranks.front().ring->reader->header();
  const RecordHead& first = *ranks.front().head(key);
  for (const RankInStep& rank : ranks) {
    const RecordHead& head = *rank.head(key);
    if ((head.flags & kFlagSketchPresent) == 0) return "no sketch was made (GRADPROBE_SKETCH)";
    if ((head.flags & kFlagSketchInvalid) != 0) {
      return fmt::format("values beyond 2^100 on rank {}, too large for a sketch", rank.ring->rank());
    }
    if (rank.ring->reader->header().sketch_floats != first_header.sketch_floats) {
      return "sketches of different length (GRADPROBE_SKETCH must be equal on all ranks)";
    }
    if (head.collective.sketch_key != first.collective.sketch_key) {
      return "sketches made with different keys (GRADPROBE_SEED must be equal on all ranks)";
    }
  }
  return {};
}

void find_identical(const CosineEstimator& cosines, const std::vector<std::uint32_t>& ranks, StepComparison& result) {
  std::vector<bool> placed(ranks.size(), false);
  for (std::size_t i = 0; i < ranks.size(); i++) {
    if (placed[i]) continue;
    std::vector<std::uint32_t> group{ranks[i]};
    for (std::size_t j = i + 1; j < ranks.size(); j++) {
      if (placed[j] || !cosines.identical(i, j) || !cosines.defined(i, j)) continue;
      group.push_back(ranks[j]);
      placed[j] = true;
    }
    if (group.size() > 1) result.identical.push_back(std::move(group));
  }
}

void compare_directions(const std::vector<RankInStep>& ranks, std::vector<OpKey> buckets, Notes& notes,
                        StepComparison& result) {
  std::erase_if(buckets, [&](const OpKey& key) {
    const std::string problem = sketch_problem(ranks, key);
    if (!problem.empty()) notes.bucket(key, problem);
    return !problem.empty();
  });
  // Sketches are read once, and a bucket counts only if all are still there.
  std::vector<std::vector<Record>> sketches;
  std::erase_if(buckets, [&](const OpKey& key) {
    std::vector<Record> records(ranks.size());
    for (std::size_t i = 0; i < ranks.size(); i++) {
      const std::uint64_t number = ranks[i].ring->heads[ranks[i].ops->at(key)].number;
      if (ranks[i].ring->reader->read(number, records[i]) == ReadStatus::ok && !records[i].sketch.empty()) continue;
      notes.bucket(key, "overwritten while it was read");
      return true;
    }
    sketches.push_back(std::move(records));
    return false;
  });
  if (buckets.empty()) return;

  std::vector<double> totals(ranks.size(), 0.0);
  for (const auto& records : sketches)
    for (std::size_t i = 0; i < records.size(); i++) totals[i] += records[i].head.collective.sum_squares;
  std::vector<std::uint32_t> numbers, zero;
  for (std::size_t i = 0; i < ranks.size(); i++) {
    numbers.push_back(ranks[i].ring->rank());
    if (!(totals[i] > 0)) zero.push_back(numbers.back());
  }
  if (!zero.empty()) result.notes.push_back(fmt::format("the gradient is all zeros on rank(s) {}", rank_list(zero)));

  CosineEstimator cosines(totals, sketches.front().front().sketch.size());
  for (const auto& records : sketches) {
    std::vector<const float*> data;
    std::vector<double> squares;
    for (const Record& record : records) {
      data.push_back(record.sketch.data());
      squares.push_back(record.head.collective.sum_squares);
    }
    cosines.add_bucket(data, squares);
  }
  result.cosine_buckets = buckets.size();
  result.mean_cosine = cosines.mean();
  for (std::size_t i = 0; i < numbers.size(); i++) {
    for (std::size_t j = i + 1; j < numbers.size(); j++) {
      if (!cosines.defined(i, j)) continue;
      const Cosine c = cosines.pair(i, j);
      if (!result.worst || c.value < result.worst->cosine.value) result.worst = WorstPair{numbers[i], numbers[j], c};
    }
  }
  find_identical(cosines, numbers, result);
  std::vector<RankValue> norms;
  for (std::size_t i = 0; i < numbers.size(); i++)
    if (totals[i] > 0) norms.push_back({numbers[i], std::sqrt(totals[i])});
  const Dispersion size = dispersion(norms);
  result.direction_norm_spread = size.range / size.mean;
  result.all_identical = result.identical.size() == 1 && result.identical.front().size() == norms.size();
}

}  // namespace

bool carries_gradient(const RecordHead& head) {
  if (static_cast<RecordKind>(head.kind) != RecordKind::collective) return false;
  switch (static_cast<Function>(head.collective.function)) {
    case Function::all_reduce:
    case Function::reduce_scatter:
    case Function::reduce:
      return true;
    default:
      return false;
  }
}

std::string rank_list(std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) last++;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::vector<Communicator> group_by_communicator(const std::vector<RingReader>& readers) {
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::map<std::uint32_t, std::vector<const RingReader*>>> groups;
  for (const RingReader& reader : readers) {
    const FileHeader& h = reader.header();
    groups[{h.comm_id, h.comm_ordinal}][h.rank].push_back(&reader);
  }
  std::vector<Communicator> communicators;
  for (auto& [key, by_rank] : groups) {
    Communicator comm;
    comm.id = key.first;
    for (auto& [rank, rings] : by_rank) {
      const auto newest = std::max_element(rings.begin(), rings.end(), [](const RingReader* a, const RingReader* b) {
        return a->header().start_time_ns < b->header().start_time_ns;
      });
      for (const RingReader* ring : rings)
        if (ring != *newest) comm.superseded.push_back(ring->name());
      comm.nranks = std::max(comm.nranks, (*newest)->header().nranks);
      if (comm.name.empty()) comm.name = field_text((*newest)->header().comm_name);
      comm.rings.push_back(load(**newest));
    }
    comm.marked_steps = align_marked_steps(comm.rings);
    comm.results = compare_results(comm.rings);
    communicators.push_back(std::move(comm));
  }
  return communicators;
}

std::vector<std::uint64_t> steps_of(const Communicator& comm, const StepRange& range) {
  std::set<std::uint64_t> steps;
  for (const RankRing& ring : comm.rings)
    for (const auto& [step, ops] : ring.by_step)
      if (range.contains(step)) steps.insert(step);
  return {steps.begin(), steps.end()};
}

StepComparison compare_step(const Communicator& comm, std::uint64_t step) {
  StepComparison result;
  result.step = step;
  std::vector<RankInStep> ranks;
  for (const RankRing& ring : comm.rings) {
    const auto found = ring.by_step.find(step);
    if (found == ring.by_step.end()) continue;
    ranks.push_back({&ring, &found->second});
    result.ranks.push_back(ring.rank());
  }
  check_complete(ranks, result);
  note_iterations_of_first_step(ranks, result);
  compare_losses(ranks, result);
  Notes notes;
  ranks = with_gradients(ranks, result);
  if (!ranks.empty()) {
    const std::vector<OpKey> buckets = common_buckets(ranks, notes);
    compare_norms(ranks, buckets, result);
    if (ranks.size() > 1) compare_directions(ranks, buckets, notes, result);
  }
  notes.move_to(result.notes);
  const auto compared = comm.results.by_step.find(step);
  if (compared != comm.results.by_step.end()) result.results_compared = compared->second;
  for (const ResultMismatch& m : comm.results.mismatches)
    if (m.where.step == step) result.result_mismatches.push_back(m);
  return result;
}

}  // namespace gradprobe::tool
