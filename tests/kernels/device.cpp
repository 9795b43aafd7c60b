#include "device.hpp"

#include "kernels/fatbin.hpp"

namespace gradprobe::test {

Device& Device::get() {
  static Device device;
  return device;
}

Device::Device() {
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device_, 0), "cuDeviceGet");
  int major = 0, minor = 0;
  check(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_), "cuDeviceGetAttribute");
  check(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_), "cuDeviceGetAttribute");
  capability_ = 10 * major + minor;
  check(cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  make_current();
  check(cuModuleLoadData(&module_, gate::fatbin().data()), "cuModuleLoadData");
}

CUfunction Device::kernel(const char* name) const {
  CUfunction function{};
  check(cuModuleGetFunction(&function, module_, name), name);
  return function;
}

}  // namespace gradprobe::test
