// What a kernel does wrong is named with kernel, thread and instruction.
#include <sys/mman.h>

#include <cstdlib>

#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Fault : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"fault"});
  Program& p = *program;
};
FOR_ARCHITECTURES(Fault, 80, 120);

#define EXPECT_PART(TEXT, PART) EXPECT_NE((TEXT).find(PART), std::string::npos) << (TEXT)

TEST_P(Fault, Assertion) {
  EXPECT_EQ(run(p, "assert_it", 1, 32, 0, 2), "");
  std::string e = run(p, "assert_it", 1, 32, 0, 5);
  EXPECT_PART(e, "x < 3");
  EXPECT_PART(e, "kernel assert_it");
}

TEST_P(Fault, BadAddressNamesTheThread) {
  int x;
  std::string e = run(p, "bad_access", 1, 32, 0, &x);
  EXPECT_PART(e, "bad address");
  EXPECT_PART(e, "thread (5,0,0)");
  EXPECT_PART(e, "kernel bad_access");
}

TEST_P(Fault, MisalignedAccess) {
  int x[2];
  EXPECT_PART(run(p, "misalign", 1, 32, 0, reinterpret_cast<char*>(x)), "misaligned 4-byte access");
}

TEST_P(Fault, SharedAddressOutside) {
  EXPECT_EQ(run(p, "beyond_shared", 1, 32, 128, 0), "");
  std::string e = run(p, "beyond_shared", 1, 32, 128, 1);
  EXPECT_PART(e, "outside the CTA's shared memory");
  EXPECT_PART(e, "thread (31,0,0)");
  EXPECT_PART(run(p, "beyond_shared", 1, 32, 128, -2000000000), "outside the CTA's shared memory");
}

TEST_P(Fault, RowThatCrossesTheEndOfMemory) {
  void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  char* end = static_cast<char*>(mapped) + 4096;
  ASSERT_EQ(mprotect(end, 4096, PROT_NONE), 0);
  int out[32];
  EXPECT_EQ(run(p, "store_row", 1, 32, 0, end - 32 * 4), "");
  EXPECT_PART(run(p, "store_row", 1, 32, 0, end - 20 * 4), "thread (20,0,0)");
  EXPECT_PART(run(p, "load_row", 1, 32, 0, end - 7 * 4, out), "thread (7,0,0)");
  munmap(mapped, 8192);
}

TEST_P(Fault, BarrierThatNobodyCompletes) {
  EXPECT_PART(run(p, "deadlock", 1, 64, 0), "deadlock");
}

TEST_P(Fault, TimeLimit) {
  int never = 0;
  setenv("STANDIN_PTX_TIMEOUT_S", "0.2", 1);
  std::string e = run(p, "spin", 1, 64, 0, &never);
  unsetenv("STANDIN_PTX_TIMEOUT_S");
  EXPECT_PART(e, "time limit");
  EXPECT_PART(e, "ld.volatile");
}

TEST(Text, UnknownInstructionsFaultWhenReached) {
  const char* text = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry one(.param .u64 out, .param .u32 way) {
  .reg .b32 %r<4>;
  .reg .b64 %rd<2>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [way];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $bad;
  st.global.u32 [%rd1], 7;
  ret;
$bad:
  frobnicate.u32 %r2, %r1;
  st.global.u32 [%rd1], %r2;
  ret;
})";
  auto program = make_program();
  ASSERT_EQ(add_module(*program, text), "");
  int out = 0;
  auto go = [&](int way) {
    Arguments a;
    a.add(&out);
    a.add(way);
    Launch l;
    l.params = a.bytes().data();
    l.param_bytes = a.bytes().size();
    return launch(*program, "one", l);
  };
  EXPECT_EQ(go(0), "");
  EXPECT_EQ(out, 7);
  std::string e = go(1);
  EXPECT_PART(e, "unknown instruction");
  EXPECT_PART(e, "frobnicate.u32");
}

TEST(Text, NotPtx) {
  auto program = make_program();
  EXPECT_PART(add_module(*program, "int main() {}"), "not PTX");
  Launch l;
  EXPECT_PART(launch(*program, "absent", l), "no kernel named absent");
}

}  // namespace
}  // namespace standin::ptx::test
