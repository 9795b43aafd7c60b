#include "shared_state.hpp"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

namespace gradprobe::demo {

std::unique_ptr<SharedState, Unmap> make_shared_state() {
  void* memory = mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error(fmt::format("mmap: {}", std::strerror(errno)));
  return std::unique_ptr<SharedState, Unmap>(new (memory) SharedState{});
}

void Unmap::operator()(SharedState* state) const {
  munmap(state, sizeof(SharedState));
}

}  // namespace gradprobe::demo
