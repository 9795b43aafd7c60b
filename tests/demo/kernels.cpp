#include "kernels.hpp"

// The fat binary of kernels.cu as bytes of this object.
asm(".section .rodata\n"
    ".balign 16\n"
    "gradprobe_demo_fatbin:\n"
    ".incbin \"" GRADPROBE_DEMO_FATBIN
    "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char gradprobe_demo_fatbin[];

namespace gradprobe::demo {
namespace {

Module load() {
  CUmodule module = nullptr;
  check(cuModuleLoadData(&module, gradprobe_demo_fatbin), "cuModuleLoadData");
  return Module(module);
}

}  // namespace

Kernels::Kernels()
    : module_(load()),
      gather(module_, "demo_gather"),
      dropout_mask(module_, "demo_dropout_mask"),
      hidden(module_, "demo_hidden"),
      output(module_, "demo_output"),
      loss(module_, "demo_loss"),
      weight_gradient(module_, "demo_weight_gradient"),
      bias_gradient(module_, "demo_bias_gradient"),
      hidden_gradient(module_, "demo_hidden_gradient"),
      divide_f32(module_, "demo_divide_f32"),
      divide_bf16(module_, "demo_divide_bf16"),
      divide_f16(module_, "demo_divide_f16"),
      update_f32(module_, "demo_update_f32"),
      update_bf16(module_, "demo_update_bf16"),
      update_f16(module_, "demo_update_f16"),
      plant_nan(module_, "demo_plant_nan") {}

}  // namespace gradprobe::demo
