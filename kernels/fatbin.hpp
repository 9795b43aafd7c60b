// The kernels of abi.hpp as a fat binary for cuModuleLoadData.
#pragma once

#include <cstddef>
#include <span>

namespace gradprobe::gate {

std::span<const std::byte> fatbin() noexcept;

}  // namespace gradprobe::gate
