// Elements of one datatype, as they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "gradprobe/ring_format.hpp"

namespace gradprobe::test {

class Elements {
 public:
  Elements(Datatype type, std::size_t count, std::uint64_t bits = 0)
      : type_(type), stride_(element_bytes(type)), bytes_(count * stride_) {
    if (bits == 0) return;
    for (std::size_t i = 0; i < count; ++i) set(i, bits);
  }

  Datatype type() const { return type_; }
  std::size_t size() const { return bytes_.size() / stride_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Bits as stored, in the low bits.
  std::uint64_t operator[](std::size_t i) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes_.data() + i * stride_, stride_);
    return bits;
  }
  void set(std::size_t i, std::uint64_t bits) { std::memcpy(bytes_.data() + i * stride_, &bits, stride_); }
  void flip(std::size_t bit) { bytes_[bit / 8] ^= std::byte{1} << bit % 8; }

 private:
  Datatype type_;
  std::size_t stride_;
  std::vector<std::byte> bytes_;
};

}  // namespace gradprobe::test
