// Shared by the driver's tests.
#pragma once
#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define CU_OK(x) ASSERT_EQ((x), CUDA_SUCCESS)

namespace standin::cuda::test {

inline std::string test_fatbin() {
  std::ifstream in(STANDIN_CUDA_TEST_FATBIN, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A context on device 0, the test kernels, one stream that doesn't wait for the default stream.
class Driver : public ::testing::Test {
 protected:
  void SetUp() override {
    CU_OK(cuInit(0));
    CU_OK(cuDevicePrimaryCtxRetain(&context, 0));
    CU_OK(cuCtxSetCurrent(context));
    std::string image = test_fatbin();
    ASSERT_FALSE(image.empty());
    CU_OK(cuModuleLoadData(&module, image.data()));
    CU_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    CU_OK(cuStreamDestroy(stream));
    CU_OK(cuModuleUnload(module));
    CU_OK(cuCtxSetCurrent(nullptr));
    CU_OK(cuDevicePrimaryCtxRelease(0));
  }
  CUfunction kernel(const char* name) {
    CUfunction f = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&f, module, name), CUDA_SUCCESS) << name;
    return f;
  }
  template <class... A>
  CUresult launch(const char* name, CUstream s, unsigned threads, A... args) {
    void* params[] = {&args...};
    return cuLaunchKernel(kernel(name), 1, 1, 1, threads, 1, 1, 0, s, params, nullptr);
  }
  CUdeviceptr device_zeros(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(p, 0, bytes), CUDA_SUCCESS);
    return p;
  }
  template <class T>
  T read(CUdeviceptr p) {
    T v{};
    EXPECT_EQ(cuMemcpyDtoH(&v, p, sizeof v), CUDA_SUCCESS);
    return v;
  }

  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUstream stream = nullptr;
};

// A host function that holds its stream up until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<int> passed{0};
  static void wait(void* self) {
    auto* g = static_cast<Gate*>(self);
    while (!g->open) std::this_thread::sleep_for(std::chrono::microseconds(50));
    g->passed++;
  }
};

// Waits up to two seconds for something that another thread does.
inline bool eventually(const std::function<bool()>& done) {
  for (int i = 0; i < 2000; i++) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return done();
}

// Runs `body` in a process of its own with the given environment: the driver reads its settings once. The calling
// process must not have used the driver. Returns what body returned; a crash gives 1000 plus the signal.
inline int in_child(const std::map<std::string, std::string>& environment, const std::function<int()>& body) {
  pid_t child = fork();
  if (child == 0) {
    for (auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
#define CHILD_CHECK(x)                                                \
  do {                                                                \
    if (!(x)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

}  // namespace standin::cuda::test
