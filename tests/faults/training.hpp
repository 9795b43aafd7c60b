// One rank of a small training: gradients are made from the weights, reduced by NCCL in the ways that frameworks use
// (a bucket in place, a group of buckets, a captured graph, the loss as one number), and the weights follow the reduced
// gradients, so that a single wrong bit anywhere ends in other weights.
//
// Settings come from the environment: FAULTS_RANK, FAULTS_RANKS, FAULTS_ID (ncclUniqueId in hexadecimal), FAULTS_OUT
// (file for the weights).
#pragma once

#include <cuda.h>
#include <nccl.h>

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

namespace gradprobe::faults {

inline constexpr std::size_t kBuckets = 5;
inline constexpr std::size_t kCaptured = 3, kLoss = 4;  // which of the buckets
inline constexpr std::array<std::size_t, kBuckets> kCounts = {700, 1500, 300, 900, 1};

// Ends the process with one line on stderr when a call of the training itself fails.
void check(CUresult r, const char* what);
void check(ncclResult_t r, const char* what);
#define FAULTS_CHECK(call) ::gradprobe::faults::check(call, #call)

int number(const char* name, int standard);
ncclUniqueId unique_id(int round);

class Training {
 public:
  // Device, buffers and weights; no communicator yet.
  Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void join(int round = 0);  // makes the communicators, new ones in each round
  void capture();            // from here on one bucket is reduced by a graph
  // `after_first` is called when the first of its collectives is enqueued.
  void step(int step, const std::function<void()>& after_first = {});
  bool try_step(int step);  // its first collective only; false when NCCL refuses it
  void leave();             // destroys graph and communicators
  void abort();             // aborts the communicators
  void save() const;

  void put_gradients(int step);
  void all_reduce(std::size_t bucket);
  void update();          // waits for the step, then take_gradients()
  void take_gradients();  // the weights follow what lies in the buckets

  int rank() const { return rank_; }
  ncclComm_t comm() const { return comm_; }
  CUstream stream() const { return stream_; }
  CUcontext context() const { return context_; }

 private:
  void expect_own_state() const;  // the thread's context and capture mode are as CUDA's user left them

  int rank_, ranks_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUgraphExec graph_ = nullptr;
  ncclComm_t comm_ = nullptr;
  ncclComm_t loss_comm_ = nullptr;  // of its own, as in frameworks that have several groups
  std::array<CUdeviceptr, kBuckets> device_{};
  std::array<std::vector<float>, kBuckets> weights_, host_;
};

}  // namespace gradprobe::faults
