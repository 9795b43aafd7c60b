// Shared by the interpreter's tests: programs by file and architecture, launches, comparisons.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "../cuda/fatbin.hpp"
#include "ptx.hpp"

namespace standin::ptx::test {

// Parameters of a launch, laid out as the kernel's.
class Arguments {
 public:
  template <class T>
  void add(const T& value) {
    size_t at = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(at + sizeof(T));
    memcpy(&bytes_[at], &value, sizeof(T));
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

// Runs for each architecture that the kernels were compiled for.
class Interpreter : public ::testing::TestWithParam<int> {
 protected:
  // The modules of the given kernel files, linked; a new program each time: tests share no variables.
  std::shared_ptr<Program> load(std::initializer_list<const char*> files) {
    auto program = make_program();
    for (const char* file : files) {
      std::ifstream in(std::string(STANDIN_PTX_TEST_DIR) + "/" + file + ".fatbin", std::ios::binary);
      std::string image{std::istreambuf_iterator<char>(in), {}};
      EXPECT_FALSE(image.empty()) << file;
      std::vector<cuda::PackedText> texts;
      EXPECT_EQ(cuda::find_texts(image.data(), GetParam(), &texts), "") << file;
      for (auto& t : texts) {
        std::string text;
        EXPECT_EQ(cuda::unpack(t, &text), "") << file;
        EXPECT_EQ(add_module(*program, text), "") << file;
      }
    }
    return program;
  }
  template <class... A>
  static std::string run(Program& program, const char* kernel, uint32_t grid, uint32_t block, size_t shared,
                         A... arguments) {
    Arguments a;
    (a.add(arguments), ...);
    Launch l;
    l.grid[0] = grid;
    l.block[0] = block;
    l.dynamic_shared_bytes = shared;
    l.params = a.bytes().data();
    l.param_bytes = a.bytes().size();
    return launch(program, kernel, l);
  }
  std::mt19937 rng{1};
};

inline std::string arch_name(const ::testing::TestParamInfo<int>& info) {
  return "compute_" + std::to_string(info.param);
}
#define FOR_ARCHITECTURES(SUITE, ...) \
  INSTANTIATE_TEST_SUITE_P(Ptx, SUITE, ::testing::Values(__VA_ARGS__), ::standin::ptx::test::arch_name)

template <class To, class From>
To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

// Bitwise equality, with the first differences in the message.
template <class T>
::testing::AssertionResult same(const std::vector<T>& got, const std::vector<T>& want, size_t row = 1) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << "sizes " << got.size() << " and " << want.size();
  auto result = ::testing::AssertionFailure();
  size_t differences = 0;
  for (size_t i = 0; i < got.size(); i++)
    if (memcmp(&got[i], &want[i], sizeof(T)) != 0 && differences++ < 8)
      result << "\n  row " << i / row << " column " << i % row << ": got " << ::testing::PrintToString(got[i])
             << ", want " << ::testing::PrintToString(want[i]);
  return differences ? result << "\n  " << differences << " differences" : ::testing::AssertionSuccess();
}

}  // namespace standin::ptx::test
