// From NCCL's communicator to what is known of it. Looking up takes no lock and allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "preload/nccl_abi.hpp"

namespace gradprobe::preload {

// Why a communicator exists, equal on all its ranks.
struct Identity {
  std::uint64_t comm_id = 0;
  int rank = -1, nranks = 0;  // -1 and 0: to be asked of NCCL when it is ready
  char name[64] = {};
};

struct Tracked {
  std::atomic<const nccl::Comm*> comm{nullptr};
  std::atomic<std::uint32_t> users{0};     // threads that are between acquire() and release()
  std::atomic<void*> context{nullptr};     // Process::open()'s; null: not measured
  std::atomic<bool> waiting{false};        // to be opened when NCCL says that the communicator is ready
  std::atomic<bool> returns_early{false};  // a call on it returned before its work was done: it doesn't block
  std::atomic<std::uint32_t> splits{0}, shrinks{0};
  Identity identity;  // set before `comm`
};

class CommTable {
 public:
  // The communicator's entry, which stays while the caller keeps it; null when it isn't known. From any thread.
  Tracked* acquire(const nccl::Comm* comm);
  static void release(Tracked* tracked) { tracked->users.fetch_sub(1, std::memory_order_release); }

  // A communicator has come into being: what its address stood for before is forgotten; `*forgotten` gets the context.
  // Null when the table is full. Takes a lock.
  Tracked* add(const nccl::Comm* comm, const Identity& identity, void** forgotten);
  // The communicator ends; its address may be used again at once. Its context, null when it had none or when other
  // threads still use it after a second. Takes a lock.
  void* remove(const nccl::Comm* comm);

 private:
  static constexpr std::size_t kEntries = 4096;  // a power of two
  static std::size_t home(const nccl::Comm* comm);
  static const nccl::Comm* tombstone();
  std::size_t find(const nccl::Comm* comm) const;  // kEntries: not there
  void* retire(std::size_t at);

  std::mutex mutex_;  // for add() and remove()
  std::size_t used_ = 0;
  std::array<Tracked, kEntries> entries_{};
};

// Keeps an entry for a scope.
class Acquired {
 public:
  Acquired(CommTable& table, const nccl::Comm* comm) : tracked_(table.acquire(comm)) {}
  ~Acquired() {
    if (tracked_ != nullptr) CommTable::release(tracked_);
  }
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;
  Tracked* get() const { return tracked_; }
  Tracked* operator->() const { return tracked_; }
  explicit operator bool() const { return tracked_ != nullptr; }

 private:
  Tracked* tracked_;
};

}  // namespace gradprobe::preload
