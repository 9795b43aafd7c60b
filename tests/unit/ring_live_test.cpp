// Readers beside a running writer. Run under ThreadSanitizer too: the writer's side uses the atomics of the format.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <gradprobe/checksum.hpp>
#include <gradprobe/ring_reader.hpp>

#include <atomic>
#include <thread>

#include "synthetic_ring.hpp"

namespace gradprobe {
namespace {

constexpr std::uint64_t kRecords = 8000;

class LiveRing {
 public:
  explicit LiveRing(std::uint64_t capacity) {
    test::RingSpec spec;
    spec.capacity = capacity;
    test::SyntheticRing ring(spec);
    size_ = ring.bytes().size();
    fd_ = test::anonymous_file(ring.bytes());
    map_ = static_cast<unsigned char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    capacity_ = capacity;
  }
  ~LiveRing() { munmap(map_, size_), close(fd_); }
  LiveRing(const LiveRing&) = delete;
  LiveRing& operator=(const LiveRing&) = delete;

  RingReader::Opened open() const { return RingReader::from_fd(dup(fd_), "live.ring"); }

  void write(std::uint64_t number) {
    unsigned char* slot = map_ + 4096 + number % capacity_ * 1280;
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(slot))
        .store(number + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    RecordHead head = test::make_collective(number, 0, 0, 0, number, static_cast<double>(number));
    head.flags |= kFlagSketchPresent;
    std::memcpy(slot + 20, reinterpret_cast<unsigned char*>(&head) + 20, sizeof head - 20);
    std::vector<float> sketch(256, static_cast<float>(number));
    std::memcpy(slot + 256, sketch.data(), 1024);
    const std::uint32_t crc = crc32c(slot + 20, 1280 - 20);
    std::memcpy(slot + 16, &crc, 4);
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(slot + 8))
        .store(number + 1, std::memory_order_release);
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(map_ + 2048))
        .store(number + 1, std::memory_order_release);
  }

 private:
  int fd_ = -1;
  unsigned char* map_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t capacity_ = 0;
};

// Every record is either read as it was written, once and in order, or counted as lost.
void follow(const LiveRing& ring, const std::atomic<bool>& finished) {
  const auto opened = ring.open();
  ASSERT_TRUE(opened.reader) << opened.error;
  RingCursor cursor(*opened.reader);
  std::uint64_t read = 0;
  std::uint64_t next = 0;
  Record r;
  for (bool last_round = false;;) {
    last_round = finished.load(std::memory_order_acquire);
    while (cursor.next(r) == Next::record) {
      ASSERT_GE(r.number, next);
      next = r.number + 1;
      read++;
      ASSERT_EQ(r.head.op, r.number);
      ASSERT_EQ(r.head.collective.count, r.number);
      ASSERT_EQ(r.sketch.size(), 256u);
      for (const float f : r.sketch) ASSERT_EQ(f, static_cast<float>(r.number));
    }
    if (last_round) break;
  }
  EXPECT_EQ(next, kRecords);
  EXPECT_EQ(read + cursor.losses().overwritten, kRecords);
  EXPECT_EQ(cursor.losses().torn_count, 0u);
  EXPECT_EQ(cursor.losses().corrupt_count, 0u);
}

void run(std::uint64_t capacity, bool slow_writer) {
  LiveRing ring(capacity);
  std::atomic<bool> finished{false};
  std::thread first([&] { follow(ring, finished); });
  std::thread second([&] { follow(ring, finished); });
  for (std::uint64_t i = 0; i < kRecords; i++) {
    ring.write(i);
    if (slow_writer && i % 16 == 0) std::this_thread::yield();
  }
  finished.store(true, std::memory_order_release);
  first.join();
  second.join();
}

TEST(RingLive, ReadersAreOftenLapped) {
  run(4, false);
}
TEST(RingLive, LargerRing) {
  run(512, true);
}
TEST(RingLive, RingOfOneRecord) {
  run(1, true);
}

}  // namespace
}  // namespace gradprobe
