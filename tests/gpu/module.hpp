// A fat binary from a file, loaded into the current context.
#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kernels/device.hpp"

namespace gradprobe::bench {

class Module {
 public:
  explicit Module(const char* file) {
    std::ifstream in(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    if (bytes.empty()) throw std::runtime_error(std::string(file) + ": can't be read; build again");
    test::check(cuModuleLoadData(&module_, bytes.data()), file);
  }
  ~Module() {
    if (module_) cuModuleUnload(module_);
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  CUfunction kernel(const char* name) const {
    CUfunction function{};
    test::check(cuModuleGetFunction(&function, module_, name), name);
    return function;
  }

 private:
  CUmodule module_{};
};

}  // namespace gradprobe::bench
