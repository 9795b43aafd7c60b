// Handles given to NCCL: numbers, not pointers. NCCL keeps them after stop, passes them again as parents, and may call
// with one after finalize; a number can be checked against what lives now, a stale pointer can't.
//
//   63      61 60              54 53            44 43                                       0
//   +---------+------------------+----------------+------------------------------------------+
//   |  type   | generation       | communicator   | payload: op, launch or group             |
//   +---------+------------------+----------------+------------------------------------------+
#pragma once

#include <cstdint>

namespace gradprobe {

enum class HandleType : std::uint64_t {
  none = 0,
  group_api = 1,
  coll_api = 2,
  kernel_launch = 3,
  group = 4,
  coll = 5,
  context = 6,
  chained = 7,  // a pair of chain.hpp
};

inline constexpr std::uint32_t kMaxCommunicators = 1024;  // of one process at a time

struct CommunicatorId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  std::uint64_t number() const { return std::uint64_t{generation} << 32 | index; }
  bool operator==(const CommunicatorId& other) const { return number() == other.number(); }
};

class Handle {
 public:
  static constexpr std::uint64_t kPayloadMask = (std::uint64_t{1} << 44) - 1;

  Handle() = default;
  Handle(HandleType type, CommunicatorId id, std::uint64_t payload)
      : bits_(static_cast<std::uint64_t>(type) << 61 | (std::uint64_t{id.generation} & 0x7F) << 54 |
              (std::uint64_t{id.index} & 0x3FF) << 44 | (payload & kPayloadMask)) {}
  explicit Handle(const void* opaque) : bits_(reinterpret_cast<std::uint64_t>(opaque)) {}

  // The same with a payload: of a handle that has none yet.
  Handle with(std::uint64_t payload) const {
    Handle handle = *this;
    handle.bits_ |= payload & kPayloadMask;
    return handle;
  }

  HandleType type() const { return static_cast<HandleType>(bits_ >> 61); }
  CommunicatorId communicator() const {
    return {static_cast<std::uint32_t>(bits_ >> 44) & 0x3FF, static_cast<std::uint32_t>(bits_ >> 54) & 0x7F};
  }
  // Type and communicator alone, as a number below 2^20.
  std::uint64_t tag() const { return tag_of(bits_); }
  static constexpr std::uint64_t tag_of(std::uint64_t bits) { return bits >> 44; }
  std::uint64_t bits() const { return bits_; }
  std::uint64_t payload() const { return bits_ & kPayloadMask; }
  void* opaque() const { return reinterpret_cast<void*>(bits_); }

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace gradprobe
