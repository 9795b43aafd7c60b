#include "ring_fuzz.hpp"

#include <gradprobe/ring_reader.hpp>
#include <gradprobe/scalar.hpp>
#include <gradprobe/step_assignment.hpp>

#include <cstdio>
#include <cstdlib>

#include "synthetic_ring.hpp"

namespace gradprobe::test {
namespace {

void require(bool promise, const char* what) {
  if (promise) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Results take part in no step detection: without them, and numbered as without them, the ops have the same steps.
void require_that_results_change_nothing(const std::vector<NumberedHead>& heads,
                                         const std::vector<AssignedStep>& steps) {
  std::vector<NumberedHead> others;
  std::vector<std::size_t> places;
  std::uint64_t results = 0;
  for (std::size_t i = 0; i < heads.size(); i++) {
    if (static_cast<RecordKind>(heads[i].head.kind) == RecordKind::result) {
      results++;
      continue;
    }
    others.push_back({heads[i].number - results, heads[i].head});
    places.push_back(i);
  }
  // A damaged ring: it begins with the run's first record, a result, and what came next is lost.
  if (!heads.empty() && !others.empty() && (heads.front().number == 0) != (others.front().number == 0)) return;
  const std::vector<AssignedStep> expected = assign_steps(others);
  for (std::size_t i = 0; i < others.size(); i++) {
    const AssignedStep &a = steps[places[i]], &b = expected[i];
    require(a.step == b.step && a.step_op == b.step_op && a.ops_per_step == b.ops_per_step && a.extra == b.extra,
            "results change no op's step");
  }
}

}  // namespace

void repair_header(unsigned char* data, std::size_t size) {
  if (size < sizeof(FileHeader)) return;
  const std::uint32_t crc = crc32c(data, offsetof(FileHeader, crc));
  std::memcpy(data + offsetof(FileHeader, crc), &crc, sizeof crc);
}

void read_everything(const unsigned char* data, std::size_t size) {
  const auto opened = RingReader::from_fd(anonymous_file(data, size), "fuzz.ring");
  if (!opened.reader) {
    require(opened.error.rfind("fuzz.ring: ", 0) == 0, "errors name the file");
    return;
  }
  const RingReader& ring = *opened.reader;
  require(field_text(ring.header().host).size() <= sizeof ring.header().host, "text fields are bounded");
  ring.unfinished();

  RingCursor cursor(ring);
  std::vector<NumberedHead> heads;
  std::uint64_t previous = kNone;
  for (Record record; cursor.next(record) == Next::record;) {
    require(previous == kNone || record.number > previous, "records come in order");
    previous = record.number;
    require(record.sketch.empty() || record.sketch.size() == ring.header().sketch_floats, "sketches have their length");
    raw_value(record.head.collective, 7);
    loss_value(record.head);
    heads.push_back({record.number, record.head});
  }
  require(heads.size() <= size / kRecordHeadBytes, "no more records than bytes");
  const RingCursor::Losses& lost = cursor.losses();
  require(lost.overwritten + lost.missing + lost.torn_count + lost.corrupt_count + heads.size() == cursor.next_number(),
          "every record is read or accounted for");
  const std::vector<AssignedStep> steps = assign_steps(heads);
  require(steps.size() == heads.size(), "every record is assigned");
  require_that_results_change_nothing(heads, steps);
}

}  // namespace gradprobe::test
