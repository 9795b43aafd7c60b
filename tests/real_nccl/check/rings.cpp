#include "rings.hpp"

#include <filesystem>
#include <stdexcept>

namespace gradprobe::real {
namespace {

Ring read_ring(const std::string& file) {
  auto opened = RingReader::open(file);
  if (!opened.reader) throw std::runtime_error(opened.error);
  Ring ring;
  ring.file = file;
  ring.header = opened.reader->header();
  ring.counters = opened.reader->counters();
  RingCursor cursor(*opened.reader);
  for (Record r; cursor.next(r) == Next::record;) {
    const CallId id{r.head.op, r.head.replay};
    if (r.has_body()) {
      ring.inputs.emplace(id, r);
      if (r.head.replay == 0) ring.direct_order.push_back(r.head.op);
    } else if (r.kind() == RecordKind::result) {
      ring.results.emplace(id, r);
    }
  }
  const RingCursor::Losses& losses = cursor.losses();
  if (losses.overwritten + losses.missing + losses.torn_count + losses.corrupt_count > 0)
    throw std::runtime_error(file + ": records are lost or damaged");
  return ring;
}

}  // namespace

std::multimap<std::pair<std::string, int>, Ring> read_rings(const std::string& folder) {
  std::multimap<std::pair<std::string, int>, Ring> rings;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".ring") continue;
    Ring ring = read_ring(entry.path());
    const std::string comm = field_text(ring.header.comm_name);
    const auto rank = static_cast<int>(ring.header.rank);
    rings.emplace(std::pair{comm, rank}, std::move(ring));
  }
  return rings;
}

}  // namespace gradprobe::real
