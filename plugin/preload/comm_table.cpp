#include "preload/comm_table.hpp"

#include <sched.h>

#include <chrono>

namespace gradprobe::preload {

std::size_t CommTable::home(const nccl::Comm* comm) {
  // Addresses of allocations: their low bits say nothing.
  const auto bits = reinterpret_cast<std::uintptr_t>(comm) >> 4;
  return static_cast<std::size_t>((bits * 0x9E3779B97F4A7C15u) >> 52) % kEntries;
}

const nccl::Comm* CommTable::tombstone() {
  return reinterpret_cast<const nccl::Comm*>(std::uintptr_t{1});
}

std::size_t CommTable::find(const nccl::Comm* comm) const {
  if (comm == nullptr || comm == tombstone()) return kEntries;
  for (std::size_t i = 0, at = home(comm); i < kEntries; i++, at = (at + 1) % kEntries) {
    const nccl::Comm* there = entries_[at].comm.load(std::memory_order_seq_cst);
    if (there == comm) return at;
    if (there == nullptr) return kEntries;
  }
  return kEntries;
}

Tracked* CommTable::acquire(const nccl::Comm* comm) {
  const std::size_t at = find(comm);
  if (at == kEntries) return nullptr;
  Tracked& entry = entries_[at];
  entry.users.fetch_add(1, std::memory_order_seq_cst);
  if (entry.comm.load(std::memory_order_seq_cst) == comm) return &entry;
  release(&entry);
  return nullptr;
}

void* CommTable::retire(std::size_t at) {
  Tracked& entry = entries_[at];
  entry.comm.store(tombstone(), std::memory_order_seq_cst);
  used_--;
  // Tombstones before an empty place lead nowhere.
  if (entries_[(at + 1) % kEntries].comm.load() == nullptr) {
    for (std::size_t i = at; entries_[i].comm.load() == tombstone(); i = (i + kEntries - 1) % kEntries)
      entries_[i].comm.store(nullptr);
  }
  void* context = entry.context.exchange(nullptr);
  // A program may abort a communicator that another thread is just calling.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (entry.users.load(std::memory_order_seq_cst) != 0) {
    if (std::chrono::steady_clock::now() >= deadline) return nullptr;
    sched_yield();
  }
  return context;
}

Tracked* CommTable::add(const nccl::Comm* comm, const Identity& identity, void** forgotten) {
  const std::lock_guard lock(mutex_);
  *forgotten = nullptr;
  if (const std::size_t at = find(comm); at != kEntries) *forgotten = retire(at);
  // A quarter stays empty, so that looking for what isn't there ends soon.
  if (comm == nullptr || used_ >= kEntries / 4 * 3) return nullptr;
  std::size_t at = home(comm);
  for (;; at = (at + 1) % kEntries) {
    const nccl::Comm* there = entries_[at].comm.load();
    if (there == nullptr || there == tombstone()) break;
  }
  Tracked& entry = entries_[at];
  entry.context.store(nullptr);
  entry.waiting.store(false);
  entry.returns_early.store(false);
  entry.splits.store(0);
  entry.shrinks.store(0);
  entry.identity = identity;
  entry.comm.store(comm, std::memory_order_seq_cst);
  used_++;
  return &entry;
}

void* CommTable::remove(const nccl::Comm* comm) {
  const std::lock_guard lock(mutex_);
  const std::size_t at = find(comm);
  return at != kEntries ? retire(at) : nullptr;
}

}  // namespace gradprobe::preload
