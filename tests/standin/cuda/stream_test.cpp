// Order of work on streams, events, memory that host and kernel share.
#include <cstring>

#include "test_support.hpp"

namespace standin::cuda::test {
namespace {

TEST_F(Driver, WorkOfOneStreamRunsInOrder) {
  CUdeviceptr p = device_zeros(4);
  unsigned want = 0;
  for (unsigned i = 0; i < 50; i++) {
    CU_OK(launch("twice_plus", stream, 1, p, static_cast<int>(i)));
    want = want * 2 + i;
  }
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<unsigned>(p), want);
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, StreamsRunAtTheSameTime) {
  CUstream other;
  CU_OK(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, -1));
  int priority = 0;
  CU_OK(cuStreamGetPriority(other, &priority));
  EXPECT_EQ(priority, -1);
  Gate gate;
  CU_OK(cuLaunchHostFunc(stream, Gate::wait, &gate));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  std::atomic<bool> ran{false};
  CU_OK(cuLaunchHostFunc(
      other, [](void* p) { *static_cast<std::atomic<bool>*>(p) = true; }, &ran));
  CU_OK(cuStreamSynchronize(other));
  EXPECT_TRUE(ran);
  EXPECT_EQ(gate.passed, 0);
  gate.open = true;
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  CU_OK(cuStreamDestroy(other));
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Driver, EventsOrderStreamsAndMeasureTime) {
  CUstream other;
  CU_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUevent start, middle, end, untimed;
  CU_OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CU_OK(cuEventCreate(&middle, CU_EVENT_DISABLE_TIMING));
  CU_OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
  CU_OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr p = device_zeros(4);
  Gate gate;
  CU_OK(cuEventRecord(start, stream));
  CU_OK(cuEventSynchronize(start));
  CU_OK(cuLaunchHostFunc(stream, Gate::wait, &gate));
  CU_OK(launch("twice_plus", stream, 1, p, 5));
  CU_OK(cuEventRecord(middle, stream));
  CU_OK(cuStreamWaitEvent(other, middle, 0));
  CU_OK(launch("twice_plus", other, 1, p, 1));
  CU_OK(cuEventRecord(end, other));
  EXPECT_EQ(cuEventQuery(middle), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  gate.open = true;
  CU_OK(cuEventSynchronize(end));
  EXPECT_EQ(read<int>(p), 11);
  float ms = 0;
  CU_OK(cuEventElapsedTime(&ms, start, end));
  EXPECT_GE(ms, 29.0f);
  EXPECT_LT(ms, 2000.0f);
  EXPECT_EQ(cuEventElapsedTime(&ms, start, middle), CUDA_ERROR_INVALID_HANDLE);
  CU_OK(cuEventQuery(untimed));
  for (CUevent e : {start, middle, end, untimed}) CU_OK(cuEventDestroy(e));
  EXPECT_EQ(cuEventQuery(start), CUDA_ERROR_INVALID_HANDLE);
  CU_OK(cuStreamDestroy(other));
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, LegacyStreamWaitsForBlockingStreams) {
  CUstream blocking;
  CU_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  CUdeviceptr p = device_zeros(4);
  Gate gate, aside;
  CU_OK(cuLaunchHostFunc(blocking, Gate::wait, &gate));
  CU_OK(cuLaunchHostFunc(stream, Gate::wait, &aside));
  CU_OK(launch("twice_plus", nullptr, 1, p, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  gate.open = true;
  // the other stream doesn't block, so its gate may stay shut
  EXPECT_TRUE(eventually([] { return cuStreamQuery(CU_STREAM_LEGACY) == CUDA_SUCCESS; }));
  EXPECT_EQ(aside.passed, 0);
  aside.open = true;
  CU_OK(cuCtxSynchronize());
  EXPECT_EQ(aside.passed, 1);
  CUstream per_thread = CU_STREAM_PER_THREAD;
  CU_OK(launch("twice_plus", per_thread, 1, p, 1));
  CU_OK(cuStreamSynchronize(per_thread));
  EXPECT_EQ(read<int>(p), 3);
  CU_OK(cuStreamDestroy(blocking));
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, MappedMemoryIsSharedWhileTheKernelSpins) {
  void* host = nullptr;
  CU_OK(cuMemHostAlloc(&host, 8, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
  auto* flags = static_cast<volatile int*>(host);
  flags[0] = 0;
  flags[1] = 0;
  CUdeviceptr p;
  CU_OK(cuMemHostGetDevicePointer(&p, host, 0));
  CU_OK(launch("wait_for", stream, 1, p, p + 4));
  EXPECT_TRUE(eventually([&] { return flags[1] == 1; }));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  flags[0] = 1;
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(flags[1], 2);
  CU_OK(cuMemFreeHost(host));
}

TEST_F(Driver, KernelsReadTheGlobalTimer) {
  CUdeviceptr p = device_zeros(16);
  auto before = std::chrono::steady_clock::now();
  CU_OK(launch("timer", stream, 1, p, uint64_t{20'000'000}));
  CU_OK(cuStreamSynchronize(stream));
  auto passed = std::chrono::steady_clock::now() - before;
  uint64_t measured = read<uint64_t>(p + 8) - read<uint64_t>(p);
  EXPECT_GE(measured, 20'000'000u);
  EXPECT_LE(measured, static_cast<uint64_t>(std::chrono::nanoseconds(passed).count()) + 1'000'000);
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, PageableSourceMayChangeAtOnce) {
  CUdeviceptr p = device_zeros(4);
  std::vector<int> source(1, 7);
  Gate gate;
  CU_OK(cuLaunchHostFunc(stream, Gate::wait, &gate));
  CU_OK(cuMemcpyHtoDAsync(p, source.data(), 4, stream));
  source[0] = 9;
  gate.open = true;
  int back = 0;
  CU_OK(cuMemcpyDtoHAsync(&back, p, 4, stream));
  EXPECT_EQ(back, 7);
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, CallbacksAndMemoryOperations) {
  CUdeviceptr p = device_zeros(8);
  CU_OK(cuStreamWaitValue32(stream, p, 5, CU_STREAM_WAIT_VALUE_GEQ));
  CU_OK(cuStreamWriteValue64(stream, p, 77, 0));
  std::atomic<int> called{-1};
  CU_OK(cuStreamAddCallback(
      stream, [](CUstream, CUresult r, void* user) { *static_cast<std::atomic<int>*>(user) = static_cast<int>(r); },
      &called, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(called, -1);
  CUstream other;
  CU_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU_OK(cuStreamWriteValue32(other, p, 6, 0));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(called, CUDA_SUCCESS);
  EXPECT_EQ(read<uint64_t>(p), 77u);
  CU_OK(cuStreamDestroy(other));
  CU_OK(cuMemFree(p));
}

}  // namespace
}  // namespace standin::cuda::test
