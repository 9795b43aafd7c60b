// CUB's sum of squares, out of the library that nvcc makes of cub_norm.cu.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/abi.hpp"
#include "tests/kernels/device.hpp"

namespace gradprobe::bench {

class CubNorm {
 public:
  // Without a library, or where the CUDA runtime doesn't start (it needs more of a driver than the stand-in is), it is
  // not available(), and unavailable() says why.
  explicit CubNorm(const char* library);

  bool available() const { return function_ != nullptr; }
  const std::string& unavailable() const { return why_not_; }

  // Makes room for reductions of up to `count` elements of any type.
  void reserve(std::uint64_t count);
  void enqueue(gate::MeasuredType type, CUdeviceptr input, std::uint64_t count, CUstream stream) const;
  // Of the last reduction, which must have ended.
  double sum(gate::MeasuredType type) const;

 private:
  using Function = int (*)(unsigned, const void*, unsigned long long, void*, void*, std::size_t*, CUstream);
  std::size_t scratch_bytes(gate::MeasuredType type, std::uint64_t count) const;

  Function function_ = nullptr;
  std::string why_not_;
  std::size_t reserved_ = 0;
  std::optional<test::DeviceMemory> scratch_;
  std::optional<test::DeviceMemory> sum_;
};

}  // namespace gradprobe::bench
