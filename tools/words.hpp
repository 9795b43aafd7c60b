// What the numbers of a ring mean, in words.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstdint>
#include <string>

namespace gradprobe::tool {

// Why an input was not measured, as a sentence part: "NCCL named the buffers too late (...)".
const char* missed_in_words(Missed reason);
// The same, with what the reason can mean in a ring of this `profiler_abi`.
std::string missed_in_words(Missed reason, std::uint32_t profiler_abi);

// "measured", or the reason's short name.
const char* status_name(std::uint16_t missed);

// Printed wherever gradient norms are.
extern const char* const kScaleAssumption;

}  // namespace gradprobe::tool
