// Ranks as threads of one process on the stand-ins, under libgradprobe-preload.so. What every record must say is known
// from the host: the norm of the input before the collective, and where results are recorded, the reduced values.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <gradprobe/ring_reader.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl.hpp"

#define NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << #call
#define CUDA_OK(call) ASSERT_EQ(call, CUDA_SUCCESS) << #call

namespace gradprobe::test {

inline constexpr int kRanks = 3;

// What a rank put into one recorded collective.
struct Expected {
  std::uint64_t op = 0;  // number of the call on its communicator
  std::uint64_t count = 0;
  double sum_squares = 0;
  int replays = 1;
  Missed missed = Missed::none;
};

// A device buffer with this rank's own values in it.
struct Input {
  CUdeviceptr address = 0;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  double sum_squares = 0;
  std::vector<float> host;  // of float32
  void* pointer() const { return reinterpret_cast<void*>(address); }
};

// One rank's view of one communicator.
struct Comm {
  ncclComm_t comm = nullptr;
  int rank = 0;
  std::uint64_t calls = 0;
  std::vector<Expected> expected;
  bool named = true;  // in the ring, as in Rank::comms

  // Notes that the next call is to be recorded, or that it is a call without a record.
  Expected& expect(const Input& input);
  void expect_nothing() { calls++; }
};

struct Rank {
  int rank = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr, other_stream = nullptr;
  std::mt19937 random;
  std::map<std::string, Comm> comms;  // by name
  ncclUniqueId ids[2] = {};           // of two communicators of all ranks

  Input input(std::size_t count, ncclDataType_t type = ncclFloat32);
  static CUdeviceptr buffer(std::size_t bytes);
  // Makes a communicator of all ranks, with a name where NCCL takes a configuration.
  void init(const std::string& name, int id = 0, bool blocking = true);
  void wait(const std::string& name);  // until a communicator that doesn't block is ready
  void destroy(const std::string& name);
  // An all-reduce in place that is to be recorded.
  ncclResult_t all_reduce(const std::string& name, const Input& input, CUstream on = nullptr);
  void synchronize();
};

// All rings of a run: records by communicator name (or "", where it has none) and rank.
struct Rings {
  struct Ring {
    FileHeader header{};
    LiveCounters counters{};
    std::vector<Record> inputs, results;
  };
  std::map<std::pair<std::string, int>, std::vector<Ring>> rings;
  const Ring& only(const std::string& name, int rank) const;
  // Of several without a name, the one with so many records of inputs.
  const Ring& only(const std::string& name, int rank, std::size_t inputs) const;
};
Rings read(const RingFolder& folder);

// Whether the NCCL behind the preload library has a function.
bool nccl_has(const char* function);

// Runs `work` for every rank on a thread of its own.
std::vector<Rank> run(const std::function<void(Rank&)>& work);
// That every rank's rings hold what was expected, no more and no less, with sketch keys that all ranks share.
void check(const std::vector<Rank>& ranks, const RingFolder& folder);

}  // namespace gradprobe::test
