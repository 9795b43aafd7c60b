// Tiny buffers (up to 8 elements, where frameworks reduce the loss): their bytes as they are, and the scalars of a
// bucket from plain float64 sums.
#pragma once

#include "abi.hpp"
#include "element.cuh"
#include "gradprobe/ring_format.hpp"
#include "memory.cuh"
#include "reduce.cuh"
#include "result.cuh"

namespace gradprobe::gate {

// What a pass reads of an entry.
struct Operand {
  std::uint64_t address;
  std::uint64_t count;
};

// One element: its bits and, for a floating-point type, its value.
struct RawElement {
  std::uint64_t bits;
  double value;
};

__device__ inline double eight_bit_value(Datatype datatype, std::uint32_t magnitude) {
  if (datatype == Datatype::f8e5m2) return F16::decode(magnitude << 8);
  if (datatype != Datatype::f8e4m3) return 0;
  // Exponents of f16 have a bias of 15, those of e4m3 of 7.
  return magnitude == 0x7f ? __longlong_as_double(0x7ff8000000000000) : F16::decode(magnitude << 7) * 256.0;
}

__device__ inline RawElement load_raw(Datatype datatype, std::uint64_t address) {
  switch (element_bytes(datatype)) {
    case 1: {
      const std::uint32_t bits = *reinterpret_cast<const std::uint8_t*>(address);
      const double value = eight_bit_value(datatype, bits & 0x7f);
      return {bits, bits >> 7 ? -value : value};
    }
    case 2: {
      const std::uint32_t bits = *reinterpret_cast<const std::uint16_t*>(address);
      const std::uint32_t magnitude = bits & 0x7fff;
      const double value = datatype == Datatype::bf16  ? Bf16::decode(magnitude)
                           : datatype == Datatype::f16 ? F16::decode(magnitude)
                                                       : 0;
      return {bits, bits >> 15 ? -value : value};
    }
    case 4: {
      const std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(address);
      return {bits, datatype == Datatype::f32 ? __uint_as_float(bits) : 0.0};
    }
    default: {
      const std::uint64_t bits = *reinterpret_cast<const std::uint64_t*>(address);
      return {bits, datatype == Datatype::f64 ? __longlong_as_double(static_cast<long long>(bits)) : 0.0};
    }
  }
}

// By one thread.
__device__ inline void report_raw(const GateParams& params, const Operand& operand, Datatype datatype,
                                  const ResultOrigin& origin) {
  const ReservedResult reserved = reserve_result(params);
  if (!reserved.result) return;
  const std::uint32_t bytes = element_bytes(datatype);
  PartialScalars sums = empty_scalars();
  sums.start_ns = global_timer();
  for (std::uint32_t b = 0; b < sizeof(reserved.result->raw); ++b) reserved.result->raw[b] = 0;
  for (std::uint32_t i = 0; i < operand.count; ++i) {
    const RawElement x = load_raw(datatype, operand.address + i * bytes);
    for (std::uint32_t b = 0; b < bytes; ++b) {
      const std::uint32_t at = i * bytes + b;
      const auto byte = static_cast<unsigned char>(x.bits >> (8 * b));
      reserved.result->raw[at] = byte;
      sums.words += std::uint64_t{byte} << (8 * (at % 4));
    }
    const double magnitude = fabs(x.value);
    if (magnitude < __longlong_as_double(0x7ff0000000000000)) {
      sums.sum_squares += magnitude * magnitude;
      sums.max_abs = fmax(sums.max_abs, magnitude);
      sums.zero_count += magnitude == 0;
    } else {
      ++(isnan(magnitude) ? sums.nan_count : sums.inf_count);
      if (sums.first_nonfinite == kNoElement) sums.first_nonfinite = i;
    }
  }
  write_scalars(params, reserved.result, origin, kMeasured, &sums);
  reserved.result->flags = 0;  // without a sketch there is none to be invalid
  publish_result(reserved);
}

}  // namespace gradprobe::gate
