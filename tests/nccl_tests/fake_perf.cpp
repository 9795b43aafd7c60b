// Imitates a *_perf program for the test of run_nccl_tests.py: two devices in one process, a few all-reduces, the rows
// that nccl-tests prints. With a profiler plugin, FAKE_PERF=wrong reports an error, FAKE_PERF=exit ends
// with 3, FAKE_PERF=hidden makes one more call of NCCL past the counter. FAKE_PERF=checkless never prints rows.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {
constexpr int kDevices = 2, kRounds = 5;
constexpr size_t kElements = 1000;

void need(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "fake_perf: %s failed\n", what);
  std::exit(1);
}

struct Rank {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float* buffer = nullptr;
};

void all_reduce(const std::array<Rank, kDevices>& ranks, decltype(&ncclAllReduce) call) {
  need(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
  for (const Rank& r : ranks) {
    need(call(r.buffer, r.buffer, kElements, ncclFloat32, ncclSum, r.comm, r.stream) == ncclSuccess, "ncclAllReduce");
  }
  need(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
  for (const Rank& r : ranks) need(cudaStreamSynchronize(r.stream) == cudaSuccess, "cudaStreamSynchronize");
}
}  // namespace

int main() {
  const char* setting = std::getenv("FAKE_PERF");
  const std::string_view fault = setting ? setting : "";
  const bool plugin = std::getenv("NCCL_PROFILER_PLUGIN") != nullptr;
  std::array<Rank, kDevices> ranks;
  std::array<ncclComm_t, kDevices> comms = {};
  need(ncclCommInitAll(comms.data(), kDevices, nullptr) == ncclSuccess, "ncclCommInitAll");
  for (int i = 0; i < kDevices; i++) {
    Rank& r = ranks[static_cast<size_t>(i)];
    r.comm = comms[static_cast<size_t>(i)];
    need(cudaSetDevice(i) == cudaSuccess, "cudaSetDevice");
    need(cudaStreamCreate(&r.stream) == cudaSuccess, "cudaStreamCreate");
    need(cudaMalloc(reinterpret_cast<void**>(&r.buffer), kElements * sizeof(float)) == cudaSuccess, "cudaMalloc");
    const std::vector<float> values(kElements, 0.5F + static_cast<float>(i));
    need(cudaMemcpy(r.buffer, values.data(), kElements * sizeof(float), cudaMemcpyDefault) == cudaSuccess,
         "cudaMemcpy");
  }
  for (int round = 0; round < kRounds; round++) all_reduce(ranks, ncclAllReduce);
  if (plugin && fault == "hidden") {
    void* nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    all_reduce(ranks, reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(nccl, "ncclAllReduce")));
  }
  for (const Rank& r : ranks) ncclCommDestroy(r.comm);
  const int wrong = plugin && fault == "wrong" ? 1 : 0;
  if (fault != "checkless") {
    std::printf(
        "        4000          1000     float     sum      -1  12.50    0.00    0.00       %d  11.25    0.00    0.00   "
        "    0\n",
        wrong);
  }
  return plugin && fault == "exit" ? 3 : 0;
}
