// A way in that real drivers don't have: stand-in libraries (tests/standin/nccl) put a C++ function on a stream where
// the real library launches a kernel. To everyone else it is a kernel launch: cuLaunchKernelEx in the trace, a kernel
// node when the stream is captured, STANDIN_CUDA_FAIL=cuLaunchKernelEx:n applies, CUDA_LAUNCH_BLOCKING waits for it.
#pragma once
#include <cuda.h>

extern "C" {
// Enqueues body(user) on `stream`. `body` runs on the stream's worker thread, once for each execution (a graph's
// replays run it again), and may block on other streams, threads or processes. `destroy` (may be null) gets `user` when
// no execution can follow any more. Returns what cuLaunchKernelEx would; after an error neither function is called.
CUresult standin_cuda_launch_native(CUstream stream, const char* kernel_name, void (*body)(void* user), void* user,
                                    void (*destroy)(void* user));
// Appends one line to the common trace (STANDIN_CUDA_TRACE); `body` is the inside of a JSON object. 0 without a trace.
unsigned long long standin_cuda_trace(const char* body);
}
