// How a program brings functions of its own for kernels that a library has as machine code only: it exports
// standin_host_kernel, which the stand-in runtime calls before it looks for a kernel's PTX.
#pragma once
#include <cstddef>

struct StandinHostKernel {
  std::size_t arguments;
  const std::size_t* argument_bytes;
  // Runs on the stream's worker thread, for the whole grid; the arguments are copies made at the launch.
  void (*body)(const void* const* arguments, const void* self);
};

// The function for a kernel, by its mangled name; null when there is none. What it returns is never freed.
extern "C" const StandinHostKernel* standin_host_kernel(const char* mangled_name);
