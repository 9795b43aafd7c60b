#include "proxy.h"

#include <chrono>

#include "comm.h"
#include "profiler/profiler.h"

namespace standin {

void KernelTimes::push(Run run) {
  if (!enabled_) return;
  std::lock_guard lock(mutex_);
  runs_.push_back(run);
  cv_.notify_all();
}

bool KernelTimes::take(Run* out, const std::atomic<bool>& stop) {
  std::unique_lock lock(mutex_);
  while (runs_.empty()) {
    if (stop.load()) return false;
    cv_.wait_for(lock, std::chrono::milliseconds(50));
  }
  *out = runs_.front();
  runs_.pop_front();
  return true;
}

ProxyThread::ProxyThread(ncclComm* comm) : comm_(comm), thread_([this] { run(); }) {}

ProxyThread::~ProxyThread() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  cv_.notify_all();
  thread_.join();
}

void ProxyThread::post(std::shared_ptr<Plan> plan) {
  Item item;
  for (const Task& t : plan->colls)
    if (t.mask & kKernelCh) item.colls.emplace_back(t.event, uint8_t{1});
  item.plan = std::move(plan);
  std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  cv_.notify_all();
}

void ProxyThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    cv_.wait(lock, [&] { return closing_ || !items_.empty(); });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    KernelTimes::Run times;
    if (item.plan->times.take(&times, comm_->abort))
      for (auto& [coll, channels] : item.colls)
        for (uint8_t c = 0; c < channels; c++) profiler::kernel_channel(comm_, coll, c, times.begin_ns, times.end_ns);
    item.plan.reset();
    lock.lock();
  }
}

}  // namespace standin
