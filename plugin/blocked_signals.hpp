#pragma once

#include <pthread.h>

#include <csignal>

namespace gradprobe {

// This thread, and those that it starts, get no signals in this scope.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    blocked_ = pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
  }
  ~BlockedSignals() {
    if (blocked_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
  bool blocked_ = false;
};

}  // namespace gradprobe
