// Comparing what a pass measured with what the host knows of the buffer.
#pragma once

#include <cstdint>
#include <string>

#include "content.hpp"
#include "report.hpp"
#include "tests/kernels/reference.hpp"
#include "tests/kernels/rig.hpp"

namespace gradprobe::bench {

// All that the host knows of dense content without a float64 sketch of its own: norm, maximum, counts, in a result pass
// the fingerprint.
void check_sums(const test::Measured& got, const Expected& want, Datatype type, const std::string& what,
                Report& report);

// Everything, sketch included. Sums of the sketch may differ by the rounding of float32 additions; `exact`: every
// partial sum is representable, so nothing may differ.
void check_all(const test::Measured& got, const test::Reference& want, Datatype type, bool exact,
               const std::string& what, Report& report);

}  // namespace gradprobe::bench
