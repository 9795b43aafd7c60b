// The NCCL that the process uses, behind the functions that this library puts before it.
#pragma once

#include <atomic>

namespace gradprobe::preload {

// The address of one of the real NCCL's functions; null when no loaded NCCL has it. NCCL is never loaded by this, only
// found, and stays loaded once it was. Takes the dynamic linker's lock.
void* find_in_nccl(const char* name);

// One line on stderr: a program called a function that isn't there.
void say_missing(const char* name);
// What such a call returns.
int missing_result();

// One real function, looked up at its first use. Thread-safe.
template <typename Function>
class Real {
 public:
  explicit constexpr Real(const char* name) : name_(name) {}

  // Null when there is none (yet): the next call looks again.
  Function find() {
    void* address = address_.load(std::memory_order_acquire);
    if (address == nullptr) {
      address = find_in_nccl(name_);
      address_.store(address, std::memory_order_release);
    }
    return reinterpret_cast<Function>(address);
  }

  template <typename... Arguments>
  int operator()(Arguments... arguments) {
    if (const Function function = find(); function != nullptr) return function(arguments...);
    say_missing(name_);
    return missing_result();
  }

 private:
  const char* const name_;
  std::atomic<void*> address_{nullptr};
};

}  // namespace gradprobe::preload
