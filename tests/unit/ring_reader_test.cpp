#include <gtest/gtest.h>
#include <sys/stat.h>
#include <gradprobe/ring_reader.hpp>

#include <functional>

#include "synthetic_ring.hpp"

namespace gradprobe {
namespace {

using test::RingSpec;
using test::SyntheticRing;

std::vector<float> sketch_of(std::uint64_t number, std::size_t floats = 256) {
  std::vector<float> sketch(floats);
  for (std::size_t i = 0; i < floats; i++) sketch[i] = static_cast<float>(number) + static_cast<float>(i) / 1024;
  return sketch;
}

SyntheticRing ring_with(std::uint64_t records, RingSpec spec = {}) {
  SyntheticRing ring(spec);
  for (std::uint64_t i = 0; i < records; i++) {
    ring.append(test::make_collective(i, i / 4, i % 4, 4, 100 + i, static_cast<double>(i)), sketch_of(i));
  }
  return ring;
}

RingReader::Opened reader_of(const std::vector<unsigned char>& bytes) {
  return RingReader::from_fd(test::anonymous_file(bytes), "test.ring");
}

void expect_record(const Record& r, std::uint64_t number) {
  EXPECT_EQ(r.number, number);
  EXPECT_EQ(r.head.op, number);
  EXPECT_EQ(r.head.collective.count, 100 + number);
  EXPECT_EQ(r.head.collective.sum_squares, static_cast<double>(number));
  EXPECT_EQ(r.sketch, sketch_of(number));
}

std::vector<std::uint64_t> numbers(RingCursor& cursor) {
  std::vector<std::uint64_t> found;
  for (Record r; cursor.next(r) == Next::record;) {
    expect_record(r, r.number);
    found.push_back(r.number);
  }
  return found;
}

std::vector<std::uint64_t> range(std::uint64_t first, std::uint64_t end) {
  std::vector<std::uint64_t> r;
  for (; first < end; first++) r.push_back(first);
  return r;
}

TEST(RingReader, RoundTripAtEveryFill) {
  for (std::uint64_t records = 0; records <= 20; records++) {
    SyntheticRing ring = ring_with(records);
    const auto opened = reader_of(ring.bytes());
    ASSERT_TRUE(opened.reader) << opened.error;
    RingCursor cursor(*opened.reader);
    const std::uint64_t oldest = records > 8 ? records - 8 : 0;
    EXPECT_EQ(numbers(cursor), range(oldest, records));
    EXPECT_EQ(cursor.losses().overwritten, oldest);
    EXPECT_EQ(cursor.losses().torn_count + cursor.losses().corrupt_count + cursor.losses().missing, 0u);
    EXPECT_EQ(opened.reader->unfinished(), std::nullopt);
  }
}

TEST(RingReader, WithoutSketches) {
  RingSpec spec;
  spec.sketch_floats = 0;
  SyntheticRing ring(spec);
  ring.append(test::make_scalar(0, 0, 0, 1, 0.5f));
  const auto opened = reader_of(ring.bytes());
  ASSERT_TRUE(opened.reader) << opened.error;
  Record r;
  ASSERT_EQ(opened.reader->read(0, r), ReadStatus::ok);
  EXPECT_TRUE(r.sketch.empty());
  EXPECT_EQ(opened.reader->read(1, r), ReadStatus::not_written);
}

TEST(RingReader, SketchesOfEverySize) {
  for (const std::uint32_t floats : {256u, 512u, 1024u, 2048u, 4096u}) {
    RingSpec spec;
    spec.sketch_floats = floats;
    spec.capacity = 3;
    SyntheticRing ring(spec);
    for (std::uint64_t i = 0; i < 5; i++) {
      ring.append(test::make_collective(i, i, 0, 1, 100 + i, static_cast<double>(i)), sketch_of(i, floats));
    }
    const auto opened = reader_of(ring.bytes());
    ASSERT_TRUE(opened.reader) << opened.error;
    EXPECT_EQ(opened.reader->expected_bytes(), ring.bytes().size());
    RingCursor cursor(*opened.reader);
    std::uint64_t next = 2;
    for (Record r; cursor.next(r) == Next::record; next++) {
      EXPECT_EQ(r.number, next);
      EXPECT_EQ(r.sketch, sketch_of(next, floats));
    }
    EXPECT_EQ(next, 5u);
  }
}

TEST(RingReader, ResultsAreRead) {
  SyntheticRing ring(RingSpec{});
  const RecordHead input = test::make_collective(5, 1, 1, 4, 100, 2.25);
  ring.append(input, sketch_of(0));
  ring.append(test::make_result(input, 0xFEDCBA9876543210), sketch_of(1));
  const auto opened = reader_of(ring.bytes());
  ASSERT_TRUE(opened.reader) << opened.error;
  Record r;
  ASSERT_EQ(opened.reader->read(0, r), ReadStatus::ok);
  EXPECT_TRUE(r.has_body());
  EXPECT_EQ(r.head.collective.fingerprint, 0u);
  ASSERT_EQ(opened.reader->read(1, r), ReadStatus::ok);
  EXPECT_EQ(r.kind(), RecordKind::result);
  EXPECT_STREQ(name(r.kind()), "result");
  EXPECT_FALSE(r.has_body());
  EXPECT_EQ(r.head.op, 5u);
  EXPECT_EQ(r.head.step, 1u);
  EXPECT_EQ(r.head.collective.fingerprint, 0xFEDCBA9876543210u);
  EXPECT_EQ(r.sketch, sketch_of(1));
}

TEST(RingReader, CursorGoesOnWhenRecordsAreAdded) {
  SyntheticRing ring = ring_with(3);
  const int fd = test::anonymous_file(ring.bytes());
  const auto opened = RingReader::from_fd(fd, "test.ring");
  ASSERT_TRUE(opened.reader);
  RingCursor cursor(*opened.reader);
  EXPECT_EQ(numbers(cursor), range(0, 3));
  const auto update = [&](std::uint64_t until) {
    ring = ring_with(until);
    ASSERT_EQ(pwrite(fd, ring.bytes().data(), ring.bytes().size(), 0), static_cast<ssize_t>(ring.bytes().size()));
  };
  update(5);
  EXPECT_EQ(numbers(cursor), range(3, 5));
  EXPECT_EQ(cursor.losses().overwritten, 0u);
  update(30);  // lapped: 5 ... 21 are gone
  EXPECT_EQ(numbers(cursor), range(22, 30));
  EXPECT_EQ(cursor.losses().overwritten, 17u);
}

// A writer that is killed after any single byte that it stores.
TEST(RingReader, KilledAfterEveryByte) {
  for (const std::uint64_t complete :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{8}, std::uint64_t{255}, std::uint64_t{511}}) {
    const SyntheticRing whole = ring_with(complete);
    const auto stores = whole.stores(
        test::make_collective(complete, 0, 0, 4, 100 + complete, static_cast<double>(complete)), sketch_of(complete));
    SyntheticRing ring = whole;
    const int fd = test::anonymous_file(ring.bytes());
    const auto opened = RingReader::from_fd(fd, "killed.ring");
    ASSERT_TRUE(opened.reader);
    const std::size_t stamped = stores.size() - 8;  // all but the counter
    for (std::size_t done = 0; done <= stores.size(); done++) {
      if (done > 0) {
        const auto& [offset, byte] = stores[done - 1];
        ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
      }
      RingCursor cursor(*opened.reader);
      const std::vector<std::uint64_t> found = numbers(cursor);
      // The stamps' upper bytes are equal or zero, so a record is complete from the byte on that differs.
      const bool newest_there = !found.empty() && found.back() == complete;
      if (done >= stamped || done < stamped - 8) {
        EXPECT_EQ(newest_there, done >= stamped) << complete << " " << done;
      }
      const std::uint64_t oldest = complete >= 8 ? complete - 8 : 0;
      const bool oldest_gone = complete >= 8 && done >= 8;
      const std::vector<std::uint64_t> expected = range(oldest, complete + (newest_there ? 1 : 0));
      EXPECT_GE(found.size() + 1, expected.size());
      if (oldest_gone) {
        EXPECT_EQ(found.empty() ? 0 : found.front(), oldest + 1);
      } else if (done == 0) {
        EXPECT_EQ(found, expected);
      }
      if (done >= 8 && done < stamped - 8) {
        EXPECT_EQ(opened.reader->unfinished(), complete) << done;
      }
    }
  }
}

TEST(RingReader, EveryDamagedByteOfARecordIsNoticed) {
  SyntheticRing ring = ring_with(3);
  const int fd = test::anonymous_file(ring.bytes());
  const auto opened = RingReader::from_fd(fd, "damaged.ring");
  ASSERT_TRUE(opened.reader);
  const std::size_t at = ring.slot(1);
  for (std::size_t i = 0; i < 1280; i++) {
    const unsigned char good = ring.bytes()[at + i];
    const auto bad = static_cast<unsigned char>(good ^ (1u << (i % 8)));
    ASSERT_EQ(pwrite(fd, &bad, 1, static_cast<off_t>(at + i)), 1);
    Record r;
    EXPECT_NE(opened.reader->read(1, r), ReadStatus::ok) << i;
    RingCursor cursor(*opened.reader);
    EXPECT_EQ(numbers(cursor), (std::vector<std::uint64_t>{0, 2})) << i;
    const RingCursor::Losses& losses = cursor.losses();
    EXPECT_EQ(losses.torn_count + losses.corrupt_count + losses.overwritten, 1u) << i;
    if (i >= 16) {
      EXPECT_EQ(losses.corrupt, std::vector<std::uint64_t>{1});
    }
    ASSERT_EQ(pwrite(fd, &good, 1, static_cast<off_t>(at + i)), 1);
  }
}

TEST(RingReader, EveryDamagedByteOfTheHeaderIsNoticed) {
  SyntheticRing ring = ring_with(3);
  for (std::size_t i = 0; i < 2048; i++) {
    std::vector<unsigned char> bytes = ring.bytes();
    bytes[i] = static_cast<unsigned char>(bytes[i] ^ (1u << (i % 8)));
    const auto opened = reader_of(bytes);
    EXPECT_FALSE(opened.reader) << i;
    EXPECT_EQ(opened.error.rfind("test.ring: ", 0), 0u) << opened.error;
    EXPECT_NE(opened.error.find("; "), std::string::npos) << opened.error;
  }
}

TEST(RingReader, TruncatedAnywhere) {
  SyntheticRing ring = ring_with(8);
  for (std::size_t size = 0; size < ring.bytes().size(); size += 61) {
    std::vector<unsigned char> bytes = ring.bytes();
    bytes.resize(size);
    const auto opened = reader_of(bytes);
    if (size < 2048) {
      EXPECT_FALSE(opened.reader);
      continue;
    }
    ASSERT_TRUE(opened.reader) << opened.error;
    const std::uint64_t whole = size < 4096 ? 0 : (size - 4096) / 1280;
    RingCursor cursor(*opened.reader);
    EXPECT_EQ(numbers(cursor), range(0, whole)) << size;
    if (size >= 4096) {
      EXPECT_EQ(cursor.losses().missing, 8 - whole) << size;
    }
    EXPECT_EQ(cursor.losses().corrupt_count, 0u);
  }
}

// The file shrinks under the reader: short reads, no signal.
TEST(RingReader, TruncatedWhileOpen) {
  SyntheticRing ring = ring_with(8);
  const int fd = test::anonymous_file(ring.bytes());
  const auto opened = RingReader::from_fd(fd, "shrinking.ring");
  ASSERT_TRUE(opened.reader);
  RingCursor cursor(*opened.reader);
  Record r;
  ASSERT_EQ(cursor.next(r), Next::record);
  ASSERT_EQ(ftruncate(fd, 4096 + 1280 * 3 + 100), 0);
  EXPECT_EQ(numbers(cursor), range(1, 3));
  EXPECT_EQ(cursor.losses().missing, 5u);
  ASSERT_EQ(ftruncate(fd, 0), 0);
  EXPECT_EQ(opened.reader->read(0, r), ReadStatus::missing);
  EXPECT_EQ(opened.reader->slots(), 0u);
}

std::string error_of(const std::function<void(FileHeader&)>& change, bool with_crc = true) {
  SyntheticRing ring = ring_with(1);
  FileHeader h;
  std::memcpy(&h, ring.bytes().data(), sizeof h);
  change(h);
  if (with_crc) h.crc = test::slow_crc32c(reinterpret_cast<const unsigned char*>(&h), offsetof(FileHeader, crc));
  std::memcpy(ring.bytes().data(), &h, sizeof h);
  auto opened = reader_of(ring.bytes());
  return opened.reader ? "" : opened.error;
}

TEST(RingReader, SaysWhatIsWrongWithAHeader) {
  EXPECT_EQ(error_of([](FileHeader&) {}), "");
  EXPECT_EQ(error_of([](FileHeader& h) { h.features_compatible = ~std::uint64_t{0}; }), "");
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(error_of([](FileHeader& h) { h.magic[0] = 'X'; }), "not a gradprobe ring");
  has(error_of([](FileHeader& h) { std::memset(h.magic, 0, 8); }), "no header yet");
  has(error_of([](FileHeader& h) { h.version = 2; }), "version 2, this reader knows 1; use a newer");
  has(error_of([](FileHeader& h) { h.version = 0; }), "version 0");
  has(error_of([](FileHeader& h) { h.rank = 5; }, false), "checksum");
  has(error_of([](FileHeader& h) { h.features_incompatible = 4; }), "features");
  has(error_of([](FileHeader& h) { h.capacity = 0; }), "impossible sizes");
  has(error_of([](FileHeader& h) { h.capacity = ~std::uint64_t{0}; }), "impossible sizes");
  has(error_of([](FileHeader& h) { h.record_bytes = 256; }), "impossible sizes");
  has(error_of([](FileHeader& h) { h.sketch_floats = 1 << 30; }), "impossible sizes");
  has(error_of([](FileHeader& h) { h.header_bytes = 0; }), "impossible sizes");
  has(reader_of({}).error, "empty file");
  has(reader_of({'G', 'R', 'A', 'D', 'P', 'R', 'B', '\n', 1}).error, "too short");
  has(reader_of({'h', 'e', 'l', 'l', 'o', ' ', 'w', 'o', 'r'}).error, "not a gradprobe ring");
  has(RingReader::open("/nonexistent/x.ring").error, "/nonexistent/x.ring: can't open");
  has(RingReader::open("/proc").error, "/proc: not a regular file");
}

TEST(RingReader, HugeCapacityInASmallFileEnds) {
  RingSpec spec;
  SyntheticRing ring = ring_with(3);
  FileHeader h;
  std::memcpy(&h, ring.bytes().data(), sizeof h);
  h.capacity = std::uint64_t{1} << 50;
  h.crc = test::slow_crc32c(reinterpret_cast<const unsigned char*>(&h), offsetof(FileHeader, crc));
  std::memcpy(ring.bytes().data(), &h, sizeof h);
  ring.set_counter(2048, std::uint64_t{1} << 49);
  const auto opened = reader_of(ring.bytes());
  ASSERT_TRUE(opened.reader) << opened.error;
  RingCursor cursor(*opened.reader);
  EXPECT_EQ(numbers(cursor), range(0, 3));
  EXPECT_EQ(cursor.losses().missing, (std::uint64_t{1} << 49) - 8);
}

// Without a checksum of its own, the counter is checked against the records' stamps.
TEST(RingReader, DamagedCounter) {
  for (const std::uint64_t records : {5u, 13u}) {
    for (const std::uint64_t lie :
         {std::uint64_t{0}, std::uint64_t{records + 1}, std::uint64_t{1000}, ~std::uint64_t{0}}) {
      SyntheticRing ring = ring_with(records);
      ring.set_counter(2048, lie);
      const auto opened = reader_of(ring.bytes());
      ASSERT_TRUE(opened.reader);
      RingCursor cursor(*opened.reader);
      const std::vector<std::uint64_t> found = numbers(cursor);
      // A counter of zero in a ring that has not gone round can't be told from a new ring with one record.
      if (lie == 0 && records < 8) continue;
      EXPECT_EQ(found, range(records > 8 ? records - 8 : 0, records)) << lie;
    }
  }
}

TEST(RingReader, StampOfAnotherSlotIsDamage) {
  SyntheticRing ring = ring_with(8);
  const std::uint64_t wrong = 100;  // no record of slot 2
  ring.set_counter(ring.slot(2), wrong);
  ring.set_counter(ring.slot(2) + 8, wrong);
  const auto opened = reader_of(ring.bytes());
  Record r;
  EXPECT_EQ(opened.reader->read(2, r), ReadStatus::corrupt);
}

TEST(RingReader, TextFieldsWithoutEnd) {
  char field[4] = {'a', 'b', 'c', 'd'};
  EXPECT_EQ(field_text(field), "abcd");
  field[1] = '\0';
  EXPECT_EQ(field_text(field), "a");
}

}  // namespace
}  // namespace gradprobe
