// Launches of kernels that the program itself brings as host functions (host_kernel.hpp).
#include "host_kernel.hpp"

#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <vector>

#include "native.h"
#include "runtime.hpp"

namespace standin::cudart {
namespace {
struct Launch {
  const StandinHostKernel* kernel;
  std::vector<std::vector<std::byte>> copies;
  std::vector<const void*> arguments;
};

void run(void* user) {
  const auto* l = static_cast<const Launch*>(user);
  l->kernel->body(l->arguments.data(), l->kernel);
}
void forget(void* user) {
  delete static_cast<Launch*>(user);
}
}  // namespace

decltype(&standin_host_kernel) host_kernels() {
  static const auto found =
      reinterpret_cast<decltype(&standin_host_kernel)>(dlsym(RTLD_DEFAULT, "standin_host_kernel"));
  return found;
}

CUresult launch_host_kernel(const StandinHostKernel* kernel, const char* name, void** arguments, CUstream stream) {
  auto launch = std::make_unique<Launch>();
  launch->kernel = kernel;
  for (size_t i = 0; i < kernel->arguments; i++) {
    const auto* from = static_cast<const std::byte*>(arguments[i]);
    launch->copies.emplace_back(from, from + kernel->argument_bytes[i]);
    launch->arguments.push_back(launch->copies.back().data());
  }
  CUresult r = standin_cuda_launch_native(stream, name, run, launch.get(), forget);
  if (r == CUDA_SUCCESS) launch.release();
  return r;
}
}  // namespace standin::cudart
