// A mutex whose uncontended lock and unlock are one instruction each, in line: callbacks take one several times for
// each collective. Sleeps when it is contended.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradprobe {

class CallMutex {
 public:
  bool try_lock() {
    std::uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kLocked, std::memory_order_acquire);
  }
  void lock() {
    if (try_lock()) return;
    while (state_.exchange(kContended, std::memory_order_acquire) != kFree)
      state_.wait(kContended, std::memory_order_relaxed);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kContended) state_.notify_one();
  }

 private:
  enum : std::uint32_t { kFree, kLocked, kContended };
  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace gradprobe
