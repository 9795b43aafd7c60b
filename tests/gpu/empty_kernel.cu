// What a launch costs that does nothing, with the parameters of a pass.
#include "kernels/abi.hpp"

extern "C" __global__ void __launch_bounds__(gradprobe::gate::kThreads)
    gradprobe_empty(const __grid_constant__ gradprobe::gate::GateParams) {}
