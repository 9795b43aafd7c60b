// The stand-in CUDA runtime is a thin layer over the stand-in driver: each function finds the calling thread's context,
// as the real runtime does on first use, and calls the driver's public function for the same thing.
//
// The same sources make libcudart.so.13 and libcudart.so.12. STANDIN_CUDART is the release whose names and parameters a
// library has; the headers are always those of CUDA 13.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "host_kernel.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))
// A function under a name that the headers declare with other parameters, or don't declare.
#define EXPORT_AS(NAME) EXPORT __attribute__((used)) cudaError_t NAME

namespace standin::cudart {

// Keeps an error for cudaGetLastError, and returns it.
cudaError_t note(cudaError_t);
// The runtime's number for a driver's error is the same number.
inline cudaError_t from(CUresult r) {
  return note(static_cast<cudaError_t>(static_cast<int>(r)));
}

CUresult need_driver();   // initialises the driver
CUresult need_context();  // and makes device 0's primary context current when the thread has none

// Run a call of the driver: without a context, or with one.
template <class Call>
cudaError_t with_driver(Call call) {
  CUresult r = need_driver();
  return from(r ? r : call());
}
template <class Call>
cudaError_t with_context(Call call) {
  CUresult r = need_context();
  return from(r ? r : call());
}

// The driver's kernel for a host function that nvcc's code registered, or for a handle of a kernel; null when neither.
CUfunction function_of(const void* symbol);

// What the program exports as standin_host_kernel (null when nothing), and the launch of a function from there.
decltype(&standin_host_kernel) host_kernels();
CUresult launch_host_kernel(const StandinHostKernel*, const char* name, void** arguments, CUstream stream);

// An enum or a structure of the runtime as the driver's, which has the same layout.
template <class Out, class In>
Out as(In value) {
  if constexpr (std::is_pointer_v<Out>) {
    return reinterpret_cast<Out>(value);
  } else {
    return static_cast<Out>(static_cast<int>(value));
  }
}
inline CUdeviceptr address(const void* p) {
  return reinterpret_cast<CUdeviceptr>(p);
}

}  // namespace standin::cudart
