// Test cases: launches, device code linked from two files, device variables, errors of launches.
#include <cstring>
#include <numeric>

#include "case_support.cuh"

namespace standin::cudart::cases {

std::string kernel_calls_functions_of_another_file() {
  Array out(32);
  call_other_file<<<1, 32>>>(out.data());
  NEED_OK(cudaGetLastError());
  NEED_OK(cudaDeviceSynchronize());
  std::vector<int> got = out.read();
  NEED(got.size() == 32);
  for (int i = 0; i < 32; i++) NEED(got[i] == 3 * i);
  return "";
}

std::string table_holds_functions_of_both_files() {
  Array which(32), out(32);
  std::vector<int> choice(32);
  for (int i = 0; i < 32; i++) choice[i] = i / 3 % 2;
  NEED_OK(cudaMemcpy(which.data(), choice.data(), 32 * sizeof(int), cudaMemcpyHostToDevice));
  call_by_table<<<1, 32>>>(which.data(), out.data());
  NEED_OK(cudaGetLastError());
  std::vector<int> got = out.read();
  NEED(got.size() == 32);
  for (int i = 0; i < 32; i++) NEED(got[i] == (choice[i] ? 3 * i : i + 1));
  return "";
}

std::string variables_are_shared_between_files() {
  int value = 0;
  size_t bytes = 0;
  NEED_OK(cudaGetSymbolSize(&bytes, counter));
  NEED(bytes == sizeof(int));
  count<<<2, 32>>>();
  NEED_OK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
  NEED(value == 5 + 64);
  value = 7;
  NEED_OK(cudaMemcpyToSymbol(scale_factor, &value, sizeof value));
  Array out(32);
  call_other_file<<<1, 32>>>(out.data());
  NEED(out.read()[31] == 7 * 31);
  void* address = nullptr;
  NEED_OK(cudaGetSymbolAddress(&address, scale_factor));
  NEED_OK(cudaMemset(address, 0, sizeof(int)));
  call_other_file<<<1, 32>>>(out.data());
  NEED(out.read()[31] == 0);
  return "";
}

std::string blocks_use_dynamic_shared_memory() {
  constexpr int kBlocks = 3, kThreads = 128;
  Array in(kBlocks * kThreads), out(kBlocks);
  fill<<<kBlocks, kThreads>>>(in.data(), 10);
  block_sums<<<kBlocks, kThreads, kThreads * sizeof(int)>>>(in.data(), out.data());
  NEED_OK(cudaGetLastError());
  std::vector<int> values = in.read(), sums = out.read();
  NEED(sums.size() == kBlocks);
  for (int b = 0; b < kBlocks; b++)
    NEED(sums[b] == std::accumulate(values.begin() + b * kThreads, values.begin() + (b + 1) * kThreads, 0));
  return "";
}

std::string launch_by_configuration() {
  Array out(64);
  Stream stream;
  cudaLaunchConfig_t c = {};
  c.gridDim = {2, 1, 1};
  c.blockDim = {32, 1, 1};
  c.stream = stream;
  NEED_OK(cudaLaunchKernelEx(&c, fill, out.data(), 100));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(out.read()[63] == 163);
  // By a handle instead of the host function.
  cudaFunction_t function = nullptr;
  NEED_OK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(fill)));
  int* p = out.data();
  int first = 7;
  void* arguments[] = {&p, &first};
  NEED_OK(cudaLaunchKernelExC(&c, reinterpret_cast<const void*>(function), arguments));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(out.read()[63] == 70);
  return "";
}

std::string kernels_know_their_attributes() {
  cudaFuncAttributes a;
  auto kernel = reinterpret_cast<const void*>(block_sums);
  NEED_OK(cudaFuncGetAttributes(&a, kernel));
  NEED(a.maxThreadsPerBlock == 1024);
  NEED(a.sharedSizeBytes == 0);
  NEED_OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  NEED_OK(cudaFuncGetAttributes(&a, kernel));
  NEED(a.maxDynamicSharedSizeBytes == 65536);
  const char* name = nullptr;
  NEED_OK(cudaFuncGetName(&name, kernel));
  NEED(strstr(name, "block_sums"));
  return "";
}

std::string wrong_launches_are_errors() {
  Array out(1);
  fill<<<1, 2000>>>(out.data(), 1);
  NEED(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  NEED(cudaGetLastError() == cudaErrorInvalidConfiguration);
  NEED(cudaGetLastError() == cudaSuccess);
  int not_a_kernel = 0;
  NEED(cudaLaunchKernel(&not_a_kernel, 1, 1, nullptr, 0, nullptr) == cudaErrorInvalidDeviceFunction);
  NEED(!strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidDeviceFunction"));
  void* address = nullptr;
  NEED(cudaGetSymbolAddress(&address, &not_a_kernel) == cudaErrorInvalidSymbol);
  cudaGetLastError();
  // The errors don't stick.
  fill<<<1, 1>>>(out.data(), 4);
  NEED_OK(cudaGetLastError());
  NEED(out.first() == 4);
  return "";
}
}  // namespace standin::cudart::cases

// By this name the audit library recognises NCCL, for which it prints a line when it can't be diverted.
extern "C" int ncclGetUniqueId() {
  return 0;
}
