// Reads ring files (ring_format.hpp), also while they are being written. Header-only, libc only, no exceptions of its
// own.
//
//   auto opened = gradprobe::RingReader::open("/dev/shm/.../0123456789abcdef-r00000-p4711.ring");
//   if (!opened.reader) return complain(opened.error);            // "FILE: what is wrong; what to do"
//   gradprobe::RingCursor cursor(*opened.reader);                 // oldest -> newest
//   for (gradprobe::Record r; cursor.next(r) == gradprobe::Next::record;) use(r);
//
// Nothing in the file is trusted. Bytes are copied with pread() rather than mapped: a file that is truncated under the
// reader gives a short read, where a mapping would raise SIGBUS. On Linux both see the same page cache, so the stamps
// and the checksum of a record tell whether a copy is consistent.
//
// One object is for one thread at a time; different readers of a file don't disturb each other or the writer.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checksum.hpp"
#include "ring_format.hpp"

namespace gradprobe {

struct Record {
  std::uint64_t number = 0;  // of the ring: 0, 1, 2, ...
  RecordHead head{};
  std::vector<float> sketch;  // empty unless kFlagSketchPresent

  RecordKind kind() const { return static_cast<RecordKind>(head.kind); }
  // An input's record, measured or not. (A result has the same body and is none.)
  bool has_body() const { return kind() == RecordKind::collective || kind() == RecordKind::scalar; }
  bool has(RecordFlags flag) const { return (head.flags & flag) != 0; }
};

// A text field of the header: up to its NUL, or all of it.
template <std::size_t N>
std::string field_text(const char (&field)[N]) {
  return {field, std::find(field, field + N, '\0')};
}

enum class ReadStatus {
  ok,
  not_written,  // not there yet
  torn,         // the writer was (or still is) in the middle of it
  overwritten,  // its slot holds a later record
  corrupt,      // stamps that no writer leaves, or a wrong checksum
  missing,      // beyond the end of the file (truncated)
  error,        // the operating system refused the read
};

class RingReader {
 public:
  struct Opened;

  static Opened open(const std::string& path);
  // Takes ownership of `fd`; `name` is for messages.
  static Opened from_fd(int fd, const std::string& name);

  RingReader(RingReader&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), name_(std::move(other.name_)), header_(other.header_) {}
  RingReader& operator=(RingReader&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(name_, other.name_);
    std::swap(header_, other.header_);
    return *this;
  }
  RingReader(const RingReader&) = delete;
  RingReader& operator=(const RingReader&) = delete;
  ~RingReader() {
    if (fd_ >= 0) ::close(fd_);
  }

  const std::string& name() const { return name_; }
  const FileHeader& header() const { return header_; }

  // Bytes that the file should have, and has now. A shorter file has lost its last slots.
  std::uint64_t expected_bytes() const { return kHeaderBytes + header_.capacity * header_.record_bytes; }
  std::uint64_t actual_bytes() const {
    struct stat status {};
    return ::fstat(fd_, &status) == 0 && status.st_size > 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
  }
  // Slots that lie in the file as it is now.
  std::uint64_t slots() const {
    const std::uint64_t bytes = actual_bytes();
    if (bytes <= kHeaderBytes) return 0;
    return std::min(header_.capacity, (bytes - kHeaderBytes) / header_.record_bytes);
  }

  // The counters as they are now. They carry no checksum.
  LiveCounters counters() const {
    LiveCounters now{}, again{};
    pread_exactly(&now, sizeof now, sizeof(FileHeader));
    // A copy is not atomic; the counters that decide what is read must be the same twice.
    for (int i = 0; i < 8; i++) {
      pread_exactly(&again, sizeof again, sizeof(FileHeader));
      const bool same = now.written == again.written && now.state == again.state;
      now = again;
      if (same) break;
    }
    return now;
  }

  // Records ever written: the counter, corrected by the stamps around it when the counter is damaged or when the writer
  // was killed between a record and the counter.
  std::uint64_t written() const {
    const std::uint64_t n = counters().written;
    if (n > kMaxRecords) return newest_stamp();
    if (n > 0 && slot_in_file(n - 1) && stamps(n - 1).before < n) return newest_stamp();
    const Stamps next = stamps(n);
    if (next.before == n + 1 && next.after == n + 1) return n + 1;
    const bool ahead = next.before > n + 1 && next.before <= kMaxRecords && next.before == next.after;
    if (ahead && counters().written == n) return newest_stamp();
    return n;
  }

  // The record that the writer has begun and not finished, if any. For good when the writer is dead.
  std::optional<std::uint64_t> unfinished() const {
    const std::uint64_t n = written();
    const Stamps s = stamps(n);
    if (s.before == n + 1 && s.after != n + 1) return n;
    return std::nullopt;
  }

  // Number of the oldest record that can still be there when `written` have been written.
  std::uint64_t oldest(std::uint64_t written) const {
    return written > header_.capacity ? written - header_.capacity : 0;
  }

  // Reads record `number`. `record` is only meaningful after ok.
  ReadStatus read(std::uint64_t number, Record& record) const {
    // A slot can be rewritten once or twice meanwhile; the stamps then tell what happened.
    ReadStatus status = ReadStatus::torn;
    for (int attempt = 0; attempt < 3; attempt++) {
      status = read_once(number, record);
      if (status != ReadStatus::torn && status != ReadStatus::corrupt) break;
    }
    return status;
  }

 private:
  // Far above what any run writes, and small enough that no arithmetic on record numbers overflows.
  static constexpr std::uint64_t kMaxRecords = std::uint64_t{1} << 62;

  RingReader(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}

  static Opened fail(const std::string& name, const std::string& what, const std::string& what_to_do);

  // Bytes read, fewer at the end of the file; -1 on an error.
  std::int64_t pread_upto(void* to, std::size_t bytes, std::uint64_t offset) const {
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t n =
          ::pread(fd_, static_cast<unsigned char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -1;
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return static_cast<std::int64_t>(done);
  }
  bool pread_exactly(void* to, std::size_t bytes, std::uint64_t offset) const {
    return pread_upto(to, bytes, offset) == static_cast<std::int64_t>(bytes);
  }

  std::string read_header() {
    const auto say = [this](const std::string& what, const std::string& what_to_do) {
      return name_ + ": " + what + "; " + what_to_do;
    };
    const std::int64_t n = pread_upto(&header_, sizeof header_, 0);
    if (n < 0) return say(std::string("can't read: ") + std::strerror(errno), "check the file system");
    if (n == 0) return say("empty file", "the process that creates it died, or is not done yet");
    const auto got = static_cast<std::size_t>(n);
    if (got >= sizeof header_.magic && std::memcmp(header_.magic, kRingMagic, sizeof kRingMagic) != 0) {
      const bool zeros = std::all_of(header_.magic, header_.magic + 8, [](char c) { return c == 0; });
      if (zeros) return say("no header yet", "the process that creates it died, or is not done yet");
      return say("not a gradprobe ring (wrong magic)", "give a .ring file that the plugin wrote");
    }
    if (got < sizeof header_) {
      return say("too short for a ring: " + std::to_string(n) + " bytes", "it was truncated: copy it again");
    }
    if (header_.version != kRingVersion) {
      return say("ring format version " + std::to_string(header_.version) + ", this reader knows " +
                     std::to_string(kRingVersion),
                 header_.version > kRingVersion ? "use a newer gradprobe" : "use the gradprobe that wrote it");
    }
    if (crc32c(&header_, offsetof(FileHeader, crc)) != header_.crc) {
      return say("header checksum mismatch", "the file is damaged: copy it again");
    }
    if (const std::uint64_t unknown = header_.features_incompatible & ~kKnownIncompatible; unknown != 0) {
      return say("uses features that this reader does not know (bits " + std::to_string(unknown) + ")",
                 "use a newer gradprobe");
    }
    const bool sane = header_.header_bytes == kHeaderBytes && header_.sketch_floats <= kMaxSketchFloats &&
                      header_.record_bytes == record_bytes(header_.sketch_floats) && header_.capacity != 0 &&
                      header_.capacity <= kMaxRecords / header_.record_bytes;
    if (!sane)
      return say("header with impossible sizes", "report it: the checksum is right, so the writer is at fault");
    return {};
  }

  std::uint64_t slot_offset(std::uint64_t number) const {
    return kHeaderBytes + number % header_.capacity * header_.record_bytes;
  }

  bool slot_in_file(std::uint64_t number) const { return number % header_.capacity < slots(); }

  struct Stamps {
    std::uint64_t before = 0, after = 0;
  };

  // `after` is loaded first, as ring_format.hpp says. Zeros where the file ends before.
  Stamps stamps(std::uint64_t number) const {
    Stamps s;
    if (!pread_exactly(&s.after, sizeof s.after, slot_offset(number) + offsetof(RecordHead, after))) return {};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!pread_exactly(&s.before, sizeof s.before, slot_offset(number) + offsetof(RecordHead, before))) return {};
    return s;
  }

  std::uint64_t newest_stamp() const {
    std::uint64_t newest = 0;
    const std::uint64_t in_file = slots();
    for (std::uint64_t slot = 0; slot < in_file; slot++) {
      const Stamps s = stamps(slot);
      if (s.before != s.after || s.after == 0 || s.after > kMaxRecords) continue;
      if ((s.after - 1) % header_.capacity == slot) newest = std::max(newest, s.after);
    }
    return newest;
  }

  ReadStatus read_once(std::uint64_t number, Record& record) const {
    const std::uint64_t stamp = number + 1;
    const std::size_t bytes = kRecordHeadBytes + std::size_t{4} * header_.sketch_floats;
    std::uint64_t after = 0;
    const std::int64_t n = pread_upto(&after, sizeof after, slot_offset(number) + offsetof(RecordHead, after));
    if (n < 0) return ReadStatus::error;
    if (n < static_cast<std::int64_t>(sizeof after)) return ReadStatus::missing;
    std::atomic_thread_fence(std::memory_order_acquire);

    record.number = number;
    record.sketch.resize(header_.sketch_floats);
    const bool whole = pread_exactly(&record.head, sizeof record.head, slot_offset(number)) &&
                       (header_.sketch_floats == 0 || pread_exactly(record.sketch.data(), bytes - kRecordHeadBytes,
                                                                    slot_offset(number) + kRecordHeadBytes));
    if (!whole) return ReadStatus::missing;
    std::atomic_thread_fence(std::memory_order_acquire);
    std::uint64_t before = 0;
    if (!pread_exactly(&before, sizeof before, slot_offset(number))) return ReadStatus::missing;

    if (before != stamp) return other_stamp(number, before);
    if (after != stamp) return ReadStatus::torn;
    const auto* payload = reinterpret_cast<const unsigned char*>(&record.head) + offsetof(RecordHead, kind);
    std::uint32_t crc = crc32c(payload, sizeof record.head - offsetof(RecordHead, kind));
    crc = crc32c(record.sketch.data(), record.sketch.size() * sizeof(float), crc);
    if (crc != record.head.crc) return ReadStatus::corrupt;
    if (!record.has(kFlagSketchPresent)) record.sketch.clear();
    return ReadStatus::ok;
  }

  // The slot's first stamp is not this record's: it belongs to an earlier or a later one, or to none.
  ReadStatus other_stamp(std::uint64_t number, std::uint64_t before) const {
    if (before == 0) return ReadStatus::not_written;
    if (before > kMaxRecords || (before - 1) % header_.capacity != number % header_.capacity)
      return ReadStatus::corrupt;
    return before < number + 1 ? ReadStatus::not_written : ReadStatus::overwritten;
  }

  int fd_ = -1;
  std::string name_;
  FileHeader header_{};
};

// What to do when opening a file or a folder failed with `error`.
inline const char* open_advice(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "run as the user who wrote it";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case EIO:
    case ESTALE:
      return "check the file system";
    case ENOMEM:
      return "free memory";
    default:
      return "check the path";
  }
}

struct RingReader::Opened {
  std::optional<RingReader> reader;
  std::string error;  // set when there is no reader
};

inline RingReader::Opened RingReader::fail(const std::string& name, const std::string& what,
                                           const std::string& what_to_do) {
  return {std::nullopt, name + ": " + what + "; " + what_to_do};
}

inline RingReader::Opened RingReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) {
    const int e = errno;
    return fail(path, std::string("can't open: ") + std::strerror(e), open_advice(e));
  }
  return from_fd(fd, path);
}

inline RingReader::Opened RingReader::from_fd(int fd, const std::string& name) {
  RingReader r(fd, name);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail(name, std::string("can't stat: ") + std::strerror(errno), "check it");
  if (!S_ISREG(status.st_mode)) return fail(name, "not a regular file", "give a ring file or a folder of them");
  if (std::string why = r.read_header(); !why.empty()) return {std::nullopt, std::move(why)};
  return {std::move(r), {}};
}

enum class Next {
  record,  // a record was read
  end,     // nothing more for now; call again later to follow a running writer
  error,   // the operating system refused a read
};

// Walks the records of a ring from the oldest (or a given number) to the newest, passing over what can't be read and
// keeping count of it. The reader must outlive the cursor.
class RingCursor {
 public:
  struct Losses {
    std::uint64_t overwritten = 0;    // written before the cursor came, or overtaken by the writer
    std::uint64_t missing = 0;        // beyond the end of a truncated file
    std::vector<std::uint64_t> torn;  // record numbers, at most kKept
    std::vector<std::uint64_t> corrupt;
    std::uint64_t torn_count = 0;
    std::uint64_t corrupt_count = 0;
  };
  static constexpr std::size_t kKept = 64;

  explicit RingCursor(const RingReader& reader, std::uint64_t first = 0) : reader_(&reader), next_(first) {}

  std::uint64_t next_number() const { return next_; }
  const Losses& losses() const { return losses_; }

  Next next(Record& record) {
    for (;;) {
      if (next_ >= known_written_) {
        known_written_ = reader_->written();
        if (next_ >= known_written_) return Next::end;
      }
      if (const std::uint64_t oldest = reader_->oldest(known_written_); next_ < oldest) {
        losses_.overwritten += oldest - next_;
        next_ = oldest;
      }
      switch (reader_->read(next_, record)) {
        case ReadStatus::ok:
          next_++;
          return Next::record;
        case ReadStatus::overwritten:
          losses_.overwritten++;
          next_++;
          // The writer is a whole ring ahead: ask again where it is instead of stepping through what is gone.
          known_written_ = std::max(known_written_, reader_->written());
          break;
        case ReadStatus::missing:
          skip_missing();
          break;
        case ReadStatus::torn:
          note(losses_.torn, losses_.torn_count);
          break;
        case ReadStatus::corrupt:
        case ReadStatus::not_written:
          note(losses_.corrupt, losses_.corrupt_count);
          break;
        case ReadStatus::error:
          return Next::error;
      }
    }
  }

 private:
  void note(std::vector<std::uint64_t>& numbers, std::uint64_t& count) {
    if (numbers.size() < kKept) numbers.push_back(next_);
    count++;
    next_++;
  }

  // To the next record whose slot lies in the file.
  void skip_missing() {
    const std::uint64_t capacity = reader_->header().capacity;
    const std::uint64_t slot = next_ % capacity;
    const std::uint64_t step = reader_->slots() == 0 ? known_written_ - next_ : capacity - slot;
    const std::uint64_t end = std::min(known_written_, next_ + step);
    losses_.missing += end - next_;
    next_ = end;
  }

  const RingReader* reader_;
  std::uint64_t next_;
  std::uint64_t known_written_ = 0;
  Losses losses_;
};

}  // namespace gradprobe
