#include "preload/unfinished.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

namespace gradprobe::preload {
namespace {

struct Unfinished {
  const nccl::Comm* parent;
  nccl::Comm** where;
  Identity identity;
};

constinit std::atomic<std::size_t> g_count{0};  // spares those who poll the mutex
constinit std::mutex g_mutex;

// Never destroyed: threads may still ask while the process ends.
std::vector<Unfinished>& list() {
  static auto& all = *new std::vector<Unfinished>;
  return all;
}

}  // namespace

void unfinished_add(const nccl::Comm* parent, nccl::Comm** where, const Identity& identity) noexcept {
  try {
    const std::lock_guard lock(g_mutex);
    list().push_back({parent, where, identity});
    g_count.store(list().size(), std::memory_order_release);
  } catch (const std::exception&) {
    // No memory: its collectives will be on a communicator that isn't known.
  }
}

void unfinished_complete(const nccl::Comm* parent, bool succeeded) noexcept {
  if (g_count.load(std::memory_order_acquire) == 0) return;
  for (;;) {
    Unfinished next{};
    {
      const std::lock_guard lock(g_mutex);
      std::vector<Unfinished>& all = list();
      std::size_t i = 0;
      while (i < all.size() && all[i].parent != parent) i++;
      if (i == all.size()) return;
      next = all[i];
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      g_count.store(all.size(), std::memory_order_release);
    }
    if (succeeded) comm_made(*next.where, next.identity, false);
  }
}

}  // namespace gradprobe::preload
