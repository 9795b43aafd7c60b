// The communicator's proxy thread: tells the profiler of kernel channels once their kernel has ended.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

struct ncclComm;

namespace standin {

// When each run of one launch's kernel began and ended. Kept only when somebody will ask.
class KernelTimes {
 public:
  struct Run {
    uint64_t begin_ns, end_ns;
  };
  void enable() { enabled_ = true; }
  void push(Run);
  // The oldest run not yet taken; waits for it. False when `stop` was set first.
  bool take(Run* out, const std::atomic<bool>& stop);

 private:
  bool enabled_ = false;
  std::mutex mutex_;
  std::condition_variable cv_;
  std::deque<Run> runs_;
};

struct Plan;

class ProxyThread {
 public:
  explicit ProxyThread(ncclComm* comm);
  // Reports what has been posted first, unless the communicator was aborted.
  ~ProxyThread();
  // The plan's collectives, whose events are open now.
  void post(std::shared_ptr<Plan> plan);

 private:
  struct Item {
    std::shared_ptr<Plan> plan;
    std::vector<std::pair<void*, uint8_t>> colls;  // event handle, number of channels
  };
  void run();

  ncclComm* comm_;
  std::mutex mutex_;
  std::condition_variable cv_;
  std::deque<Item> items_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace standin
