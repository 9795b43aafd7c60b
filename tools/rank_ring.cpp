#include "rank_ring.hpp"

namespace gradprobe::tool {

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
    if (!detail::is_op(head) || ring.steps[i].extra) continue;
    if (ring.steps[i].step == kNone)
      ring.without_step++;
    else
      ring.by_step[ring.steps[i].step][key] = i;
  }
  return ring;
}

}  // namespace gradprobe::tool
