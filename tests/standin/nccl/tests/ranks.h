// Test programs' ranks: processes forked before CUDA is touched, or threads of one such process. A rank's failed
// expectations fail the test of the parent.
#pragma once
#include <cuda.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/types.h>

#include <functional>
#include <vector>

namespace ranks {

#define ASSERT_CU(call) ASSERT_EQ((call), CUDA_SUCCESS) << #call
#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << #call << ": " << ncclGetLastError(nullptr)
#define EXPECT_NCCL(call) EXPECT_EQ((call), ncclSuccess) << #call << ": " << ncclGetLastError(nullptr)

using Body = std::function<void(int rank, int ranks, const ncclUniqueId& id)>;

class Processes {
 public:
  // `setup` runs in each child first, before any CUDA call.
  Processes(int ranks, const Body& body, const std::function<void(int rank)>& setup = {});
  ~Processes();
  const ncclUniqueId& id() const { return id_; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  // Exit status as of waitpid, killed after `seconds` (the status is SIGKILL's then).
  int wait(int rank, int seconds = 60);
  // That all ended well.
  void expect_success(int seconds = 60);

 private:
  ncclUniqueId id_ = {};
  std::vector<pid_t> pids_;
};

// The usual case.
void run(int ranks, const Body& body, const std::function<void(int rank)>& setup = {});
// Ranks as threads of one process of their own.
void run_threads(int ranks, const Body& body, const std::function<void(int rank)>& setup = {});

// Makes `device` (modulo the devices there are) the thread's current one.
void use_device(int device);

// Device memory that is host memory here, so tests can fill and read it with plain code once the stream is idle.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t n) : n_(n) { EXPECT_EQ(cuMemAlloc(&at_, (n ? n : 1) * sizeof(T)), CUDA_SUCCESS); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { put(values); }
  ~Buffer() { cuMemFree(at_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return reinterpret_cast<T*>(at_); }
  size_t size() const { return n_; }
  void put(const std::vector<T>& v) { EXPECT_EQ(cuMemcpyHtoD(at_, v.data(), v.size() * sizeof(T)), CUDA_SUCCESS); }
  std::vector<T> get() const {
    std::vector<T> v(n_);
    EXPECT_EQ(cuMemcpyDtoH(v.data(), at_, n_ * sizeof(T)), CUDA_SUCCESS);
    return v;
  }

 private:
  CUdeviceptr at_ = 0;
  size_t n_;
};

class StreamHandle {
 public:
  StreamHandle() { EXPECT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS); }
  ~StreamHandle() { cuStreamDestroy(stream_); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  operator CUstream() const { return stream_; }
  void synchronize() const { EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS); }

 private:
  CUstream stream_ = nullptr;
};

}  // namespace ranks
