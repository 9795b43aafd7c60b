// Modes on memory that is registered as a window of all ranks, for which NCCL has kernels of another kind.
#include <dlfcn.h>

#include "modes.hpp"

namespace gradprobe::real {
namespace {

// Declared here because neither the oldest NCCL has it nor the stand-in's header (nccl.h of 2.27).
using RegisterWindow = ncclResult_t (*)(ncclComm_t, void*, std::size_t, void** window, int flags);
using DeregisterWindow = ncclResult_t (*)(ncclComm_t, void* window);
constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr std::size_t kWindow = std::size_t{32} << 20;

template <typename F>
F function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) throw std::runtime_error(std::string("this NCCL has no ") + name);
  return reinterpret_cast<F>(found);
}

// Windows on all of the team's ranks, as long as it lives.
class Windows {
 public:
  explicit Windows(Team* team) : team_(*team), windows_(team->ranks().size()) {
    const auto add = function<RegisterWindow>("ncclCommWindowRegister");
    std::size_t i = 0;
    team_.each_grouped([&](Rank& r) {
      Window& w = windows_[i++];
      REAL_CHECK(ncclMemAlloc(&w.memory, kWindow));
      REAL_CHECK(add(r.comm("world").handle, w.memory, kWindow, &w.handle, kSymmetric));
      w.arena = Arena(reinterpret_cast<CUdeviceptr>(w.memory), kWindow);
      r.use_memory(&w.arena);
    });
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;
  void release() {
    const auto remove = function<DeregisterWindow>("ncclCommWindowDeregister");
    std::size_t i = 0;
    team_.each([&](Rank& r) {
      const Window& w = windows_[i++];
      r.use_memory(nullptr);
      REAL_CHECK(remove(r.comm("world").handle, w.handle));
      REAL_CHECK(ncclMemFree(w.memory));
    });
  }

 private:
  struct Window {
    void* memory = nullptr;
    void* handle = nullptr;
    Arena arena;
  };
  Team& team_;
  std::vector<Window> windows_;
};

// What symmetric kernels are made for.
Spec suitable(Team& team, Function function) {
  static constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat16, ncclBfloat16};
  Spec spec = team.any(function);
  spec.type = kTypes[team.draw(0, 2)];
  spec.op = ncclSum;
  spec.count = team.draw(1000, 10000) / 8 * 8;
  return spec;
}

void symmetric(Team& team) {
  Windows windows(&team);
  for (int i = 0; i < 4; i++) team.run({suitable(team, Function::all_reduce)});
  for (int i = 0; i < 2; i++) team.run({suitable(team, Function::reduce_scatter)});
  team.run({suitable(team, Function::all_gather)});
  team.finish();
  windows.release();
}

void symmetric_group(Team& team) {
  Windows windows(&team);
  for (int i = 0; i < 2; i++)
    team.run(in_group({suitable(team, Function::all_reduce), suitable(team, Function::all_reduce),
                       suitable(team, Function::reduce_scatter)}));
  team.finish();
  windows.release();
}

void symmetric_graph(Team& team) {
  Windows windows(&team);
  Captured graph = team.capture({{suitable(team, Function::all_reduce)}, {suitable(team, Function::reduce_scatter)}});
  team.replay(&graph, 2);
  team.refresh(&graph);
  team.replay(&graph, 2);
  team.release(&graph);
  team.finish();
  windows.release();
}

}  // namespace

std::vector<Mode> symmetric_modes() {
  return {{"symmetric", symmetric}, {"symmetric_group", symmetric_group}, {"symmetric_graph", symmetric_graph}};
}

}  // namespace gradprobe::real
