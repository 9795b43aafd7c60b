// The kernels of abi.hpp: one for each datatype, and one for passes over several; everything else is in the headers
// beside this file.
#include "measure.cuh"

using namespace gradprobe::gate;

// Two CTAs on a multiprocessor keep enough loads in flight: 64 registers a thread.
#define GRADPROBE_KERNEL(name, ...)                                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads, 2) name(const __grid_constant__ GateParams params) { \
    measure<__VA_ARGS__>(params);                                                                             \
  }

GRADPROBE_KERNEL(gradprobe_measure_f64, F64)
GRADPROBE_KERNEL(gradprobe_measure_f32, F32)
GRADPROBE_KERNEL(gradprobe_measure_f16, F16)
GRADPROBE_KERNEL(gradprobe_measure_bf16, Bf16)
GRADPROBE_KERNEL(gradprobe_measure_f8e4m3, F8E4m3)
GRADPROBE_KERNEL(gradprobe_measure_f8e5m2, F8E5m2)
GRADPROBE_KERNEL(gradprobe_measure_mixed, F64, F32, F16, Bf16, F8E4m3, F8E5m2)
