#include "cub_norm.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

namespace gradprobe::bench {
namespace {

void check_runtime(int error) {
  if (error != 0) throw std::runtime_error("cub::DeviceReduce: CUDA runtime error " + std::to_string(error));
}

}  // namespace

CubNorm::CubNorm(const char* library) {
  // Never closed: the CUDA runtime in it has handlers that run at exit.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    why_not_ = dlerror();
    return;
  }
  const auto function = reinterpret_cast<Function>(dlsym(handle, "gradprobe_cub_sum_of_squares"));
  if (!function) {
    why_not_ = std::string(library) + " has no gradprobe_cub_sum_of_squares";
    return;
  }
  std::size_t bytes = 0;
  if (const int error = function(gate::kTypeF32, nullptr, 1, nullptr, nullptr, &bytes, nullptr)) {
    why_not_ = "the CUDA runtime doesn't start on this driver: error " + std::to_string(error);
    return;
  }
  function_ = function;
  sum_.emplace(sizeof(double));
}

std::size_t CubNorm::scratch_bytes(gate::MeasuredType type, std::uint64_t count) const {
  std::size_t bytes = 0;
  check_runtime(function_(type, nullptr, count, nullptr, nullptr, &bytes, nullptr));
  return bytes;
}

void CubNorm::reserve(std::uint64_t count) {
  if (!available()) return;
  reserved_ = 1;
  for (std::uint32_t type = 0; type < gate::kMeasuredTypes; ++type) {
    reserved_ = std::max(reserved_, scratch_bytes(static_cast<gate::MeasuredType>(type), count));
  }
  scratch_.emplace(reserved_);
}

void CubNorm::enqueue(gate::MeasuredType type, CUdeviceptr input, std::uint64_t count, CUstream stream) const {
  std::size_t bytes = reserved_;
  check_runtime(function_(type, reinterpret_cast<const void*>(input), count, reinterpret_cast<void*>(sum_->address()),
                          reinterpret_cast<void*>(scratch_->address()), &bytes, stream));
}

double CubNorm::sum(gate::MeasuredType type) const {
  double wide = 0;
  float narrow = 0;
  const bool is_wide = type == gate::kTypeF64;
  test::check(cuMemcpyDtoH(is_wide ? static_cast<void*>(&wide) : &narrow, sum_->address(),
                           is_wide ? sizeof(wide) : sizeof(narrow)),
              "cuMemcpyDtoH");
  return is_wide ? wide : static_cast<double>(narrow);
}

}  // namespace gradprobe::bench
