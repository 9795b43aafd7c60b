// What the application says through gradprobe.h, on its way from the calling thread to the ring: one queue for each
// communicator. The collector takes a mark when the ops that were called before it are recorded.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace gradprobe {

struct Mark {
  MarkKind kind = MarkKind::none;
  std::uint64_t op = 0;          // the communicator's first call after it
  std::uint64_t index = 0;       // how many of the calls before it are among the collector's ops
  std::uint64_t number = kNone;  // step: as the application counts
  std::uint64_t step = kNone;    // in force behind it; never falls
  double value = 0;
  char name[kMarkNameBytes] = {};
};

// Copies `name` into a mark, cut between UTF-8 characters.
void set_name(Mark* mark, const char* name);

// Threads: any, but for NCCL's callbacks, which may only call step().
class MarkQueue {
 public:
  static constexpr std::size_t kCapacity = 4096;
  static constexpr std::size_t kForSteps = 1024;  // places that only step marks take: without one, records would lie

  // `announced` and `calls` as in OpTables.
  void push(Mark mark, const std::atomic<std::uint64_t>& announced, const std::atomic<std::uint64_t>& calls);

  // The oldest mark, if it stands before the collector's op `index` or an earlier one.
  std::optional<Mark> take(std::uint64_t index);

  // No mark follows: gives the memory back.
  void release();

  // Step of the ops that are called now; kNone: no step mark yet.
  std::uint64_t step() const { return step_.load(std::memory_order_acquire); }

  // Marks that found the queue full, or no memory.
  std::uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  bool number_step(Mark* mark);

  std::mutex mutex_;         // never held for longer than a copy
  std::vector<Mark> queue_;  // a ring of kCapacity places, allocated with the first mark
  std::uint64_t pushed_ = 0, taken_ = 0;
  std::uint64_t last_number_ = kNone;  // of the step in force, as the application counts
  std::uint64_t offset_ = 0;           // from the application's numbers to ours
  // Index of the oldest mark, kNone without one: tells the collector without a lock.
  std::atomic<std::uint64_t> next_{kNone};
  std::atomic<std::uint64_t> step_{kNone};
  std::atomic<std::uint64_t> lost_{0};
};

}  // namespace gradprobe
