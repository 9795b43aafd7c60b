// What the threads of a CTA share while they stream a bucket.
#pragma once

#include <cstdint>

#include "abi.hpp"
#include "element.cuh"
#include "sketch_map.cuh"

namespace gradprobe::gate {

// One bucket as the threads of a CTA stream it.
struct StreamSource {
  const char* input;
  std::uint64_t count;
  SketchKeys keys;
  bool aligned;      // to 16 bytes
  bool count_zeros;  // the fill behind the end of the bucket's last superrow counts as zeros
  bool fingerprint;
};

inline constexpr std::uint32_t kAllSuperrows = 2;  // instead of a half

// A range of superrows, or those of one half of it.
struct SuperrowRange {
  std::uint32_t begin, end, half;
};

inline constexpr int kWarps = static_cast<int>(kThreads) / 32;

// Beside the source there are the sums that outlive the streaming loops, whose registers are all taken. An element of
// an array belongs to one thread, of the last ones to one warp.
struct StreamMemory {
  float sketch[kMaxTeams * kRegisterSketch];  // one register sketch a team
  double sum_squares[kThreads];
  std::uint64_t words[kThreads];
  std::uint32_t nan_count[kThreads];
  std::uint32_t inf_count[kThreads];
  std::uint32_t zero_count[kThreads];
  unsigned long long max_bits[kWarps];  // of the largest |x| as a double
  SuperrowRange ranges[kWarps];         // that the warp is streaming
  unsigned long long first_nonfinite;
  StreamSource source;
};
static_assert(sizeof(StreamMemory) <= 46 * 1024 + 512, "the rest of a CTA's 48 KiB is the caller's");

// The CTA's own. A function's shared variable has one address, so nothing need be passed to the functions that aren't
// inlined.
__device__ __forceinline__ StreamMemory& stream_memory() {
  __shared__ StreamMemory memory;
  return memory;
}

template <typename Element>
__device__ __forceinline__ const char* superrow_address(const StreamSource& source, std::uint32_t superrow) {
  return source.input + std::uint64_t{superrow} * (kSuperrow * Element::kBytes);
}

// threadIdx.x, read where it is used: as a common subexpression it would take a register from the streaming loops.
__device__ __forceinline__ std::uint32_t thread_index() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// The thread's vector in a row; the second one of a thread that has two is kThreads further.
template <typename Element>
__device__ __forceinline__ std::uint32_t first_member() {
  return thread_index() % Element::kTeamThreads;
}
// The register sketch of the thread's team.
template <typename Element>
__device__ __forceinline__ float* team_sketch() {
  return stream_memory().sketch + thread_index() / Element::kTeamThreads * kRegisterSketch;
}
// The thread's own positions in it.
template <typename Element>
__device__ __forceinline__ float* member_sketch(int member) {
  return team_sketch<Element>() + (first_member<Element>() + member * kThreads) * Element::kPerVector;
}

}  // namespace gradprobe::gate
