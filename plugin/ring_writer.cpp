#include "ring_writer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include <gradprobe/checksum.hpp>

#include "blocked_signals.hpp"
#include "version.hpp"

namespace gradprobe {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::uint64_t realtime_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u + static_cast<std::uint64_t>(t.tv_nsec);
}

template <std::size_t N>
void put(char (&field)[N], const std::string& text) {
  const std::size_t n = std::min(text.size(), N - 1);
  std::memcpy(field, text.data(), n);
}

// Creates `path` and its missing parents, each with mode 0700. Returns 0 or errno.
int make_directories(const std::string& path) {
  for (std::size_t at = 1; at != std::string::npos;) {
    at = path.find('/', at);
    const std::string part = path.substr(0, at);
    if (at != std::string::npos) at++;
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat existing {};
      if (stat(part.c_str(), &existing) != 0 || !S_ISDIR(existing.st_mode)) return error;
    }
  }
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return errno;
  return S_ISDIR(status.st_mode) ? 0 : ENOTDIR;
}

// In /dev/shm anyone may create our default folder's name first: it must be a real folder of ours.
bool owned_by_us(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
         (status.st_mode & 022) == 0;
}

std::string boot_id() {
  char text[40] = {};
  const FileDescriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (file.get() >= 0) {
    const ssize_t n = ::read(file.get(), text, sizeof text - 1);
    if (n > 0 && text[n - 1] == '\n') text[n - 1] = '\0';
  }
  return text;
}

// How large a file of this process can be: more would raise SIGXFSZ, which ends the process.
std::uint64_t file_limit() {
  struct rlimit limit {};
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur : UINT64_MAX;
}

// posix_fallocate, not ftruncate: a sparse file on a full disk would raise SIGBUS at the first store.
int allocate(int fd, std::uint64_t bytes) {
  if (bytes > file_limit()) return EFBIG;
  // A signal makes some file systems undo all they have done so far: under a profiler's timer that could go on for
  // ever.
  const BlockedSignals blocked;
  int error = EINTR;
  for (int attempt = 0; attempt < 10 && error == EINTR; attempt++)
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return error;
}

std::string reason(const std::string& path, const char* what, int error) {
  std::string advice;
  switch (error) {
    case ENOSPC:
      advice =
          "free space there, or set GRADPROBE_DIR to a file system with room for a ring (GRADPROBE_RING_MB, at least "
          "1)";
      break;
    case EFBIG:
      advice = "raise the process's limit (ulimit -f), or set GRADPROBE_RING_MB to less";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      advice = "set GRADPROBE_DIR to a folder that this user can write";
      break;
    default:
      advice = "set GRADPROBE_DIR to another folder";
      break;
  }
  // A message has room for one line: of a very long path its end is kept.
  constexpr std::size_t kLongest = 300;
  const std::string shown = path.size() <= kLongest ? path : "..." + path.substr(path.size() - kLongest);
  return shown + ": " + what + ": " + std::strerror(error) + "; " + advice;
}

// Inode of the namespace in which our process id counts: in a container another one than the host's. 0 if unknown.
std::uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// What a ring may take of a file system when the user named no size.
std::uint64_t modest_bytes(int fd, std::uint64_t wanted) {
  constexpr std::uint64_t kLeast = 1u << 20;
  wanted = std::max(std::min(wanted, file_limit()), kLeast);
  struct statvfs status {};
  if (fstatvfs(fd, &status) != 0) return wanted;
  const std::uint64_t available = std::uint64_t{status.f_bavail} * status.f_frsize;
  return std::max(std::min(wanted, available / 32), std::min(wanted, kLeast));
}

}  // namespace

std::unique_ptr<RingWriter> RingWriter::create(const Config& config, const RingIdentity& identity, std::string* why) {
  // The default folder's parent first: nothing may be created through a link that somebody else left there.
  std::vector<std::string> folders;
  if (config.default_directory) folders.push_back(config.directory.substr(0, config.directory.rfind('/')));
  folders.push_back(config.directory);
  for (const std::string& folder : folders) {
    if (const int error = make_directories(folder); error != 0) {
      *why = reason(folder, "can't create the folder for ring files", error);
      return nullptr;
    }
    if (config.default_directory && !owned_by_us(folder)) {
      *why = folder + ": exists but is not a private folder of this user; remove it or set GRADPROBE_DIR";
      return nullptr;
    }
  }
  std::unique_ptr<RingWriter> ring(new RingWriter);
  std::uint32_t ordinal = 0;
  int raw_fd = -1;
  for (; ordinal < 10000; ordinal++) {
    char name[96];
    std::snprintf(name, sizeof name, "/%016llx-r%05u-p%d", static_cast<unsigned long long>(identity.comm_id),
                  identity.rank, static_cast<int>(getpid()));
    ring->path_ = config.directory + name + (ordinal == 0 ? "" : "-" + std::to_string(ordinal)) + ".ring";
    raw_fd = ::open(ring->path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (raw_fd >= 0 || errno != EEXIST) break;
  }
  if (raw_fd < 0) {
    *why = reason(ring->path_, "can't create the ring file", errno);
    return nullptr;
  }
  const FileDescriptor file(raw_fd);
  ring->created_ = true;

  ring->sketch_floats_ = config.sketch_floats;
  ring->record_bytes_ = record_bytes(config.sketch_floats);
  std::uint64_t wanted = config.ring_mb << 20;
  if (!config.ring_mb_set) wanted = modest_bytes(file.get(), wanted);
  ring->capacity_ = (wanted - kHeaderBytes) / ring->record_bytes_;
  ring->bytes_ = kHeaderBytes + ring->capacity_ * ring->record_bytes_;
  int error = allocate(file.get(), ring->bytes_);
  void* map = MAP_FAILED;
  if (error == 0) {
    map = mmap(nullptr, ring->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (map == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    char what[80];
    std::snprintf(what, sizeof what, "can't allocate the ring of %llu bytes",
                  static_cast<unsigned long long>(ring->bytes_));
    *why = reason(ring->path_, what, error);
    return nullptr;
  }
  // A forked child must never write its parent's ring; without the mapping it can't.
  madvise(map, ring->bytes_, MADV_DONTFORK);
  ring->map_ = static_cast<unsigned char*>(map);
  ring->live_ = reinterpret_cast<LiveCounters*>(ring->map_ + sizeof(FileHeader));

  FileHeader h{};
  h.version = kRingVersion;
  h.header_bytes = kHeaderBytes;
  h.record_bytes = ring->record_bytes_;
  h.sketch_floats = config.sketch_floats;
  h.capacity = ring->capacity_;
  h.features_compatible = kFeatureResults | kFeatureMarks;
  if (identity.profiler_abi >= 7) h.features_compatible |= kFeatureSymmetric;
  h.comm_id = identity.comm_id;
  h.rank = identity.rank;
  h.nranks = identity.nranks;
  h.nnodes = identity.nnodes;
  h.profiler_abi = identity.profiler_abi;
  h.sketch_seed = config.seed;
  h.start_time_ns = realtime_ns();
  h.pid = static_cast<std::uint32_t>(getpid());
  h.comm_ordinal = ordinal;
  h.ops_per_step = config.ops_per_step;
  h.pid_namespace = pid_namespace();
  put(h.boot_id, boot_id());
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  put(h.host, host);
  put(h.comm_name, identity.comm_name);
  std::memcpy(h.device_uuid, identity.device_uuid, sizeof h.device_uuid);
  put(h.device_name, identity.device_name);
  put(h.job, config.job);
  put(h.plugin_version, kVersion);
  put(h.config, config.text());
  std::memcpy(h.magic, kRingMagic, sizeof h.magic);
  h.crc = crc32c(&h, offsetof(FileHeader, crc));
  // The magic comes last: a reader that sees it sees a whole header.
  std::memcpy(ring->map_ + sizeof h.magic, reinterpret_cast<const char*>(&h) + sizeof h.magic,
              sizeof h - sizeof h.magic);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(ring->map_, h.magic, sizeof h.magic);
  ring->heartbeat();
  return ring;
}

RingWriter::~RingWriter() {
  if (created_ && !kept_) ::unlink(path_.c_str());
  if (map_ != nullptr) munmap(map_, bytes_);
}

void RingWriter::write(RecordHead head, const float* sketch) {
  const std::uint64_t stamp = written_ + 1;
  unsigned char* slot = map_ + kHeaderBytes + (written_ % capacity_) * record_bytes_;
  const std::size_t sketch_bytes = std::size_t{4} * sketch_floats_;
  constexpr std::size_t kCrcAt = offsetof(RecordHead, crc);
  constexpr std::size_t kPayloadAt = offsetof(RecordHead, kind);
  head.time_ns = realtime_ns();
  const bool sketched = sketch != nullptr && sketch_floats_ != 0;
  if (sketched) head.flags |= kFlagSketchPresent;

  auto* before = reinterpret_cast<std::uint64_t*>(slot);
  auto* after = before + 1;
  std::atomic_ref<std::uint64_t>(*before).store(stamp, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(slot + kPayloadAt, reinterpret_cast<const unsigned char*>(&head) + kPayloadAt, sizeof head - kPayloadAt);
  if (sketched)
    std::memcpy(slot + sizeof head, sketch, sketch_bytes);
  else
    std::memset(slot + sizeof head, 0, sketch_bytes);
  const std::uint32_t crc = crc32c(slot + kPayloadAt, sizeof head - kPayloadAt + sketch_bytes);
  std::memcpy(slot + kCrcAt, &crc, sizeof crc);
  std::atomic_ref<std::uint64_t>(*after).store(stamp, std::memory_order_release);

  written_ = stamp;
  std::atomic_ref<std::uint64_t>(live_->written).store(written_, std::memory_order_release);
}

void RingWriter::add(std::uint64_t LiveCounters::*field, std::uint64_t n) {
  std::atomic_ref<std::uint64_t>(live_->*field).fetch_add(n, std::memory_order_relaxed);
}

void RingWriter::set(std::uint64_t LiveCounters::*field, std::uint64_t n) {
  std::atomic_ref<std::uint64_t>(live_->*field).store(n, std::memory_order_release);
}

void RingWriter::count_missed(Missed reason, std::uint64_t n) {
  std::atomic_ref<std::uint64_t>(live_->missed[static_cast<std::size_t>(reason)])
      .fetch_add(n, std::memory_order_relaxed);
}

void RingWriter::heartbeat() {
  set(&LiveCounters::heartbeat_ns, realtime_ns());
}

std::uint64_t RingWriter::measured() const {
  return std::atomic_ref<std::uint64_t>(live_->measured).load(std::memory_order_relaxed);
}

std::uint64_t RingWriter::results() const {
  return std::atomic_ref<std::uint64_t>(live_->results).load(std::memory_order_relaxed);
}

std::uint64_t RingWriter::missed(Missed reason) const {
  return std::atomic_ref<std::uint64_t>(live_->missed[static_cast<std::size_t>(reason)])
      .load(std::memory_order_relaxed);
}

}  // namespace gradprobe
