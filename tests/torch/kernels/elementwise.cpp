// PyTorch's element-wise kernels that the tests' training needs, as host functions: libtorch_cuda has machine code
// only. A kernel is recognised by its demangled name: template arguments name the operation. Its arguments are the
// number of elements, the operation with its scalars, and the pointers to output and inputs.
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "host_kernel.hpp"

namespace {
using Scalars = std::array<float, 2>;
using Operation = float (*)(Scalars, float a, float b);

struct Known {
  std::string_view operation;  // as it stands in the demangled name
  size_t bytes;                // of the operation with its scalars
  Operation apply;
};

// Where an operation holds two scalars, the first is the value that it was made with, the second the factor.
constexpr Known kKnown[] = {
    {"FillFunctor<float>", 4, [](Scalars s, float, float) { return s[0]; }},
    {"CUDAFunctorOnSelf_add<float>", 8, [](Scalars s, float a, float) { return a + s[1] * s[0]; }},
    {"CUDAFunctorOnOther_add<float>", 8, [](Scalars s, float a, float) { return s[0] + s[1] * a; }},
    {"CUDAFunctor_add<float>", 4, [](Scalars s, float a, float b) { return a + s[0] * b; }},
    {"BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>", 1,
     [](Scalars, float a, float b) { return a * b; }},
    {"BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>", 8,
     [](Scalars s, float a, float) { return a * s[1]; }},
    {"AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>", 8,
     [](Scalars s, float a, float) { return a * s[1]; }},
};

struct Kernel : StandinHostKernel {
  std::array<size_t, 3> sizes = {};
  size_t pointers = 0;
  const Known* known = nullptr;
};

void run(const void* const* arguments, const void* self) {
  const auto& kernel = *static_cast<const Kernel*>(static_cast<const StandinHostKernel*>(self));
  int elements = 0;
  Scalars scalars = {};
  std::array<float*, 3> p = {};
  std::memcpy(&elements, arguments[0], sizeof elements);
  std::memcpy(scalars.data(), arguments[1], std::min(sizeof scalars, kernel.sizes[1]));
  std::memcpy(p.data(), arguments[2], kernel.sizes[2]);
  for (int i = 0; i < elements; i++) {
    p[0][i] = kernel.known->apply(scalars, kernel.pointers > 1 ? p[1][i] : 0, kernel.pointers > 2 ? p[2][i] : 0);
  }
}

std::string demangled(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return text ? text.get() : "";
}

// How many pointers the kernel gets: the N of std::array<char*, N> behind the operation.
size_t pointer_count(std::string_view arguments) {
  constexpr std::string_view kArray = "rray<char*, ";
  const size_t at = arguments.find(kArray);
  return at == std::string_view::npos ? 0 : static_cast<size_t>(std::atoi(arguments.data() + at + kArray.size()));
}

std::optional<Kernel> make(const char* mangled) {
  const std::string name = demangled(mangled);
  constexpr std::string_view kTemplate = "at::native::vectorized_elementwise_kernel<";
  const size_t begin = name.find(kTemplate);
  if (begin == std::string::npos) return std::nullopt;
  const std::string_view arguments = std::string_view(name).substr(begin + kTemplate.size());
  const size_t pointers = pointer_count(arguments);
  if (pointers < 1 || pointers > 3) return std::nullopt;
  const std::string_view operation = arguments.substr(0, arguments.find("rray<char*, "));
  for (const Known& known : kKnown) {
    if (operation.find(known.operation) == std::string_view::npos) continue;
    Kernel kernel;
    kernel.sizes = {sizeof(int), known.bytes, pointers * sizeof(void*)};
    kernel.pointers = pointers;
    kernel.known = &known;
    return kernel;
  }
  return std::nullopt;
}
}  // namespace

extern "C" __attribute__((visibility("default"))) const StandinHostKernel* standin_host_kernel(const char* mangled) {
  static std::mutex mutex;
  static auto& made = *new std::map<std::string, std::optional<Kernel>>;
  std::lock_guard lock(mutex);
  auto [at, first] = made.try_emplace(mangled);
  if (first && (at->second = make(mangled))) {
    at->second->arguments = at->second->sizes.size();
    at->second->argument_bytes = at->second->sizes.data();
    at->second->body = run;
  }
  return at->second ? &*at->second : nullptr;
}
