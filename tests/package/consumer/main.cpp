// Another project's use of the installed headers: makes a ring file of one record as FORMAT.md says, and reads it.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <gradprobe/checksum.hpp>
#include <gradprobe/ring_format.hpp>
#include <gradprobe/ring_reader.hpp>
#include <string>

namespace {

constexpr double kSumSquares = 6.25;

void make_ring(const std::string& path) {
  gradprobe::FileHeader header{};
  std::memcpy(header.magic, gradprobe::kRingMagic, sizeof header.magic);
  header.version = gradprobe::kRingVersion;
  header.header_bytes = gradprobe::kHeaderBytes;
  header.record_bytes = gradprobe::record_bytes(0);
  header.capacity = 1;
  header.nranks = 1;
  header.nnodes = 1;
  header.profiler_abi = 5;
  header.crc = gradprobe::crc32c(&header, offsetof(gradprobe::FileHeader, crc));

  gradprobe::LiveCounters counters{};
  counters.written = 1;
  counters.state = static_cast<std::uint64_t>(gradprobe::RingState::finalized);

  gradprobe::RecordHead record{};
  record.before = record.after = 1;
  record.kind = static_cast<std::uint16_t>(gradprobe::RecordKind::collective);
  record.step = gradprobe::kNone;
  record.collective.count = 4;
  record.collective.sum_squares = kSumSquares;
  record.collective.zero_count = gradprobe::kNone;
  record.collective.first_nonfinite = gradprobe::kNone;
  record.collective.function = static_cast<std::uint8_t>(gradprobe::Function::all_reduce);
  record.collective.datatype = static_cast<std::uint8_t>(gradprobe::Datatype::f32);
  constexpr std::size_t checked_from = 20;
  record.crc =
      gradprobe::crc32c(reinterpret_cast<const unsigned char*>(&record) + checked_from, sizeof record - checked_from);

  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(reinterpret_cast<const char*>(&counters), sizeof counters);
  file.write(reinterpret_cast<const char*>(&record), sizeof record);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string path = argv[1];
  if (gradprobe::RingReader::open(path + ".absent").reader) {
    std::puts("a file that doesn't exist was opened");
    return 1;
  }
  make_ring(path);
  const auto opened = gradprobe::RingReader::open(path);
  if (!opened.reader) {
    std::printf("not opened: %s\n", opened.error.c_str());
    return 1;
  }
  gradprobe::Record record;
  if (opened.reader->written() != 1 || opened.reader->read(0, record) != gradprobe::ReadStatus::ok ||
      record.head.collective.sum_squares != kSumSquares) {
    std::puts("the record was not read as it was written");
    return 1;
  }
  return 0;
}
