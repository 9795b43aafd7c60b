// The kernels of abi.hpp. One measuring kernel per datatype; everything else is in the headers beside this file.
#include "gate.cuh"
#include "measure.cuh"

using namespace gradprobe::gate;

// Two CTAs on a multiprocessor keep enough loads in flight: 64 registers a thread.
#define GRADPROBE_MEASURE __launch_bounds__(kThreads, 2)

extern "C" __global__ void __launch_bounds__(kGateThreads) gradprobe_gate(const __grid_constant__ GateParams params) {
  run_gate(params);
}
extern "C" __global__ void GRADPROBE_MEASURE gradprobe_measure_f32(const __grid_constant__ GateParams params) {
  measure<F32>(params, kTypeF32);
}
extern "C" __global__ void GRADPROBE_MEASURE gradprobe_measure_bf16(const __grid_constant__ GateParams params) {
  measure<Bf16>(params, kTypeBf16);
}
extern "C" __global__ void GRADPROBE_MEASURE gradprobe_measure_f16(const __grid_constant__ GateParams params) {
  measure<F16>(params, kTypeF16);
}
