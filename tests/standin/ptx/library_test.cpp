// CUB, cooperative groups, libcu++: what they compile to runs as it should.
#include <algorithm>

#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Library : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"library"});
  Program& p = *program;
};
FOR_ARCHITECTURES(Library, 75, 80, 90, 120);

TEST_P(Library, CubBlockReduce) {
  std::vector<int> in(1280), want(10);
  for (int i = 0; i < 1280; i++) want[i / 128] += in[i] = static_cast<int>(rng() % 10000) - 5000;
  for (const char* kernel : {"cub_block_warp", "cub_block_rake"}) {
    std::vector<int> out(10);
    ASSERT_EQ(run(p, kernel, 10, 128, 0, in.data(), out.data()), "") << kernel;
    EXPECT_TRUE(same(out, want)) << kernel;
  }
}

TEST_P(Library, CubWarpReduce) {
  std::vector<float> in(128), out(4), want(4, -1);
  for (int i = 0; i < 128; i++) {
    in[i] = static_cast<float>(rng() % 100000);
    want[i / 32] = std::max(want[i / 32], in[i]);
  }
  ASSERT_EQ(run(p, "cub_warp", 1, 128, 0, in.data(), out.data()), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Library, CubScan) {
  std::vector<int> in(512), out(512), want(512);
  for (int i = 0; i < 512; i++) {
    in[i] = static_cast<int>(rng() % 1000);
    want[i] = i ? want[i - 1] + in[i - 1] : 0;
  }
  ASSERT_EQ(run(p, "cub_scan", 1, 128, 0, in.data(), out.data()), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Library, CubSort) {
  std::vector<unsigned> in(512), out(512);
  for (auto& x : in) x = rng();
  ASSERT_EQ(run(p, "cub_sort", 1, 128, 0, in.data(), out.data()), "");
  std::sort(in.begin(), in.end());
  EXPECT_TRUE(same(out, in));
}

TEST_P(Library, AsynchronousCopy) {
  std::vector<int> in(256), out(256);
  for (auto& x : in) x = static_cast<int>(rng());
  ASSERT_EQ(run(p, "async_copy", 1, 256, 0, in.data(), out.data()), "");
  std::reverse(in.begin(), in.end());
  EXPECT_TRUE(same(out, in));
}

TEST_P(Library, BarrierObjects) {
  std::vector<int> in(128), out(640), want(640);
  for (auto& x : in) x = static_cast<int>(rng() % 1000);
  for (int k = 0; k < 5; k++)
    for (int i = 0; i < 128; i++) want[k * 128 + i] = in[127 - i] + k;
  ASSERT_EQ(run(p, "mbar", 1, 128, 0, in.data(), out.data()), "");
  EXPECT_TRUE(same(out, want, 128));
}

TEST_P(Library, AtomicsOfSystemScope) {
  alignas(16) int s[8] = {0, 0, 0, 0, 5};
  std::vector<int> out(100);
  ASSERT_EQ(run(p, "sys_atomics", 100, 64, 0, s, out.data()), "");
  EXPECT_EQ(s[0], 6400);
  EXPECT_EQ(s[2], 630);
  EXPECT_GE(s[4], 0);
  EXPECT_LT(s[4], 64);
  EXPECT_TRUE(same(out, std::vector<int>(100, 6400)));
}

TEST_P(Library, GroupsOfThreads) {
  std::vector<int> out(64), want(64);
  ASSERT_EQ(run(p, "cg_things", 1, 64, 0, out.data()), "");
  for (int t = 0; t < 64; t++) {
    int warp = t / 32, sum = 496 + 1024 * warp, members = 0, rank = 0;
    for (int k = warp * 32; k < warp * 32 + 32; k++)
      if (k % 3 == 0) {
        if (k < t) rank++;
        members++;
      }
    want[t] = t % 3 == 0 ? members * 1000 + rank + sum * 100000 : sum;
  }
  EXPECT_TRUE(same(out, want));
}

class Link : public Interpreter {};
FOR_ARCHITECTURES(Link, 80, 90);

TEST_P(Link, ModulesShareFunctionsAndVariables) {
  auto program = load({"link_a", "link_b"});
  Program& p = *program;
  std::vector<int> which(96), out(96), want(96);
  int v = 11;
  for (int i = 0; i < 96; i++) {
    which[i] = (i * 7 / 3) % 4;
    int by_function[] = {i + v, i * v, i * 2000 - v, i * 1000 + v};
    want[i] = by_function[which[i]];
  }
  ASSERT_EQ(run(p, "by_table", 1, 96, 0, which.data(), out.data(), &v), "");
  EXPECT_TRUE(same(out, want));
  auto* counter = static_cast<int*>(global_address(p, "counter", nullptr));
  ASSERT_NE(counter, nullptr);
  EXPECT_EQ(*counter, 7 + 96);
  ASSERT_EQ(run(p, "by_shared", 1, 64, 0, out.data()), "");
  EXPECT_EQ(out[0], 3 * 2016);
  EXPECT_EQ(out[1], 15);
  ASSERT_EQ(run(p, "other_kernel", 1, 64, 0, out.data(), 1), "");
  EXPECT_EQ(out[63], 63 * 5);
}

}  // namespace
}  // namespace standin::ptx::test
