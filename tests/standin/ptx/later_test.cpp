// Modules that are fetched when somebody asks for one of their names.
#include <gtest/gtest.h>

#include <string>

#include "ptx.hpp"

namespace standin::ptx {
namespace {

const std::string kHead = ".version 8.0\n.target sm_80\n.address_size 64\n";

// A kernel that writes a number, got from a function of another module, either by its name or through a table.
const std::string kDirect = kHead + R"(
.extern .func (.param .b32 r) number ();
.visible .entry direct(.param .u64 out) {
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  {
  .param .b32 back;
  call.uni (back), number, ();
  ld.param.b32 %r1, [back];
  }
  st.global.u32 [%rd1], %r1;
  ret;
})";
const std::string kTable = kHead + R"(
.extern .func (.param .b32 r) number ();
.extern .func (.param .b32 r) elsewhere ();
.visible .global .align 8 .u64 table[2] = {number, elsewhere};
.visible .entry by_table(.param .u64 out) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [out];
  ld.global.u64 %rd2, [table];
  {
  .param .b32 back;
  prototype: .callprototype (.param .b32 _) _ ();
  call (back), %rd2, (), prototype;
  ld.param.b32 %r1, [back];
  }
  st.global.u32 [%rd1], %r1;
  ret;
})";
const std::string kNumber = kHead + R"(
.visible .func (.param .b32 r) number() {
  .reg .b32 %r<2>;
  mov.u32 %r1, 42;
  st.param.b32 [r], %r1;
  ret;
})";

struct Counted {
  std::shared_ptr<Program> program = make_program();
  int fetched = 0;
  void later(std::string text) {
    add_module_later(*program, [this, text](std::string* out) {
      fetched++;
      *out = text;
      return std::string();
    });
  }
  void broken_later() {
    add_module_later(*program, [](std::string*) { return std::string("the test's broken module"); });
  }
  std::string run(const std::string& kernel, int* out) {
    Launch l;
    l.params = &out;
    l.param_bytes = sizeof out;
    return launch(*program, kernel, l);
  }
};

TEST(ModulesFetchedLater, WaitUntilANameOfTheirsIsAskedFor) {
  Counted c;
  c.later(kDirect);
  c.later(kNumber);
  EXPECT_EQ(c.fetched, 0);
  EXPECT_TRUE(kernel_info(*c.program, "direct", nullptr));
  EXPECT_EQ(c.fetched, 1);
  int out = 0;
  EXPECT_EQ(c.run("direct", &out), "");
  EXPECT_EQ(out, 42);
  EXPECT_EQ(c.fetched, 2);
}

TEST(ModulesFetchedLater, ATableOfFunctionsFetchesOnlyWhatIsCalled) {
  Counted c;
  c.later(kTable);
  c.later(kNumber);
  c.later(kHead + ".visible .func (.param .b32 r) elsewhere() { ret; }");
  ASSERT_NE(global_address(*c.program, "table", nullptr), nullptr);
  EXPECT_EQ(c.fetched, 1);
  int out = 0;
  EXPECT_EQ(c.run("by_table", &out), "");
  EXPECT_EQ(out, 42);
  EXPECT_EQ(c.fetched, 2);
}

TEST(ModulesFetchedLater, ABrokenOneDoesNoHarmBeforeItIsReached) {
  Counted c;
  c.later(kDirect);
  c.later(kNumber);
  c.broken_later();
  testing::internal::CaptureStderr();
  int out = 0;
  EXPECT_EQ(c.run("direct", &out), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(kernel_info(*c.program, "nowhere", nullptr));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("the test's broken module"), std::string::npos);
}

TEST(ModulesFetchedLater, AFunctionThatNoneHasIsAFaultOfTheCall) {
  Counted c;
  c.later(kDirect);
  int out = 0;
  EXPECT_NE(c.run("direct", &out).find("undefined function number"), std::string::npos);
}

}  // namespace
}  // namespace standin::ptx
