// Typed launchers for the kernels of kernels.cu. A parameter list here must equal the kernel's.
#pragma once

#include "cuda_driver.hpp"

namespace gradprobe::demo {

struct Grid {
  unsigned x = 1, y = 1;
  unsigned threads = 256;
};

constexpr unsigned blocks_for(int count, unsigned threads) {
  return (static_cast<unsigned>(count) + threads - 1) / threads;
}
constexpr Grid grid_1d(int count) {
  return {blocks_for(count, 256), 1, 256};
}
// For the matrix kernels: one CTA for each 64 x 64 tile of the result.
constexpr Grid grid_tiles(int rows, int columns) {
  return {blocks_for(columns, 64), blocks_for(rows, 64), 64};
}

template <class... Args>
class Kernel {
 public:
  Kernel(const Module& module, const char* name) : name_(name) {
    check(cuModuleGetFunction(&function_, module.get(), name), name);
  }
  void operator()(CUstream stream, Grid grid, Args... args) const {
    void* params[] = {&args...};
    check(cuLaunchKernel(function_, grid.x, grid.y, 1, grid.threads, 1, 1, 0, stream, params, nullptr), name_);
  }

 private:
  CUfunction function_ = nullptr;
  const char* name_;
};

class Kernels {
  Module module_;

 public:
  Kernels();

  using Ptr = CUdeviceptr;
  Kernel<Ptr, Ptr, Ptr, int, int, int, Ptr, Ptr> gather;             // images labels order first batch pixels x y
  Kernel<Ptr, int, unsigned long long, float> dropout_mask;          // mask width key rate
  Kernel<Ptr, Ptr, Ptr, Ptr, int, int, int, Ptr> hidden;             // x w bias mask batch in out h
  Kernel<Ptr, Ptr, Ptr, int, int, int, Ptr> output;                  // x w bias batch in out z
  Kernel<Ptr, Ptr, int, int, Ptr, Ptr> loss;                         // z y batch classes dz loss; one CTA of 256
  Kernel<Ptr, Ptr, int, int, int, Ptr> weight_gradient;              // x dz batch in out dw
  Kernel<Ptr, int, int, Ptr> bias_gradient;                          // dz batch out db
  Kernel<Ptr, Ptr, Ptr, Ptr, int, int, int, Ptr> hidden_gradient;    // dz w h mask batch in out dh
  Kernel<Ptr, Ptr, int, float> divide_f32, divide_bf16, divide_f16;  // gradient bucket count divisor
  Kernel<Ptr, Ptr, int, float> update_f32, update_bf16, update_f16;  // weights bucket count learning_rate
  Kernel<Ptr, int> plant_nan;                                        // gradient element
};

}  // namespace gradprobe::demo
