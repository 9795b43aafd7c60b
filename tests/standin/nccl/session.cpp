#include "session.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>

#include "log.h"

namespace standin {

struct Session::Barrier {
  std::atomic<uint32_t> arrived, generation;
};
struct alignas(64) Session::RankCell {
  enum State : uint32_t { kAbsent, kAttached, kLeft };
  std::atomic<uint32_t> state;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> started;  // start time of the process: a pid may be used again
  std::atomic<uint32_t> events;   // counts what peers did to pipes that this rank waits for
  Signature announced[2];
  char mail[kMailBytes];
};
struct alignas(64) Session::Header {
  uint32_t magic;
  int32_t ranks;
  uint64_t chunk_bytes, pipe_bytes;
  std::atomic<uint32_t> attached;
  std::atomic<uint32_t> failed;
  alignas(64) Barrier setup;
  alignas(64) Barrier data;
};

namespace {

constexpr uint32_t kMagic = 0x4c43434e;
constexpr char kPrefix[] = "standin-nccl-";
constexpr long kLookAroundNs = 50'000'000;

size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, long ns) {
  timespec timeout{0, ns};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}
void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// When the process started, in clock ticks since boot; 0 when it has ended (also as a zombie).
uint64_t start_of(int pid) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* after_name = strrchr(text, ')');
  if (!after_name || after_name[2] == 'Z' || after_name[2] == 'X') return 0;
  unsigned long long started = 0;
  if (sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &started) != 1)
    return 0;
  return started + 1;
}

std::string segment_name(const ncclUniqueId& id) {
  std::string name = std::string("/") + kPrefix;
  char hex[3];
  for (int i = 8; i < 24; i++) {
    snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(id.internal[i]));
    name += hex;
  }
  return name;
}

// Locks of a segment's file, which end with the process. Byte 0: held while joining. Byte 1: held by every attached
// rank until all are there; a segment on which nobody holds either has no user.
enum LockByte : off_t { kJoinLock = 0, kUseLock = 1 };
bool lock(int fd, short type, off_t first, off_t bytes, bool wait) {
  struct flock f = {};
  f.l_type = type;
  f.l_whence = SEEK_SET;
  f.l_start = first;
  f.l_len = bytes;
  int r;
  do {
    r = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &f);
  } while (r && errno == EINTR);
  return r == 0;
}

void remove_leftovers() {
  DIR* dir = opendir("/dev/shm");
  if (!dir) return;
  while (dirent* entry = readdir(dir)) {
    if (strncmp(entry->d_name, kPrefix, sizeof kPrefix - 1)) continue;
    std::string name = std::string("/") + entry->d_name;
    int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) continue;
    if (lock(fd, F_WRLCK, kJoinLock, 2, false)) shm_unlink(name.c_str());
    close(fd);
  }
  closedir(dir);
}

}  // namespace

Session::RankCell* Session::cell(int rank) const {
  return reinterpret_cast<RankCell*>(header_ + 1) + rank;
}

char* Session::buffer(int rank, int half) {
  char* first = reinterpret_cast<char*>(cell(ranks_));
  return first + chunk_bytes_ * static_cast<size_t>(half * ranks_ + rank);
}

Session::Pipe* Session::pipe(int from, int to) {
  char* first = buffer(0, 2);
  return reinterpret_cast<Pipe*>(first + (sizeof(Pipe) + pipe_bytes_) * static_cast<size_t>(from * ranks_ + to));
}

ncclResult_t Session::open(const std::string& name, int ranks, int rank, const Limits& limits, bool* retry) {
  *retry = false;
  fd_ = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct stat st;
  if (fd_ < 0 || !lock(fd_, F_WRLCK, kJoinLock, 1, true) || fstat(fd_, &st)) {
    STANDIN_WARN("cannot open shared memory /dev/shm%s: %s", name.c_str(), strerror(errno));
    return ncclSystemError;
  }
  if (st.st_nlink == 0) {
    *retry = true;
    return ncclSuccess;
  }
  size_t n = static_cast<size_t>(ranks);
  size_t chunk = limits.chunk_bytes ? limits.chunk_bytes : std::clamp<size_t>((4u << 20) / n, 16u << 10, 512u << 10);
  size_t pipe = std::clamp<size_t>((4u << 20) / (n * n), 4u << 10, 256u << 10);
  chunk = round_up(std::max(chunk, n * 8), 4096);
  pipe = round_up(pipe, 64);
  mapped_ = sizeof(Header) + n * (sizeof(RankCell) + 2 * chunk) + n * n * (sizeof(Pipe) + pipe);
  bool first = st.st_size == 0;
  if (!first && static_cast<size_t>(st.st_size) != mapped_) {
    STANDIN_WARN("ranks disagree about the number of ranks or STANDIN_NCCL_CHUNK_KIB of one unique id");
    return ncclInvalidArgument;
  }
  if (first) {
    if (int e = posix_fallocate(fd_, 0, static_cast<off_t>(mapped_))) {
      STANDIN_WARN("/dev/shm has no room for %zu bytes of a %d-rank communicator: %s", mapped_, ranks, strerror(e));
      shm_unlink(name.c_str());
      return ncclSystemError;
    }
  }
  void* at = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) {
    STANDIN_WARN("cannot map /dev/shm%s: %s", name.c_str(), strerror(errno));
    return ncclSystemError;
  }
  header_ = static_cast<Header*>(at);
  if (first) {
    new (header_) Header{};
    header_->magic = kMagic;
    header_->ranks = ranks;
    header_->chunk_bytes = chunk;
    header_->pipe_bytes = pipe;
  }
  ranks_ = ranks;
  rank_ = rank;
  chunk_bytes_ = chunk;
  pipe_bytes_ = pipe;
  RankCell* mine = cell(rank);
  if (mine->state.load() != RankCell::kAbsent) {
    STANDIN_WARN("rank %d joined twice with the same unique id", rank);
    munmap(header_, mapped_);
    header_ = nullptr;
    return ncclInvalidArgument;
  }
  mine->pid = getpid();
  mine->started = start_of(getpid());
  mine->state = RankCell::kAttached;
  if (header_->attached.fetch_add(1) + 1 == static_cast<uint32_t>(ranks)) {
    shm_unlink(name.c_str());
    futex_wake(header_->attached);
  }
  lock(fd_, F_RDLCK, kUseLock, 1, true);
  lock(fd_, F_UNLCK, kJoinLock, 1, true);
  return ncclSuccess;
}

ncclResult_t Session::attach(const ncclUniqueId& id, int ranks, int rank, const Limits& limits,
                             const std::atomic<bool>* abort) {
  abort_ = abort;
  std::string name = segment_name(id);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(limits.join_timeout_s);
  for (bool retry = true; retry;) {
    if (fd_ >= 0) close(fd_);
    if (ncclResult_t r = open(name, ranks, rank, limits, &retry)) return r;
  }
  if (ncclResult_t r = wait_until_complete(name, deadline)) return r;
  close(fd_);
  fd_ = -1;
  return ncclSuccess;
}

ncclResult_t Session::wait_until_complete(const std::string& name, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    uint32_t seen = header_->attached.load();
    if (seen == static_cast<uint32_t>(ranks_)) return ncclSuccess;
    futex_wait(header_->attached, seen, kLookAroundNs);
    if (header_->attached.load() != seen) continue;
    ncclResult_t r = interrupted();
    for (int other = 0; !r && other < ranks_; other++)
      if (cell(other)->state.load() != RankCell::kAbsent && is_gone(other)) r = ncclRemoteError;
    if (!r && std::chrono::steady_clock::now() > deadline) {
      STANDIN_WARN("%u of %d ranks joined within STANDIN_NCCL_JOIN_TIMEOUT; gave up", seen, ranks_);
      r = ncclRemoteError;
    }
    if (!r) continue;
    fail();
    shm_unlink(name.c_str());
    return r;
  }
}

Session::~Session() {
  if (header_) {
    leave();
    munmap(header_, mapped_);
  }
  if (fd_ >= 0) close(fd_);
}

void Session::leave() {
  cell(rank_)->state = RankCell::kLeft;
  wake_all();
}

void Session::wake_all() {
  futex_wake(header_->attached);
  for (Barrier* b : {&header_->setup, &header_->data}) futex_wake(b->generation);
  for (int r = 0; r < ranks_; r++) {
    cell(r)->events.fetch_add(1);
    futex_wake(cell(r)->events);
  }
}

void Session::fail() {
  header_->failed = 1;
  wake_all();
}

ncclResult_t Session::interrupted() const {
  if (abort_->load()) return ncclInternalError;
  return header_->failed.load() ? ncclRemoteError : ncclSuccess;
}

bool Session::is_gone(int rank) const {
  const RankCell* c = cell(rank);
  if (c->state.load() == RankCell::kLeft) return true;
  int pid = c->pid.load();
  return pid != getpid() && start_of(pid) != c->started.load();
}

ncclResult_t Session::barrier(Barrier* b) {
  if (ncclResult_t r = interrupted()) return r;
  uint32_t generation = b->generation.load();
  if (b->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks_)) {
    b->arrived = 0;
    b->generation.fetch_add(1);
    futex_wake(b->generation);
    return ncclSuccess;
  }
  for (;;) {
    futex_wait(b->generation, generation, kLookAroundNs);
    if (b->generation.load() != generation) return ncclSuccess;
    if (ncclResult_t r = interrupted()) return r;
    for (int other = 0; other < ranks_; other++)
      if (is_gone(other) && b->generation.load() == generation) {
        fail();
        return ncclRemoteError;
      }
  }
}

ncclResult_t Session::meet() {
  return barrier(&header_->setup);
}
ncclResult_t Session::data_barrier() {
  return barrier(&header_->data);
}

ncclResult_t Session::gather_mail(const void* mine, size_t bytes, void* all) {
  memcpy(cell(rank_)->mail, mine, bytes);
  if (ncclResult_t r = meet()) return r;
  for (int r = 0; r < ranks_; r++)
    memcpy(static_cast<char*>(all) + bytes * static_cast<size_t>(r), cell(r)->mail, bytes);
  return meet();
}

void Session::announce(const Signature& s) {
  cell(rank_)->announced[half_] = s;
}
bool Session::all_announced(const Signature& s) {
  for (int r = 0; r < ranks_; r++)
    if (!(cell(r)->announced[half_] == s)) return false;
  return true;
}

uint32_t Session::pipe_events() const {
  return cell(rank_)->events.load();
}
void Session::notify(int rank) {
  cell(rank)->events.fetch_add(1);
  futex_wake(cell(rank)->events);
}
ncclResult_t Session::wait_for_pipes(uint32_t seen) {
  futex_wait(cell(rank_)->events, seen, kLookAroundNs);
  return interrupted();
}

ncclUniqueId make_unique_id() {
  remove_leftovers();
  ncclUniqueId id = {};
  memcpy(id.internal, "standin", 8);
  for (size_t have = 0; have < 16;) {
    ssize_t n = getrandom(id.internal + 8 + have, 16 - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return id;
}

namespace {
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
}  // namespace

uint64_t hash_of(const ncclUniqueId& id) {
  uint64_t h = 0;
  for (size_t i = 0; i < sizeof id.internal; i += 8) {
    uint64_t word;
    memcpy(&word, id.internal + i, sizeof word);
    h = mix(h ^ word);
  }
  return h;
}

ncclUniqueId derive_unique_id(const ncclUniqueId& parent, uint64_t split, int color) {
  ncclUniqueId id = parent;
  uint64_t words[2] = {mix(hash_of(parent) ^ mix(split)), mix(static_cast<uint64_t>(color) + split * 0x10001)};
  words[1] ^= mix(words[0]);
  memcpy(id.internal + 8, words, sizeof words);
  return id;
}

}  // namespace standin
