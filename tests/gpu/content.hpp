// What the benchmark's buffers hold: a piece of Gaussian numbers of one datatype, repeated without end, so that the
// host knows what any part of gigabytes adds up to.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "tests/kernels/elements.hpp"

namespace gradprobe::bench {

struct Expected {
  double sum_squares = 0;
  double max_abs = 0;
  std::uint64_t fingerprint = 0;  // if the part begins at a multiple of four bytes and is one long
};

class Content {
 public:
  // `bytes`: of the piece, a multiple of 256.
  Content(Datatype type, std::size_t bytes);

  // Fills device memory from `to` on; the buffers' byte i holds the piece's byte i % bytes.
  void fill(CUdeviceptr to, std::uint64_t bytes) const;

  // Of the `count` elements from byte `begin` of a filled buffer on.
  Expected expected(std::uint64_t begin, std::uint64_t count) const;
  // The same elements on the host.
  test::Elements elements(std::uint64_t begin, std::uint64_t count) const;

 private:
  void add(std::size_t from, std::size_t to, Expected& sums) const;

  test::Elements piece_;
  std::vector<double> magnitudes_;
  Expected whole_;
};

}  // namespace gradprobe::bench
