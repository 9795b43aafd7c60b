// What the runtime's test cases share.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cases.hpp"

#define NEED(x)                                                                                \
  do {                                                                                         \
    if (!(x)) return std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": not so: " #x; \
  } while (0)
#define NEED_OK(x)                                                                                         \
  do {                                                                                                     \
    if (cudaError_t e_ = (x); e_ != cudaSuccess)                                                           \
      return std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #x ": " + cudaGetErrorName(e_); \
  } while (0)

namespace standin::cudart::cases {

// test_kernels_a.cu, test_kernels_b.cu
__global__ void fill(int* out, int first);
__global__ void add_to(int* p, int n);
__global__ void twice_plus(int* p, int n);  // the order of two of these shows in the result
__global__ void call_other_file(int* out);
__global__ void call_by_table(const int* which, int* out);
__global__ void count();
__global__ void block_sums(const int* in, int* out);
extern __device__ int scale_factor;
extern __device__ int counter;

// An array on the device, set to zero.
class Array {
 public:
  explicit Array(size_t count) : count_(count) {
    if (cudaMalloc(&data_, count * sizeof(int)) != cudaSuccess ||
        cudaMemset(data_, 0, count * sizeof(int)) != cudaSuccess)
      data_ = nullptr;
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  int* data() const { return data_; }
  // Empty when it can't be read.
  std::vector<int> read() const {
    std::vector<int> host(count_);
    if (cudaMemcpy(host.data(), data_, count_ * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess) host.clear();
    return host;
  }
  int first() const {
    std::vector<int> all = read();
    return all.empty() ? -1 : all[0];
  }

 private:
  size_t count_;
  int* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess) stream_ = nullptr;
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() {
    if (cudaEventCreate(&event_) != cudaSuccess) event_ = nullptr;
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A host function that holds its stream up until it is opened, five seconds at most.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<int> passed{0};
  static void wait(void* self) {
    auto* gate = static_cast<Gate*>(self);
    for (int i = 0; i < 50000 && !gate->open; i++) std::this_thread::sleep_for(std::chrono::microseconds(100));
    gate->passed++;
  }
};

}  // namespace standin::cudart::cases
