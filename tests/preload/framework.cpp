// A library that links NCCL, as a framework's Python extension does. Two ranks on threads, one all-reduce.
#include <cuda.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 2;
constexpr std::size_t kCount = 5000;

bool rank_main(int rank, const ncclUniqueId& id, bool destroy, bool fork_after_init) {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  ncclComm_t comm = nullptr;
  CUdeviceptr p = 0;
  std::vector<float> values(kCount, static_cast<float>(rank + 1));
  if (cuDevicePrimaryCtxRetain(&context, rank) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      cuMemAlloc(&p, kCount * sizeof(float)) != CUDA_SUCCESS ||
      cuMemcpyHtoD(p, values.data(), kCount * sizeof(float)) != CUDA_SUCCESS ||
      ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess)
    return false;
  if (fork_after_init && rank == 0) {
    const pid_t child = fork();
    if (child == 0) {
      // Calls of a child, which NCCL allows as little as CUDA does: they must come back, and leave the parent's rings.
      ncclGroupStart();
      ncclGroupEnd();
      ncclAllReduce(nullptr, nullptr, 1, ncclFloat32, ncclSum, nullptr, nullptr);
      ncclCommDestroy(nullptr);
      std::exit(0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return false;
  }
  void* buffer = reinterpret_cast<void*>(p);
  if (ncclAllReduce(buffer, buffer, kCount, ncclFloat32, ncclSum, comm, stream) != ncclSuccess ||
      cuStreamSynchronize(stream) != CUDA_SUCCESS ||
      cuMemcpyDtoH(values.data(), p, kCount * sizeof(float)) != CUDA_SUCCESS || values.front() != 3 ||
      values.back() != 3)
    return false;
  return !destroy || ncclCommDestroy(comm) == ncclSuccess;
}

}  // namespace

// `mode`: destroy, leave (exit with the communicators open) or fork. 0 when the results are right.
extern "C" __attribute__((visibility("default"))) int framework_train(const char* mode) {
  const bool destroy = std::strcmp(mode, "leave") != 0;
  const bool forks = std::strcmp(mode, "fork") == 0;
  ncclUniqueId id;
  if (cuInit(0) != CUDA_SUCCESS || ncclGetUniqueId(&id) != ncclSuccess) return 1;
  bool right[kRanks] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kRanks; i++) threads.emplace_back([&, i] { right[i] = rank_main(i, id, destroy, forks); });
  for (std::thread& t : threads) t.join();
  return right[0] && right[1] ? 0 : 1;
}
