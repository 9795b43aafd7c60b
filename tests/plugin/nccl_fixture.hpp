// Ranks as threads of one process on the stand-in NCCL, with the plugin under test. What each record must say is known
// from the host: the norm of the input before the reduction.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl.hpp"

namespace gradprobe::test {

#define NCCL_OK(call)                      \
  do {                                     \
    ASSERT_EQ(call, ncclSuccess) << #call; \
  } while (false)
#define CUDA_OK(call)                       \
  do {                                      \
    ASSERT_EQ(call, CUDA_SUCCESS) << #call; \
  } while (false)

// What a rank put into one collective.
struct Expected {
  std::uint64_t count = 0;
  double sum_squares = 0;
  int replays = 1;
  Missed missed = Missed::none;
};

// A rank of one communicator, used by one thread at a time.
struct Rank {
  int rank = 0, ranks = 0;
  std::string name;  // of the communicator, for tests with several
  ncclComm_t comm = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr, other_stream = nullptr;
  std::uint64_t calls = 0;                     // collectives so far
  std::map<std::uint64_t, Expected> expected;  // by op; calls that leave no record have none
  std::mt19937 random;

  // A device buffer filled with this rank's own values; notes the expectation for the next call, over it.
  CUdeviceptr input(std::size_t count, ncclDataType_t type = ncclFloat32);
  // The next call leaves no record.
  void unrecorded() { calls++; }
  Expected& last() { return expected.rbegin()->second; }

  static void* ptr(CUdeviceptr p) { return reinterpret_cast<void*>(p); }
  ncclResult_t in_place(CUdeviceptr p, std::size_t count, ncclDataType_t type = ncclFloat32) const {
    return ncclAllReduce(ptr(p), ptr(p), count, type, ncclSum, comm, stream);
  }
  // Device memory without an expectation.
  static CUdeviceptr buffer(std::size_t bytes);
  // Until a non-blocking communicator is done with what it was asked for.
  void wait() const;
  void synchronize() const;
};

class Nccl : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;
  using Work = std::function<void(Rank&)>;

  // Runs `work` for every rank on a thread of its own and checks each rank's records.
  void run(const Work& work, bool blocking = true);
  // The same without the check.
  std::vector<Rank> run_ranks(const Work& work, bool blocking = true);
  // That the rings hold what the ranks expect: of every op and replay one record, and no other records.
  void check(const std::vector<Rank>& ranks) { check_in(folder_, ranks); }
  void check_in(const RingFolder& folder, const std::vector<Rank>& ranks);
  // Collects a rank's communicators besides the one it is given, to be checked with it. Thread-safe.
  void expect_also(Rank rank);

  void SetUp() override {
    setenv("NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE, 1);
    setenv("GRADPROBE_COMMS", "all", 1);
  }

  RingFolder folder_;

 private:
  void rank_main(Rank* rank, const ncclUniqueId& id, const Work& work, bool blocking);
  std::mutex also_mutex_;
  std::vector<Rank> also_;
};

}  // namespace gradprobe::test
