#include "marked_steps.hpp"

#include <map>
#include <set>

namespace gradprobe::tool {
namespace {

bool takes_part(const RecordHead& head) {
  return detail::is_op(head) || static_cast<RecordKind>(head.kind) == RecordKind::result;
}

}  // namespace

MarkedSteps align_marked_steps(std::vector<RankRing>& rings) {
  MarkedSteps found;
  for (const RankRing& ring : rings) (ring.marked_steps.empty() ? found.unmarked : found.marked).push_back(ring.rank());
  if (!found.any()) return found;

  std::map<OpKey, AssignedStep> step_of;
  std::set<OpKey> disagreed;
  for (const RankRing& ring : rings) {
    if (ring.marked_steps.empty()) continue;
    for (std::size_t i = 0; i < ring.heads.size(); i++) {
      if (!takes_part(ring.heads[i].head) || ring.steps[i].step == kNone) continue;
      const OpKey key{ring.heads[i].head.op, ring.heads[i].head.replay};
      const auto [entry, fresh] = step_of.try_emplace(key, ring.steps[i]);
      if (!fresh && entry->second.step != ring.steps[i].step) disagreed.insert(key);
    }
  }
  found.disagreements = disagreed.size();
  if (!disagreed.empty()) found.first_disagreement = *disagreed.begin();
  if (found.unmarked.empty() && disagreed.empty()) return found;

  for (RankRing& ring : rings) {
    const bool marked = !ring.marked_steps.empty();
    for (std::size_t i = 0; i < ring.heads.size(); i++) {
      const RecordHead& head = ring.heads[i].head;
      if (!takes_part(head)) {
        if (!marked) ring.steps[i] = {};
        continue;
      }
      const auto entry = step_of.find({head.op, head.replay});
      if (entry != step_of.end())
        ring.steps[i] = entry->second;
      else if (!marked)
        ring.steps[i] = {};
    }
    detail::assign_marks(ring.heads, ring.steps);
    index_by_step(ring);
  }
  return found;
}

}  // namespace gradprobe::tool
