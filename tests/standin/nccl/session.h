// One communicator's shared memory between its ranks, be they processes or threads: meeting point, barriers, exchange
// buffers, mailboxes. POSIX shared memory, named after the communicator's unique id and unlinked as soon as all ranks
// have attached. Waiting is always by futex; a wait looks after the other ranks' processes every 50 ms, so that one
// that died ends the wait with ncclRemoteError.
//
//   Header | RankCell x ranks | 2 exchange buffers x ranks | pipe x ranks x ranks
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "include/nccl.h"

namespace standin {

class Session {
 public:
  struct Limits {
    size_t chunk_bytes = 0;  // of an exchange buffer; 0: chosen from the number of ranks
    int join_timeout_s = 120;
  };
  // Byte stream from one rank to another.
  struct Pipe {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> taken;
    char* data(size_t at) { return reinterpret_cast<char*>(this + 1) + at; }
  };
  // What a rank is about to do, so that ranks which disagree are told instead of exchanging rubbish.
  struct Signature {
    int32_t func, type, op, root;
    uint64_t count;
    bool operator==(const Signature&) const = default;
  };
  static constexpr size_t kMailBytes = 256;

  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  // Waits for all ranks. `abort` ends this and every later wait with ncclInternalError.
  ncclResult_t attach(const ncclUniqueId&, int ranks, int rank, const Limits&, const std::atomic<bool>* abort);
  // All later waits of all ranks end with ncclRemoteError.
  void fail();
  // This rank takes no more part; ranks that wait for it end with ncclRemoteError.
  void leave();
  void wake_all();

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }

  // Barrier of the calls that set communicators up, apart from the data's.
  ncclResult_t meet();
  // Every rank gives `bytes` (up to kMailBytes) and gets everyone's, in rank order.
  ncclResult_t gather_mail(const void* mine, size_t bytes, void* all);

  // Data exchange. Two sets of buffers alternate: a set may be written again once a barrier was passed after its
  // reading.
  size_t chunk_bytes() const { return chunk_bytes_; }
  int next_half() { return half_ ^= 1; }
  char* buffer(int rank, int half);
  void announce(const Signature&);
  bool all_announced(const Signature&);
  ncclResult_t data_barrier();

  // Pipes. wait_for_pipes returns when a peer has moved data since `seen` was read, or with an error when the peer
  // died.
  size_t pipe_bytes() const { return pipe_bytes_; }
  Pipe* pipe(int from, int to);
  uint32_t pipe_events() const;
  void notify(int rank);
  ncclResult_t wait_for_pipes(uint32_t seen);
  bool is_gone(int rank) const;

 private:
  struct Barrier;
  struct RankCell;
  struct Header;

  ncclResult_t open(const std::string& name, int ranks, int rank, const Limits&, bool* retry);
  ncclResult_t wait_until_complete(const std::string& name, std::chrono::steady_clock::time_point deadline);
  ncclResult_t barrier(Barrier*);
  ncclResult_t interrupted() const;
  RankCell* cell(int rank) const;

  Header* header_ = nullptr;
  size_t mapped_ = 0;
  int fd_ = -1;
  int ranks_ = 0, rank_ = 0, half_ = 0;
  size_t chunk_bytes_ = 0, pipe_bytes_ = 0;
  const std::atomic<bool>* abort_ = nullptr;
};

// A new id, and removal of what killed programs left in /dev/shm.
ncclUniqueId make_unique_id();
// The id of a communicator split off `parent`; all its members compute the same.
ncclUniqueId derive_unique_id(const ncclUniqueId& parent, uint64_t split, int color);
uint64_t hash_of(const ncclUniqueId&);

}  // namespace standin
