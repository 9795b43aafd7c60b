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

__device__ inline std::uint64_t raw_bits(std::uint64_t address, std::uint32_t bytes) {
  switch (bytes) {
    case 1:
      return *reinterpret_cast<const std::uint8_t*>(address);
    case 2:
      return *reinterpret_cast<const std::uint16_t*>(address);
    case 4:
      return *reinterpret_cast<const std::uint32_t*>(address);
    default:
      return *reinterpret_cast<const std::uint64_t*>(address);
  }
}

// Of a floating-point type; 0 for the others.
__device__ inline double raw_value(Datatype datatype, std::uint64_t bits) {
  const auto low = static_cast<std::uint32_t>(bits);
  switch (measured_type(datatype)) {
    case kTypeF64:
      return F64::decode(bits);
    case kTypeF32:
      return F32::decode(low);
    case kTypeF16:
      return F16::decode(low);
    case kTypeBf16:
      return Bf16::decode(low);
    case kTypeF8E4m3:
      return F8E4m3::decode(low);
    case kTypeF8E5m2:
      return F8E5m2::decode(low);
    default:
      return 0;
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
    const std::uint64_t bits = raw_bits(operand.address + i * bytes, bytes);
    for (std::uint32_t b = 0; b < bytes; ++b) {
      const std::uint32_t at = i * bytes + b;
      const auto byte = static_cast<unsigned char>(bits >> (8 * b));
      reserved.result->raw[at] = byte;
      sums.words += std::uint64_t{byte} << (8 * (at % 4));
    }
    const double magnitude = fabs(raw_value(datatype, bits));
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
