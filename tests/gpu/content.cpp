#include "content.hpp"

#include <algorithm>
#include <cmath>

#include "tests/kernels/device.hpp"
#include "tests/kernels/formats.hpp"
#include "tests/kernels/inputs.hpp"
#include "tests/kernels/reference.hpp"

namespace gradprobe::bench {

using test::check;

Content::Content(Datatype type, std::size_t bytes)
    : piece_(test::gaussian(type, bytes / element_bytes(type), 1)), magnitudes_(piece_.size()) {
  for (std::size_t i = 0; i < piece_.size(); ++i) magnitudes_[i] = std::fabs(test::decode(type, piece_[i]));
  add(0, piece_.size(), whole_);
}

void Content::fill(CUdeviceptr to, std::uint64_t bytes) const {
  const std::uint64_t first = std::min<std::uint64_t>(piece_.bytes().size(), bytes);
  check(cuMemcpyHtoD(to, piece_.bytes().data(), first), "cuMemcpyHtoD");
  for (std::uint64_t done = first; done < bytes; done *= 2) {
    check(cuMemcpyDtoD(to + done, to, std::min(done, bytes - done)), "cuMemcpyDtoD");
  }
}

void Content::add(std::size_t from, std::size_t to, Expected& sums) const {
  for (std::size_t i = from; i < to; ++i) {
    sums.sum_squares += magnitudes_[i] * magnitudes_[i];
    sums.max_abs = std::max(sums.max_abs, magnitudes_[i]);
  }
  const std::size_t stride = element_bytes(piece_.type());
  sums.fingerprint += test::fingerprint(piece_.bytes().subspan(from * stride, (to - from) * stride));
}

Expected Content::expected(std::uint64_t begin, std::uint64_t count) const {
  const std::uint64_t repeats = count / piece_.size();
  Expected sums;
  if (repeats > 0) sums = whole_;
  sums.sum_squares *= static_cast<double>(repeats);
  sums.fingerprint *= repeats;
  const std::size_t from = begin / element_bytes(piece_.type()) % piece_.size();
  const std::size_t rest = count % piece_.size();
  const std::size_t to = std::min(from + rest, piece_.size());
  add(from, to, sums);
  add(0, rest - (to - from), sums);
  return sums;
}

test::Elements Content::elements(std::uint64_t begin, std::uint64_t count) const {
  const std::size_t from = begin / element_bytes(piece_.type());
  test::Elements part(piece_.type(), count);
  for (std::size_t i = 0; i < count; ++i) part.set(i, piece_[(from + i) % piece_.size()]);
  return part;
}

}  // namespace gradprobe::bench
