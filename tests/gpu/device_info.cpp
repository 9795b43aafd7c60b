#include "device_info.hpp"

#include "tests/kernels/device.hpp"

namespace gradprobe::bench {

using test::check;

DeviceInfo device_info() {
  DeviceInfo info;
  info.compute_capability = test::Device::get().compute_capability();
  CUdevice device{};
  check(cuCtxGetDevice(&device), "cuCtxGetDevice");
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    check(cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return static_cast<std::uint32_t>(value);
  };
  char name[256] = {};
  check(cuDeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
  info.name = name;
  info.standin = info.name == "Stand-in device";
  check(cuDriverGetVersion(&info.driver), "cuDriverGetVersion");
  info.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.clock_mhz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000;
  info.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  std::size_t free = 0, total = 0;
  check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
  info.memory_bytes = total;
  return info;
}

}  // namespace gradprobe::bench
