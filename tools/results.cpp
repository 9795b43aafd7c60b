#include "results.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

namespace gradprobe::tool {
namespace {

struct RankResult {
  std::uint32_t rank;
  const CollectiveBody* body;
  const AssignedStep* where;
};

std::vector<RankResult> results_of(const std::vector<RankRing>& rings, const OpKey& key) {
  std::vector<RankResult> found;
  for (const RankRing& ring : rings) {
    const auto result = ring.results.find(key);
    if (result == ring.results.end()) continue;
    found.push_back({ring.rank(), &ring.heads[result->second].head.collective, &ring.steps[result->second]});
  }
  return found;
}

bool comparable(const std::vector<RankResult>& results) {
  if (results.size() < 2) return false;
  const auto shape = [](const RankResult& r) { return std::tuple(r.body->function, r.body->datatype, r.body->count); };
  return static_cast<Function>(results.front().body->function) == Function::all_reduce &&
         std::all_of(results.begin(), results.end(),
                     [&](const RankResult& r) { return shape(r) == shape(results.front()); });
}

AssignedStep step_of(const std::vector<RankResult>& results) {
  const auto known =
      std::find_if(results.begin(), results.end(), [](const RankResult& r) { return r.where->step != kNone; });
  return known == results.end() ? AssignedStep{} : *known->where;
}

std::optional<ResultMismatch> mismatch_of(const OpKey& key, const std::vector<RankResult>& results) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> by_fingerprint;
  for (const RankResult& r : results) by_fingerprint[r.body->fingerprint].push_back(r.rank);
  if (by_fingerprint.size() == 1) return std::nullopt;
  ResultMismatch m;
  m.key = key;
  m.where = step_of(results);
  m.datatype = static_cast<Datatype>(results.front().body->datatype);
  m.count = results.front().body->count;
  for (auto& [fingerprint, ranks] : by_fingerprint) m.groups.push_back(std::move(ranks));
  std::sort(m.groups.begin(), m.groups.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  m.majority = 2 * m.groups.front().size() > results.size();
  return m;
}

}  // namespace

std::vector<std::uint32_t> ResultMismatch::differing() const {
  std::vector<std::uint32_t> ranks;
  if (!majority) return ranks;
  for (std::size_t i = 1; i < groups.size(); i++) ranks.insert(ranks.end(), groups[i].begin(), groups[i].end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

ResultComparison compare_results(const std::vector<RankRing>& rings) {
  std::set<OpKey> keys;
  for (const RankRing& ring : rings)
    for (const auto& [key, index] : ring.results) keys.insert(key);
  ResultComparison comparison;
  for (const OpKey& key : keys) {
    const std::vector<RankResult> results = results_of(rings, key);
    if (!comparable(results)) continue;
    comparison.compared++;
    if (const std::uint64_t step = step_of(results).step; step != kNone) comparison.by_step[step]++;
    if (auto mismatch = mismatch_of(key, results)) comparison.mismatches.push_back(std::move(*mismatch));
  }
  // Replays of a captured call share its op, so ops alone are not in the order of time.
  std::stable_sort(
      comparison.mismatches.begin(), comparison.mismatches.end(), [](const ResultMismatch& a, const ResultMismatch& b) {
        return std::tuple(a.where.step, a.key.replay, a.key.op) < std::tuple(b.where.step, b.key.replay, b.key.op);
      });
  return comparison;
}

}  // namespace gradprobe::tool
