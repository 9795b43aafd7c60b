// Execution: memory, warps, divergence, barriers, waiting on others, functions, variables.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Exec : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"exec"});
  Program& p = *program;
};
FOR_ARCHITECTURES(Exec, 75, 80, 90, 100, 120);

TEST_P(Exec, VectorAdd) {
  const int n = 100003;
  std::vector<float> a(n), b(n), c(n), want(n);
  for (int i = 0; i < n; i++) {
    a[i] = static_cast<float>(i) * 0.7f;
    b[i] = 3.f / static_cast<float>(i + 1);
    want[i] = a[i] + b[i];
  }
  ASSERT_EQ(run(p, "vadd", (n + 255) / 256, 256, 0, a.data(), b.data(), c.data(), n), "");
  EXPECT_TRUE(same(c, want));
}

TEST_P(Exec, BlockReduction) {
  int n = 50000, out = 0, want = 0;
  std::vector<int> a(n);
  for (int& x : a) want += x = static_cast<int>(rng() % 1000);
  ASSERT_EQ(run(p, "reduce_sum", 13, 256, 0, a.data(), &out, n), "");
  EXPECT_EQ(out, want);
}

TEST_P(Exec, DynamicSharedMemory) {
  std::vector<int> a(128), out(128), want(128);
  for (int& x : a) x = static_cast<int>(rng());
  for (int i = 0; i < 128; i++) want[i] = static_cast<int>(static_cast<unsigned>(a[127 - i]) + (i & 31) * 3u);
  ASSERT_EQ(run(p, "dynshared", 1, 128, 512, a.data(), out.data()), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, Histogram) {
  int n = 70000;
  std::vector<unsigned char> a(n);
  std::vector<unsigned> out(256), want(256);
  for (auto& x : a) want[x = static_cast<unsigned char>(rng() % 200)]++;
  ASSERT_EQ(run(p, "histogram", 7, 192, 0, a.data(), out.data(), n), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, Shuffles) {
  std::vector<int> out(64 * 16), want(64 * 16);
  ASSERT_EQ(run(p, "shuffles", 1, 64, 0, out.data()), "");
  auto v = [](int k) { return k * k + 1; };
  for (int t = 0; t < 64; t++) {
    int l = t & 31, sum = 0, *q = &want[t * 16];
    unsigned third = 0, fifth = 0;
    for (int k = 0; k < 32; k++) {
      sum += v(k);
      if (k % 3 == 0) third |= 1u << k;
      if (k / 5 == l / 5) fifth |= 1u << k;
    }
    q[0] = v(5);
    q[1] = l >= 3 ? v(l - 3) : v(l);
    q[2] = l + 7 < 32 ? v(l + 7) : v(l);
    q[3] = v(l ^ 9);
    q[4] = v((l & ~7) | ((l + 1) & 7));
    q[5] = (l & 15) >= 2 ? v(l - 2) : v(l);
    q[6] = (l & 3) + 2 < 4 ? v(l + 2) : v(l);
    q[7] = static_cast<int>(third);
    q[8] = 1;
    q[9] = static_cast<int>(fifth);
    q[10] = 0;
    q[11] = sum;
    q[12] = -1;
    q[13] = (l & 1) ? v((l + 2) & 31) : v((l + 4) & 31);
    q[14] = v(l ^ 1);
    q[15] = -1;
    if ((l & 7) == 0) {
      q[15] = 0;
      for (int k = 0; k < 8; k++) q[15] += v(l + k);
    }
  }
  EXPECT_TRUE(same(out, want, 16));
}

TEST_P(Exec, DivergentLoopsAndSwitch) {
  int n = 5000;
  std::vector<int> a(n), out(n), want(n);
  for (int i = 0; i < n; i++) a[i] = i % 50 == 3 ? -5 : static_cast<int>(rng() % 3000);
  auto steps_of = [](int i, int x) {
    int steps = 0;
    if (x < 0) return -1;
    while (x != 1 && x != 0) {
      x = (x & 1) ? 3 * x + 1 : x / 2;
      if (++steps > 500) return -2;
    }
    switch (i % 7) {
      case 0:
        return steps + 10;
      case 1:
        return steps * 2;
      case 2:
        return steps - 3;
      case 3:
        return steps ^ 5;
      case 4:
        for (int k = 0; k < i % 13; k++) steps += k;
        return steps;
      case 5:
        return -steps;
      default:
        return steps + 1000;
    }
  };
  for (int i = 0; i < n; i++) want[i] = steps_of(i, a[i]);
  ASSERT_EQ(run(p, "diverge", (n + 127) / 128, 128, 0, a.data(), out.data(), n), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, KernelWaitsForTheHost) {
  static volatile int flag;
  flag = 0;
  std::vector<int> out(65);
  std::thread t([] {
    usleep(30000);
    flag = 21;
  });
  std::string error = run(p, "spin_host", 1, 64, 0, const_cast<int*>(&flag), out.data());
  t.join();
  ASSERT_EQ(error, "");
  EXPECT_TRUE(same(out, std::vector<int>(65, 42)));
}

TEST_P(Exec, KernelWaitsForAnotherProcess) {
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* flag = static_cast<int*>(shared);
  pid_t child = fork();
  if (child == 0) {
    usleep(20000);
    __atomic_store_n(flag, 5, __ATOMIC_RELEASE);
    _exit(0);
  }
  std::vector<int> out(65);
  EXPECT_EQ(run(p, "spin_host", 1, 64, 0, flag, out.data()), "");
  waitpid(child, nullptr, 0);
  munmap(shared, 4096);
  EXPECT_TRUE(same(out, std::vector<int>(65, 10)));
}

TEST_P(Exec, TwoLaunchesWaitForEachOther) {
  static volatile int first, second;
  first = 0;
  second = 0;
  int out1[65], out2[65];
  std::string error1, error2;
  std::thread a([&] {
    error1 = run(p, "spin_host", 1, 64, 0, const_cast<int*>(&first), out1);
    second = 4;
  });
  std::thread b([&] { error2 = run(p, "spin_host", 1, 64, 0, const_cast<int*>(&second), out2); });
  usleep(20000);
  first = 3;
  a.join();
  b.join();
  EXPECT_EQ(error1 + error2, "");
  EXPECT_EQ(out1[3], 6);
  EXPECT_EQ(out2[64], 8);
}

TEST_P(Exec, BlocksWaitForEachOther) {
  std::vector<int> flags(200), out(200);
  ASSERT_EQ(run(p, "ping_pong", 200, 64, 0, flags.data(), out.data(), 50), "");
  EXPECT_TRUE(same(out, std::vector<int>(200, 50)));
}

TEST_P(Exec, LanesOfAWarpWaitForEachOther) {
  std::vector<int> flags(32), out(32), want(32);
  ASSERT_EQ(run(p, "lane_spin", 1, 32, 0, flags.data(), out.data()), "");
  for (int i = 0; i < 32; i++) want[i] = i & 1 ? i - 1 + 100 + 1 : 499500;
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, LockByCompareAndSwap) {
  int lock = 0, count = 0;
  ASSERT_EQ(run(p, "lock_test", 3, 96, 0, &lock, &count), "");
  EXPECT_EQ(count, 3 * 96 * 3);
}

TEST_P(Exec, NamedBarriers) {
  std::vector<int> out(20 * 128 + 768), want(out.size());
  ASSERT_EQ(run(p, "named_barriers", 1, 256, 0, out.data()), "");
  for (int k = 0; k < 20; k++)
    for (int l = 0; l < 128; l++) want[k * 128 + l] = k * 1000 + 127 - l;
  for (int t = 0; t < 256; t++) {
    want[2560 + t] = t >= 128;
    want[2560 + 256 + t] = (256 + 2) / 3 * 4 + 2;
    want[2560 + 512 + t] = t / 128 + 1;
  }
  EXPECT_TRUE(same(out, want, 128));
}

TEST_P(Exec, ThreadsThatLeftDontCountAtBarriers) {
  std::vector<int> out(100), want(100);
  ASSERT_EQ(run(p, "partial_exit", 1, 100, 0, out.data()), "");
  for (int i = 0; i < 100; i++) want[i] = i % 5 == 4 ? 0 : 77;
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, VectorAccesses) {
  struct alignas(16) Int4 {
    int x, y, z, w;
  };
  struct alignas(16) Long2 {
    long long x, y;
  };
  std::vector<Int4> a(64), b(64);
  std::vector<Long2> c(64), d(64);
  std::vector<unsigned> e(64), f(64);
  auto any = [&] { return static_cast<int>(rng()); };
  for (int i = 0; i < 64; i++) {
    a[i] = {any(), any(), any(), any()};
    c[i] = {static_cast<long long>(rng()) << 20, static_cast<long long>(rng())};
    e[i] = rng();
  }
  ASSERT_EQ(run(p, "vectors", 1, 64, 0, a.data(), b.data(), c.data(), d.data(), e.data(), f.data()), "");
  for (int i = 0; i < 64; i++) {
    EXPECT_EQ(static_cast<unsigned>(b[i].x), static_cast<unsigned>(a[i].x) + static_cast<unsigned>(a[i].w));
    EXPECT_EQ(b[i].y, a[i].y ^ a[i].z);
    EXPECT_EQ(b[i].z, a[i].z);
    EXPECT_EQ(b[i].w, a[i].w);
    uint64_t low = static_cast<uint64_t>(c[i].y), high = static_cast<uint64_t>(c[i].x);
    EXPECT_EQ(static_cast<uint64_t>(d[i].x),
              low + high + static_cast<uint32_t>(low) + (low >> 32) + static_cast<uint32_t>(high) + (high >> 32));
    EXPECT_EQ(d[i].y, c[i].x);
    unsigned char q[4];
    short s[2];
    memcpy(q, &e[i], 4);
    memcpy(s, &f[i], 4);
    EXPECT_EQ(s[0], q[0] + q[1]);
    EXPECT_EQ(s[1], q[2] - q[3]);
  }
}

TEST_P(Exec, Atomics) {
  const int n = 1024;
  std::vector<int> i(8);
  std::vector<unsigned> u(5 + n + 1);
  uint64_t q[3] = {0, 0, 0};
  float f = 0;
  double d[2] = {0, 0};
  i[4] = -1;
  u[1] = 3;
  u[2] = ~0u;
  ASSERT_EQ(run(p, "atomics", 8, 128, 0, i.data(), u.data(), q, &f, d), "");
  int x = 0, conjunction = -1, disjunction = 0;
  unsigned inc = 0, dec = 3;
  float float_sum = 0;
  double double_sum = 0;
  uint64_t long_sum = 0;
  for (int t = 0; t < n; t++) {
    x ^= t;
    conjunction &= ~(t & 8);
    disjunction |= t;
    inc = inc >= 9 ? 0 : inc + 1;
    dec = (dec == 0 || dec > 6) ? 6 : dec - 1;
    float_sum += 0.5f * static_cast<float>(t);
    double_sum += 0.25 * t;
    long_sum += static_cast<uint64_t>(t) << 32;
  }
  EXPECT_EQ(i[0], n * (n - 1) / 2);
  EXPECT_EQ(i[1], 1 - n);
  EXPECT_EQ(i[2], n - 1);
  EXPECT_EQ(i[3], x);
  EXPECT_EQ(i[4], conjunction);
  EXPECT_EQ(i[5], disjunction);
  EXPECT_EQ(u[0], inc);
  EXPECT_EQ(u[1], dec);
  EXPECT_EQ(u[2], 4000000000u - (n - 1));
  EXPECT_EQ(u[3], 3000000000u + n - 1);
  EXPECT_EQ(q[0], long_sum);
  EXPECT_EQ(q[1], (n - 1) * 5000000000ull);
  EXPECT_NE(q[2], 0u);
  EXPECT_EQ(f, float_sum);
  EXPECT_EQ(d[0], double_sum);
  EXPECT_EQ(d[1], n);
  std::vector<unsigned> tickets(u.begin() + 4, u.begin() + 4 + n), all(n);
  std::sort(tickets.begin(), tickets.end());
  for (unsigned t = 0; t < n; t++) all[t] = t;
  EXPECT_TRUE(same(tickets, all));
}

TEST_P(Exec, Printf) {
  ::testing::internal::CaptureStdout();
  std::string error = run(p, "print_it", 1, 32, 0, 7);
  fflush(stdout);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "t0 x=7 str 10.50 123456789abc z%\nt1 x=7 str 10.50 123456789abc z%\n");
  EXPECT_EQ(error, "");
}

TEST_P(Exec, StructuresByValue) {
  struct Big {
    int a[20];
    double d;
    char c[7];
  };
  Big in;
  memset(static_cast<void*>(&in), 0, sizeof in);
  for (int i = 0; i < 20; i++) in.a[i] = i * i;
  in.d = 1.25;
  memcpy(in.c, "abcdef", 7);
  std::vector<Big> out(40);
  ASSERT_EQ(run(p, "structs", 1, 40, 0, in, out.data()), "");
  for (int t = 0; t < 40; t++) {
    Big want = in;
    for (int i = 0; i < 20; i++) want.a[i] = want.a[19 - i] + t;
    want.d *= 2;
    want.c[t % 7] = 'x';
    EXPECT_EQ(memcmp(want.a, out[t].a, sizeof want.a), 0) << t;
    EXPECT_EQ(want.d, out[t].d) << t;
    EXPECT_EQ(memcmp(want.c, out[t].c, 7), 0) << t;
  }
}

TEST_P(Exec, LocalMemory) {
  std::vector<int> index(64), out(70), want(70);
  for (int& x : index) x = static_cast<int>(rng() & 255);
  ASSERT_EQ(run(p, "local_mem", 1, 70, 0, index.data(), out.data()), "");
  for (int t = 0; t < 70; t++) {
    int a[64], sum = 0;
    for (int i = 0; i < 64; i++) a[i] = i * t;
    for (int i = 0; i < 64; i++) {
      a[index[i] & 63] += i;
      sum += a[(index[i] * 7) & 63];
    }
    want[t] = sum;
  }
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, WholeGridWaits) {
  std::vector<int> a(40), out(40);
  ASSERT_EQ(run(p, "grid_sync", 40, 64, 0, a.data(), out.data()), "");
  EXPECT_TRUE(same(out, std::vector<int>(40, 820)));
}

TEST_P(Exec, VariablesAndKernelInformation) {
  std::vector<int> out(1);
  ASSERT_EQ(run(p, "globals", 1, 1, 0, out.data()), "");
  EXPECT_EQ(out[0], 42);
  size_t size = 0;
  auto* v = static_cast<int*>(global_address(p, "gvar", &size));
  ASSERT_NE(v, nullptr);
  EXPECT_EQ(*v, 50);
  EXPECT_EQ(size, 4u);
  EXPECT_EQ(global_address(p, "nothing", nullptr), nullptr);
  KernelInfo k;
  ASSERT_TRUE(kernel_info(p, "named_barriers", &k));
  EXPECT_EQ(k.params.size(), 1u);
  EXPECT_EQ(k.param_bytes, 8u);
  EXPECT_EQ(k.static_shared_bytes, 520u);
  ASSERT_TRUE(kernel_info(p, "structs", &k));
  ASSERT_EQ(k.params.size(), 2u);
  EXPECT_EQ(k.params[1].offset, 96u);
  EXPECT_FALSE(kernel_info(p, "no", &k));
}

TEST_P(Exec, Recursion) {
  std::vector<int> out(32), want(32);
  ASSERT_EQ(run(p, "recurse", 1, 32, 0, out.data()), "");
  for (int t = 0; t < 32; t++) {
    want[t] = 1;
    for (int k = 2; k <= t % 10; k++) want[t] *= k;
  }
  EXPECT_TRUE(same(out, want));
}

TEST_P(Exec, WarpsHandDataAndFlagOnInOneStore) {
  const int blocks = 24, warps = blocks * 8, rounds = 40;
  struct alignas(16) Slot {
    uint64_t v[2];
  };
  std::vector<Slot> slots((rounds + 1) * warps * 32 / 2);
  std::vector<unsigned> out(warps * 32), want(warps * 32), next(warps * 32);
  for (int w = 0; w < warps; w++)
    for (int l = 0; l < 32; l++) want[w * 32 + l] = static_cast<unsigned>(w + l);
  for (int r = 0; r < rounds; r++) {
    for (int w = 0; w < warps; w++)
      for (int l = 0; l < 32; l++) next[((w + 1) % warps) * 32 + l] = want[w * 32 + l] * 3 + 1;
    want = next;
  }
  ASSERT_EQ(run(p, "warp_ring", blocks, 256, 0, slots.data(), out.data(), 0, rounds), "");
  EXPECT_TRUE(same(out, want, 32));
}

}  // namespace
}  // namespace standin::ptx::test
