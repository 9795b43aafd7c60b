#include "marks.hpp"

#include <chrono>
#include <cstring>
#include <new>
#include <thread>

namespace gradprobe {
namespace {

constexpr int kTries = 2000;  // a tenth of a second or more

}  // namespace

void set_name(Mark* mark, const char* name) {
  std::size_t n = strnlen(name, sizeof mark->name);
  if (n == sizeof mark->name) {
    // Back to the first byte of the character that the cut would go through; what is no UTF-8 is cut anywhere.
    constexpr std::size_t kLongest = sizeof mark->name - 1;
    n = kLongest;
    while (n > kLongest - 3 && (static_cast<unsigned char>(name[n]) & 0xC0) == 0x80) n--;
  }
  std::memcpy(mark->name, name, n);
  std::memset(mark->name + n, 0, sizeof mark->name - n);
}

bool MarkQueue::number_step(Mark* mark) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 63;
  const std::uint64_t now = step_.load(std::memory_order_relaxed);
  if (mark->number != last_number_ && now != kNone && mark->number < last_number_)
    offset_ = now + 1 - mark->number;  // back: the next step after the one in force
  if (offset_ >= kLimit || mark->number >= kLimit - offset_) return false;
  last_number_ = mark->number;
  step_.store(mark->number + offset_, std::memory_order_release);
  return true;
}

void MarkQueue::push(Mark mark, const std::atomic<std::uint64_t>& announced, const std::atomic<std::uint64_t>& calls) {
  const std::lock_guard lock(mutex_);
  if (mark.kind == MarkKind::step && !number_step(&mark)) return;
  try {
    if (queue_.empty()) queue_.resize(kCapacity);
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (pushed_ - taken_ >= (mark.kind == MarkKind::step ? kCapacity : kCapacity - kForSteps)) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  mark.index = announced.load(std::memory_order_acquire);
  mark.op = calls.load(std::memory_order_acquire);
  mark.step = step_.load(std::memory_order_relaxed);
  queue_[pushed_ % kCapacity] = mark;
  if (pushed_++ == taken_) next_.store(mark.index, std::memory_order_release);
}

void MarkQueue::release() {
  const std::lock_guard lock(mutex_);
  next_.store(kNone, std::memory_order_release);
  taken_ = pushed_;
  queue_ = {};
}

std::optional<Mark> MarkQueue::take(std::uint64_t index) {
  if (next_.load(std::memory_order_acquire) > index) return std::nullopt;
  // A signal handler may have ended the process on a thread that was in push(): its marks stay where they are.
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (int tries = 0; !lock.owns_lock() && tries < kTries; tries++) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.try_lock();
  }
  if (!lock.owns_lock()) return std::nullopt;
  if (pushed_ == taken_ || queue_[taken_ % kCapacity].index > index) return std::nullopt;
  const Mark mark = queue_[taken_++ % kCapacity];
  next_.store(pushed_ == taken_ ? kNone : queue_[taken_ % kCapacity].index, std::memory_order_release);
  return mark;
}

}  // namespace gradprobe
