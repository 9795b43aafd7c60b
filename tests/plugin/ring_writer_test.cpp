// The writer against the independent reader, and what a reader finds after the writer's process was killed.
#include "ring_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <gradprobe/ring_reader.hpp>

namespace gradprobe {
namespace {

class RingWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "gradprobe-ring-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    config_.directory = folder_ + "/a/b";
    config_.default_directory = false;
    config_.ring_mb = 1;
    config_.ring_mb_set = true;
    config_.sketch_floats = 256;
    identity_.comm_id = 0xabc;
    identity_.rank = 3;
    identity_.nranks = 8;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static RecordHead record(std::uint64_t op) {
    RecordHead r{};
    r.kind = static_cast<std::uint16_t>(RecordKind::collective);
    r.op = op;
    r.step = kNone;
    r.collective.count = op * 3;
    r.collective.sum_squares = static_cast<double>(op) / 7;
    return r;
  }

  std::string folder_, why_;
  Config config_;
  RingIdentity identity_;
};

TEST_F(RingWriterTest, ReaderSeesWhatWasWritten) {
  auto ring = RingWriter::create(config_, identity_, &why_);
  ASSERT_NE(ring, nullptr) << why_;
  std::vector<float> sketch(256);
  for (std::size_t i = 0; i < sketch.size(); i++) sketch[i] = static_cast<float>(i) / 3;
  ring->write(record(0), sketch.data());
  ring->write(record(1), nullptr);
  ring->count_missed(Missed::workspace, 5);
  auto opened = RingReader::open(ring->path());
  ASSERT_TRUE(opened.reader) << opened.error;
  EXPECT_EQ(opened.reader->header().comm_id, 0xabcu);
  EXPECT_EQ(opened.reader->header().rank, 3u);
  EXPECT_EQ(opened.reader->header().nranks, 8u);
  EXPECT_EQ(opened.reader->header().pid, static_cast<std::uint32_t>(getpid()));
  EXPECT_EQ(opened.reader->counters().missed[static_cast<int>(Missed::workspace)], 5u);
  RingCursor cursor(*opened.reader);
  Record r;
  ASSERT_EQ(cursor.next(r), Next::record);
  EXPECT_EQ(r.sketch, sketch);
  EXPECT_EQ(r.head.collective.sum_squares, 0.0);
  ASSERT_EQ(cursor.next(r), Next::record);
  EXPECT_TRUE(r.sketch.empty());
  EXPECT_EQ(r.head.op, 1u);
  EXPECT_EQ(r.head.collective.count, 3u);
  EXPECT_EQ(cursor.next(r), Next::end);
}

TEST_F(RingWriterTest, ResultsAreCountedApart) {
  auto ring = RingWriter::create(config_, identity_, &why_);
  ASSERT_NE(ring, nullptr) << why_;
  ring->write(record(7), nullptr);
  RecordHead result = record(7);
  result.kind = static_cast<std::uint16_t>(RecordKind::result);
  result.collective.fingerprint = 0xFEDCBA9876543210;
  const std::vector<float> sketch(256, 0.5f);
  ring->write(result, sketch.data());
  ring->count_measured(1);
  ring->count_results(1);
  ring->count_results(2);
  const auto opened = RingReader::open(ring->path());
  ASSERT_TRUE(opened.reader) << opened.error;
  EXPECT_EQ(opened.reader->header().features_compatible, 3u);
  EXPECT_EQ(opened.reader->counters().measured, 1u);
  EXPECT_EQ(opened.reader->counters().results, 3u);
  EXPECT_EQ(ring->results(), 3u);
  Record r;
  ASSERT_EQ(opened.reader->read(1, r), ReadStatus::ok);
  EXPECT_EQ(r.kind(), RecordKind::result);
  EXPECT_FALSE(r.has_body());
  EXPECT_EQ(r.head.op, 7u);
  EXPECT_EQ(r.head.collective.fingerprint, 0xFEDCBA9876543210u);
  EXPECT_EQ(r.sketch, sketch);
}

TEST_F(RingWriterTest, FileAndFoldersArePrivateAndNothingIsOverwritten) {
  auto first = RingWriter::create(config_, identity_, &why_);
  auto second = RingWriter::create(config_, identity_, &why_);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr) << why_;
  EXPECT_NE(first->path(), second->path());
  struct stat status {};
  ASSERT_EQ(stat(first->path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, first->bytes());  // allocated, not sparse
  ASSERT_EQ(stat((folder_ + "/a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
}

TEST_F(RingWriterTest, DoesNotFollowALinkInPlaceOfItsFile) {
  std::filesystem::create_directories(config_.directory);
  const std::string victim = folder_ + "/victim";
  {
    const int fd = ::open(victim.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ::close(fd);
  }
  char name[128];
  std::snprintf(name, sizeof name, "%s/%016llx-r%05u-p%d.ring", config_.directory.c_str(), 0xabcull, 3u, getpid());
  ASSERT_EQ(symlink(victim.c_str(), name), 0);
  auto ring = RingWriter::create(config_, identity_, &why_);
  ASSERT_NE(ring, nullptr);
  EXPECT_NE(ring->path(), name);
  EXPECT_EQ(std::filesystem::file_size(victim), 0u);
}

TEST_F(RingWriterTest, WrapsAndTheReaderCountsWhatIsGone) {
  auto ring = RingWriter::create(config_, identity_, &why_);
  ASSERT_NE(ring, nullptr);
  const std::uint64_t n = ring->capacity() * 2 + 5;
  for (std::uint64_t i = 0; i < n; i++) ring->write(record(i), nullptr);
  auto opened = RingReader::open(ring->path());
  RingCursor cursor(*opened.reader);
  std::uint64_t next = n - ring->capacity();
  for (Record r; cursor.next(r) == Next::record; next++) EXPECT_EQ(r.head.op, next);
  EXPECT_EQ(next, n);
  EXPECT_EQ(cursor.losses().overwritten, n - ring->capacity());
}

TEST_F(RingWriterTest, KilledWriterLosesAtMostTheRecordItWasWriting) {
  for (int round = 0; round < 10; round++) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto ring = RingWriter::create(config_, identity_, &why_);
      if (ring == nullptr) _exit(1);
      const std::string path = ring->path();
      std::vector<float> sketch(256, 1.0f);
      ring->write(record(0), sketch.data());
      if (::write(ready[1], path.c_str(), path.size() + 1) < 0) _exit(1);
      for (std::uint64_t i = 1;; i++) ring->write(record(i), sketch.data());
    }
    char path[512] = {};
    ASSERT_GT(::read(ready[0], path, sizeof path - 1), 0);
    usleep(static_cast<useconds_t>(2000 + 1700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    auto opened = RingReader::open(path);
    ASSERT_TRUE(opened.reader) << opened.error;
    const std::uint64_t written = opened.reader->counters().written;
    ASSERT_GT(written, 0u);
    RingCursor cursor(*opened.reader);
    std::uint64_t read = 0, last = 0;
    for (Record r; cursor.next(r) == Next::record; read++) last = r.head.op;
    EXPECT_LE(cursor.losses().torn_count, 1u);
    EXPECT_EQ(cursor.losses().corrupt_count, 0u);
    EXPECT_GE(last + 2, written);
    EXPECT_GE(read + 1, std::min(written, opened.reader->header().capacity));
  }
}

TEST_F(RingWriterTest, LimitOnTheSizeOfFilesIsAnErrorNotASignal) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{2u << 20, 2u << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(10);
    config_.ring_mb = 4;
    if (RingWriter::create(config_, identity_, &why_) != nullptr) _exit(11);
    if (why_.find("ulimit -f") == std::string::npos || !std::filesystem::is_empty(config_.directory)) _exit(12);
    config_.ring_mb_set = false;  // then a ring of the size that is allowed
    const auto ring = RingWriter::create(config_, identity_, &why_);
    _exit(ring != nullptr && ring->bytes() <= 2u << 20 ? 0 : 13);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(RingWriterTest, AFileThatIsNotKeptIsGone) {
  std::string path;
  {
    const auto ring = RingWriter::create(config_, identity_, &why_);
    ASSERT_NE(ring, nullptr) << why_;
    path = ring->path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace gradprobe
