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
  require(assign_steps(heads).size() == heads.size(), "every record is assigned");
}

}  // namespace gradprobe::test
