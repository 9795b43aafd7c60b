#include "rank_ring.hpp"

#include <optional>

namespace gradprobe::tool {
namespace {

std::optional<double> marked_loss(const RecordHead& head) {
  if (static_cast<RecordKind>(head.kind) != RecordKind::mark) return std::nullopt;
  const bool named = field_text(head.mark.name) == "loss";
  return named && static_cast<MarkKind>(head.mark.kind) == MarkKind::scalar ? std::optional(head.mark.value)
                                                                            : std::nullopt;
}

}  // namespace

void index_by_step(RankRing& ring) {
  ring.by_step.clear();
  ring.marked_losses.clear();
  ring.without_step = 0;
  for (std::size_t i = 0; i < ring.heads.size(); i++) {
    const RecordHead& head = ring.heads[i].head;
    const std::uint64_t step = ring.steps[i].step;
    if (const auto loss = marked_loss(head); loss && step != kNone) ring.marked_losses[step] = *loss;
    if (!detail::is_op(head) || ring.steps[i].extra) continue;
    if (step == kNone)
      ring.without_step++;
    else
      ring.by_step[step][{head.op, head.replay}] = i;
  }
}

RankRing load(const RingReader& reader) {
  RankRing ring;
  ring.reader = &reader;
  ring.counters = reader.counters();
  ring.writer = writer_of(reader, ring.counters);
  RingCursor cursor(reader);
  for (Record record; cursor.next(record) == Next::record;) ring.heads.push_back({record.number, record.head});
  ring.losses = cursor.losses();
  ring.steps = assign_steps(ring.heads);
  for (std::size_t i = 0; i < ring.heads.size(); i++) {
    const RecordHead& head = ring.heads[i].head;
    const OpKey key{head.op, head.replay};
    if (static_cast<RecordKind>(head.kind) == RecordKind::result && head.missed == 0) ring.results[key] = i;
    if (detail::is_step_mark(head)) ring.marked_steps.insert(head.step);
  }
  index_by_step(ring);
  return ring;
}

}  // namespace gradprobe::tool
