// libcudart.so.12: the functions whose name or parameters differ from CUDA 13's, called as a program of CUDA 12 does.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace standin::cudart::cases {
namespace {

class Cuda12 : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(STANDIN_CUDART_12, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  // Calls a function of the library by name with the parameters given.
  template <class... A>
  cudaError_t call(const char* name, A... arguments) {
    auto f = reinterpret_cast<cudaError_t (*)(A...)>(dlsym(library_, name));
    if (!f) ADD_FAILURE() << name << " is missing";
    return f ? f(arguments...) : cudaErrorSymbolNotFound;
  }

 private:
  void* library_ = nullptr;
};

TEST_F(Cuda12, SaysItsVersion) {
  int version = 0;
  ASSERT_EQ(call("cudaRuntimeGetVersion", &version), cudaSuccess);
  EXPECT_EQ(version / 1000, 12);
}

TEST_F(Cuda12, DevicePropertiesHaveTheirLayout) {
  std::vector<unsigned char> properties(1032 + 8, 0xee);
  ASSERT_EQ(call("cudaGetDeviceProperties_v2", static_cast<void*>(properties.data()), 0), cudaSuccess);
  auto at = [&](size_t offset) {
    int value;
    memcpy(&value, properties.data() + offset, sizeof value);
    return value;
  };
  EXPECT_EQ(at(308), 32);    // warpSize
  EXPECT_EQ(at(320), 1024);  // maxThreadsPerBlock
  EXPECT_EQ(at(360), 8);     // major, of STANDIN_CUDA_CC's default 80
  EXPECT_EQ(at(364), 0);     // minor
  int multiprocessors = 0;
  ASSERT_EQ(call("cudaDeviceGetAttribute", &multiprocessors, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(at(388), multiprocessors);
  for (size_t i = 1032; i < properties.size(); i++) EXPECT_EQ(properties[i], 0xee) << "written behind the structure";
}

TEST_F(Cuda12, CaptureIsToldInThreeVersions) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(call("cudaStreamCreateWithFlags", &stream, unsigned{cudaStreamNonBlocking}), cudaSuccess);
  ASSERT_EQ(call("cudaStreamBeginCapture", stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id[3] = {};
  cudaGraph_t graph[2] = {};
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 9;
  ASSERT_EQ(call("cudaStreamGetCaptureInfo", stream, &status, &id[0]), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(call("cudaStreamGetCaptureInfo_v2", stream, &status, &id[1], &graph[0], &nodes, &count), cudaSuccess);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(call("cudaStreamGetCaptureInfo_v3", stream, &status, &id[2], &graph[1], &nodes, &edges, &count),
            cudaSuccess);
  EXPECT_EQ(id[0], id[1]);
  EXPECT_EQ(id[0], id[2]);
  EXPECT_EQ(graph[0], graph[1]);

  cudaGraphNode_t first = nullptr, second = nullptr, third = nullptr, read[4] = {};
  const cudaGraphNode_t* none = nullptr;
  ASSERT_EQ(call("cudaGraphAddEmptyNode", &first, graph[0], none, size_t{0}), cudaSuccess);
  ASSERT_EQ(call("cudaGraphAddEmptyNode", &second, graph[0], none, size_t{0}), cudaSuccess);
  ASSERT_EQ(call("cudaGraphAddEmptyNode", &third, graph[0], none, size_t{0}), cudaSuccess);
  ASSERT_EQ(call("cudaGraphAddDependencies", graph[0], &first, &second, size_t{1}), cudaSuccess);
  const cudaGraphEdgeData* plain = nullptr;
  ASSERT_EQ(call("cudaGraphAddDependencies_v2", graph[0], &second, &third, plain, size_t{1}), cudaSuccess);
  count = 4;
  ASSERT_EQ(call("cudaGraphNodeGetDependencies", third, read, &count), cudaSuccess);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(read[0], second);
  ASSERT_EQ(call("cudaStreamUpdateCaptureDependencies", stream, &third, size_t{1},
                 unsigned{cudaStreamSetCaptureDependencies}),
            cudaSuccess);
  ASSERT_EQ(call("cudaStreamGetCaptureInfo_v2", stream, &status, &id[1], &graph[0], &nodes, &count), cudaSuccess);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], third);
  ASSERT_EQ(call("cudaStreamEndCapture", stream, &graph[1]), cudaSuccess);
  EXPECT_EQ(call("cudaGraphDestroy", graph[1]), cudaSuccess);
  EXPECT_EQ(call("cudaStreamDestroy", stream), cudaSuccess);
}

TEST_F(Cuda12, BatchCopyTakesAFailureIndex) {
  void* device = nullptr;
  ASSERT_EQ(call("cudaMalloc", &device, size_t{8}), cudaSuccess);
  int value[2] = {3, 4}, back[2] = {};
  cudaStream_t stream = nullptr;
  ASSERT_EQ(call("cudaStreamCreateWithFlags", &stream, unsigned{cudaStreamNonBlocking}), cudaSuccess);
  void* to[] = {device, static_cast<char*>(device) + 4};
  const void* from[] = {&value[0], &value[1]};
  size_t bytes[] = {4, 4}, first = 0, failed = 77;
  cudaMemcpyAttributes how = {};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  ASSERT_EQ(call("cudaMemcpyBatchAsync", static_cast<void* const*>(to), static_cast<const void* const*>(from),
                 static_cast<const size_t*>(bytes), size_t{2}, &how, &first, size_t{1}, &failed, stream),
            cudaSuccess);
  ASSERT_EQ(call("cudaStreamSynchronize", stream), cudaSuccess);
  ASSERT_EQ(
      call("cudaMemcpy", static_cast<void*>(back), static_cast<const void*>(device), size_t{8}, cudaMemcpyDeviceToHost),
      cudaSuccess);
  EXPECT_EQ(back[0], 3);
  EXPECT_EQ(back[1], 4);
  EXPECT_EQ(call("cudaStreamDestroy", stream), cudaSuccess);
  EXPECT_EQ(call("cudaFree", device), cudaSuccess);
}

}  // namespace
}  // namespace standin::cudart::cases
