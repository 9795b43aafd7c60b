// PyTorch's element-wise kernels as host functions: launched through the stand-in runtime under the names that
// libtorch_cuda registers, directly and from a graph.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFunction(void** handle, const char* host, char* device, const char* name, int limit, uint3*, uint3*,
                            dim3*, dim3*, int*);
}

namespace {
constexpr int kElements = 1001;

// The operation's bytes as they lie in the kernel's argument: the scalar that it was made with, then the factor.
using Operation = std::array<float, 2>;

struct Case {
  const char* name;
  const char* functor;  // mangled, as it stands between the vector's width and the array of pointers
  int pointers;
  Operation operation;
  float (*expected)(float a, float b);
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

#define MUL "NS0_15binary_internal10MulFunctorIfEEEE"
const Case kCases[] = {
    {"Fill", "NS0_11FillFunctorIfEE", 1, {7.5F, 0}, [](float, float) { return 7.5F; }},
    {"TensorPlusScaledTensor",
     "NS0_15CUDAFunctor_addIfEE",
     3,
     {-0.5F, 0},
     [](float a, float b) { return a - 0.5F * b; }},
    {"TensorPlusNumber", "NS0_21CUDAFunctorOnSelf_addIfEE", 2, {3, 2}, [](float a, float) { return a + 6; }},
    {"NumberPlusScaledTensor", "NS0_22CUDAFunctorOnOther_addIfEE", 2, {1, -1}, [](float a, float) { return 1 - a; }},
    {"TensorTimesTensor", "NS0_13BinaryFunctorIfff" MUL, 3, {}, [](float a, float b) { return a * b; }},
    {"TensorTimesNumber", "NS0_13BUnaryFunctorIfff" MUL, 2, {9, 4}, [](float a, float) { return 4 * a; }},
    {"NumberTimesTensor", "NS0_13AUnaryFunctorIfff" MUL, 2, {9, 4}, [](float a, float) { return 4 * a; }},
};

std::string mangled(const char* functor, int pointers) {
  return std::string("_ZN2at6native29vectorized_elementwise_kernelILi4E") + functor + "St5arrayIPcLm" +
         std::to_string(pointers) + "EELb0EEEviT0_T1_";
}

// A name that the runtime knows, as nvcc's code makes one known; its address is the symbol to launch.
struct Registered {
  explicit Registered(std::string mangled_name) : name(std::move(mangled_name)) {
    __cudaRegisterFunction(__cudaRegisterFatBinary(nullptr), &symbol, nullptr, name.c_str(), -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
  }
  std::string name;
  char symbol = 0;
};

class Elementwise : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    for (float*& p : pointers_)
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&p), kElements * sizeof(float)), cudaSuccess);
    for (int i = 0; i < kElements; i++) {
      a_.push_back(static_cast<float>(i) - 300);
      b_.push_back(static_cast<float>(2 * i));
    }
    copy(pointers_[1], a_.data());
    copy(pointers_[2], b_.data());
  }
  void TearDown() override {
    for (float* p : pointers_) cudaFree(p);
    cudaStreamDestroy(stream_);
  }
  static void copy(float* to, const float* from) {
    ASSERT_EQ(cudaMemcpy(to, from, kElements * sizeof(float), cudaMemcpyDefault), cudaSuccess);
  }
  // The arguments die when this returns: the launch has to have copied them.
  cudaError_t launch(const Registered& kernel) {
    int elements = kElements;
    Operation operation = GetParam().operation;
    std::array<float*, 3> pointers = pointers_;
    std::array<void*, 3> arguments = {&elements, &operation, pointers.data()};
    return cudaLaunchKernel(&kernel.symbol, dim3(2), dim3(128), arguments.data(), 0, stream_);
  }
  void expect_output() {
    std::vector<float> out(kElements);
    copy(out.data(), pointers_[0]);
    for (size_t i = 0; i < out.size(); i++) ASSERT_EQ(out[i], GetParam().expected(a_[i], b_[i])) << "element " << i;
  }

  cudaStream_t stream_ = nullptr;
  std::array<float*, 3> pointers_ = {};
  std::vector<float> a_, b_;
};

TEST_P(Elementwise, ComputesWhatItsNameSays) {
  static std::vector<Registered*> kept;  // the runtime keeps the symbol's address
  auto* kernel = kept.emplace_back(new Registered(mangled(GetParam().functor, GetParam().pointers)));
  ASSERT_EQ(launch(*kernel), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  expect_output();
}

TEST_P(Elementwise, RunsAgainWithEachReplayOfAGraph) {
  static std::vector<Registered*> kept;
  auto* kernel = kept.emplace_back(new Registered(mangled(GetParam().functor, GetParam().pointers)));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(launch(*kernel), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 2; replay++) {
    ASSERT_EQ(cudaMemset(pointers_[0], 0xff, kElements * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    expect_output();
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(Torch, Elementwise, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ElementwiseKernels, AnotherOperationIsNoDeviceFunction) {
  static Registered* kernel =
      new Registered(mangled("NS0_13BinaryFunctorIfffNS0_15binary_internal10DivFunctorIfEEEE", 3));
  std::array<void*, 3> arguments = {};
  EXPECT_EQ(cudaLaunchKernel(&kernel->symbol, dim3(1), dim3(1), arguments.data(), 0, nullptr),
            cudaErrorInvalidDeviceFunction);
}
}  // namespace
