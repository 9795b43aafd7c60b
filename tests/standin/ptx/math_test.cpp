// Integer, single and double precision arithmetic against the processor's own.
#include <cfenv>
#include <climits>
#include <cmath>

#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Math : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"math"});
  Program& p = *program;
};
FOR_ARCHITECTURES(Math, 75, 80, 90, 120);

using Uint128 = unsigned __int128;

template <class U>
U reversed(U x) {
  U r = 0;
  for (size_t k = 0; k < sizeof(U) * 8; k++) r |= ((x >> k) & 1) << (sizeof(U) * 8 - 1 - k);
  return r;
}

TEST_P(Math, Integers) {
  const int n = 4000;
  std::vector<int> a(n), b(n);
  std::vector<int64_t> out(n * 32), want(n * 32);
  const int special[] = {0, 1, -1, INT_MIN, INT_MAX, 2, 31, 32, 33, -32};
  for (int i = 0; i < n; i++) {
    a[i] = i < 100 ? special[i % 10] : static_cast<int>(rng()) >> (rng() % 32);
    b[i] = i < 100 ? special[i / 10] : static_cast<int>(rng()) >> (rng() % 32);
  }
  ASSERT_EQ(run(p, "int_ops", (n + 127) / 128, 128, 0, a.data(), b.data(), out.data(), n), "");
  for (int i = 0; i < n; i++) {
    int x = a[i], y = b[i];
    auto ux = static_cast<uint32_t>(x), uy = static_cast<uint32_t>(y);
    auto X = static_cast<int64_t>(static_cast<uint64_t>(x) * 1000003u + static_cast<uint64_t>(y));
    auto Y = static_cast<int64_t>(static_cast<uint64_t>(y) * 77777u - static_cast<uint64_t>(x));
    auto UX = static_cast<uint64_t>(X), UY = static_cast<uint64_t>(Y);
    bool divides = y != 0 && !(x == INT_MIN && y == -1);
    int64_t* q = &want[i * 32];
    q[0] = divides ? x / y : 0;
    q[1] = divides ? x % y : 0;
    q[2] = uy ? ux / uy : 0;
    q[3] = uy ? ux % uy : 0;
    q[4] = static_cast<int>((static_cast<int64_t>(x) * y) >> 32);
    q[5] = static_cast<int64_t>((static_cast<uint64_t>(ux) * uy) >> 32);
    q[6] = static_cast<int64_t>((static_cast<__int128>(X) * Y) >> 64);
    q[7] = static_cast<int64_t>((static_cast<Uint128>(UX) * UY) >> 64);
    q[8] = Y ? X / Y : 0;
    q[9] = static_cast<int64_t>(UY ? UX % UY : 0);
    q[10] = x ? __builtin_clz(ux) : 32;
    q[11] = __builtin_popcount(ux);
    q[12] = reversed(ux);
    q[13] = __builtin_ffs(x);
    q[14] = X ? __builtin_clzll(UX) : 64;
    q[15] = __builtin_popcountll(UX);
    q[16] = static_cast<int64_t>(reversed(UX));
    q[17] = __builtin_ffsll(X);
    unsigned char bytes[8];
    memcpy(bytes, &ux, 4);
    memcpy(bytes + 4, &uy, 4);
    q[18] = bytes[0] | bytes[4] << 8 | bytes[1] << 16 | static_cast<int64_t>(bytes[5]) << 24;
    uint64_t both = static_cast<uint64_t>(uy) << 32 | ux;
    q[19] = static_cast<int64_t>((both << (y & 31)) >> 32);
    q[20] = static_cast<uint32_t>(both >> (x & 31));
    q[21] = static_cast<uint32_t>((both << std::min(y & 63, 32)) >> 32);
    q[22] = 5 + static_cast<uint32_t>(x > y ? ux - uy : uy - ux);
    q[22] = static_cast<uint32_t>(q[22]);
    int dot = 7;
    uint32_t udot = 7;
    for (int k = 0; k < 32; k += 8) {
      dot += static_cast<signed char>(x >> k) * static_cast<signed char>(y >> k);
      udot += ((ux >> k) & 255) * ((uy >> k) & 255);
    }
    q[23] = dot;
    q[24] = udot;
    q[25] = (x & y) ^ (~x | (y >> 3));
    q[26] = static_cast<int64_t>(static_cast<uint64_t>(X >> (y & 63)) + (UX >> (x & 63)));
    q[27] = static_cast<signed char>(x) * static_cast<short>(y);
    q[28] = static_cast<uint32_t>(static_cast<uint32_t>(std::min(x, y)) + std::max(ux, uy));
    q[29] = static_cast<int>(x < 0 ? 0u - ux : ux);
    q[30] = (static_cast<int64_t>(x) + y) >> 1;
    q[31] = std::min(static_cast<int>(ux + uy), 17);
  }
  EXPECT_TRUE(same(out, want, 32));
}

TEST_P(Math, CarriesAndWideProducts) {
  uint64_t a[2] = {~0ull, 5}, b[2] = {7, 0xfedcba9876543210ull};
  std::vector<uint64_t> c(6);
  ASSERT_EQ(run(p, "add128", 1, 1, 0, a, b, c.data()), "");
  Uint128 x = static_cast<Uint128>(a[1]) << 64 | a[0], y = static_cast<Uint128>(b[1]) << 64 | b[0];
  std::vector<uint64_t> want;
  for (Uint128 v : {x + y, x - y, x * y})
    want.insert(want.end(), {static_cast<uint64_t>(v), static_cast<uint64_t>(v >> 64)});
  EXPECT_TRUE(same(c, want));
}

template <class F>
float rounded(int mode, F f) {
  fesetround(mode);
  volatile float v = f();
  fesetround(FE_TONEAREST);
  return v;
}
double limited(double v, double least, double most) {
  return v != v ? 0 : std::min(std::max(v, least), most);
}
float least_of(float x, float y) {
  return std::isnan(x) ? y : std::isnan(y) ? x : x < y ? x : y < x ? y : std::signbit(x) ? x : y;
}
float most_of(float x, float y) {
  return -least_of(-x, -y);
}

TEST_P(Math, SinglePrecision) {
  const int n = 20000;
  std::vector<float> a(n), b(n), c(n), out(n * 32);
  const uint32_t special[] = {0,          0x80000000, 1,          0x80000001, 0x7f800000, 0xff800000, 0x7fc00001,
                              0x3f800000, 0xbf800000, 0x7f7fffff, 0x00800000, 0x4f000000, 0xcf000000, 0x3f000000};
  auto any = [&](int i) {
    uint32_t u = rng();
    if (i < 196 * 8)
      u = special[rng() % 14];
    else if (i % 2)
      u = (u & 0x807fffff) | (120 + rng() % 16) << 23;
    return bits<float>(u);
  };
  for (int i = 0; i < n; i++) {
    a[i] = any(i);
    b[i] = any(i);
    c[i] = any(i);
  }
  ASSERT_EQ(run(p, "float_ops", (n + 255) / 256, 256, 0, a.data(), b.data(), c.data(), out.data(), n), "");
  int differences = 0;
  for (int i = 0; i < n && differences < 10; i++) {
    volatile float x = a[i], y = b[i], z = c[i];
    float X = x, Y = y;
    const float* got = &out[i * 32];
    auto exact = [&](int k, float want) {
      bool good = std::isnan(want) ? std::isnan(got[k]) : bits<uint32_t>(got[k]) == bits<uint32_t>(want);
      if (good) return;
      differences++;
      ADD_FAILURE() << "column " << k << " of (" << X << ", " << Y << ", " << c[i] << "): got " << got[k] << ", want "
                    << want;
    };
    auto close = [&](int k, double want, double slack) {
      bool good = std::isnan(want) ? std::isnan(got[k])
                                   : got[k] == static_cast<float>(want) || std::fabs(got[k] - want) <= slack;
      if (good) return;
      differences++;
      ADD_FAILURE() << "column " << k << " of " << X << ": got " << got[k] << ", want " << want;
    };
    exact(0, x + y);
    exact(1, x * y);
    exact(2, std::fma(X, Y, c[i]));
    exact(3, x / y);
    exact(4, std::sqrt(X));
    exact(5, 1.0f / x);
    exact(6, rounded(FE_TOWARDZERO, [&] { return x + y; }));
    exact(7, rounded(FE_UPWARD, [&] { return x + y; }));
    exact(8, rounded(FE_DOWNWARD, [&] { return x + y; }));
    exact(9, rounded(FE_TOWARDZERO, [&] { return x * y; }));
    exact(10, rounded(FE_UPWARD, [&] { return fmaf(x, y, z); }));
    exact(11, rounded(FE_DOWNWARD, [&] { return x / y; }));
    exact(12, rounded(FE_TOWARDZERO, [&] { return sqrtf(x); }));
    exact(13, least_of(X, Y));
    exact(14, most_of(X, Y));
    exact(15, std::floor(X));
    exact(16, std::nearbyint(X));
    exact(17, std::trunc(X));
    exact(18, std::ceil(X));
    exact(19, static_cast<float>(static_cast<int>(limited(std::trunc(X), INT_MIN, INT_MAX))));
    exact(20, bits<float>(static_cast<int>(limited(std::nearbyint(X), INT_MIN, INT_MAX))));
    // not-a-number may have any payload only in floating-point results, these two columns are integers
    EXPECT_EQ(bits<uint32_t>(got[21]), static_cast<uint32_t>(limited(std::ceil(X), 0, UINT_MAX)));
    if (!std::isnan(X)) {
      double t = std::trunc(X);
      int64_t l = t >= 0x1p63 ? INT64_MAX : t <= -0x1p63 ? INT64_MIN : static_cast<int64_t>(t);
      exact(22, static_cast<float>(l));
    }
    exact(23, std::isnan(X) || X <= 0 ? 0.f : std::min(X, 1.f));
    exact(24, static_cast<float>(static_cast<double>(X) * Y));
    exact(25, rounded(FE_TOWARDZERO, [&] {
            volatile double d = static_cast<double>(X) * Y;
            return static_cast<float>(d);
          }));
    exact(28, X < Y ? 1.f : X == Y ? 2.f : 3.f);
    exact(29, std::isnan(X));
    exact(30, x - y);
    volatile float scaled = x * 0.01f;
    close(26, std::exp(static_cast<double>(scaled)), 4e-6 * std::exp(static_cast<double>(scaled)) + 1e-37);
    if (std::fabs(X) <= 1e6f || !std::isfinite(X)) close(27, std::sin(static_cast<double>(scaled)), 2e-6);
    double logarithm = std::log(std::fabs(static_cast<double>(X)));
    close(31, logarithm, 4e-6 * std::fabs(logarithm) + 1e-37);
  }
}

TEST_P(Math, DoublePrecision) {
  const int n = 8000;
  std::vector<double> a(n), b(n), c(n), out(n * 16);
  auto any = [&](int i) {
    uint64_t u = static_cast<uint64_t>(rng()) << 32 | rng();
    if (i % 2) u = (u & 0x800fffffffffffffull) | static_cast<uint64_t>(1015 + rng() % 40) << 52;
    double v = bits<double>(u);
    return std::isnan(v) ? 1 : v;
  };
  for (int i = 0; i < n; i++) {
    a[i] = any(i);
    b[i] = any(i);
    c[i] = any(i);
  }
  a[0] = INFINITY;
  b[1] = 0;
  ASSERT_EQ(run(p, "double_ops", (n + 255) / 256, 256, 0, a.data(), b.data(), c.data(), out.data(), n), "");
  int differences = 0;
  for (int i = 0; i < n && differences < 10; i++) {
    volatile double x = a[i], y = b[i];
    double X = x, Y = y, magnitude = std::fabs(X);
    const double* got = &out[i * 16];
    auto close = [&](int k, double want, double relative) {
      bool good = std::isnan(want) ? std::isnan(got[k])
                                   : got[k] == want || std::fabs(got[k] - want) <= relative * std::fabs(want);
      if (good) return;
      differences++;
      ADD_FAILURE() << "column " << k << " of (" << X << ", " << Y << "): got " << got[k] << ", want " << want;
    };
    auto in_mode = [&](int mode, auto f) {
      fesetround(mode);
      volatile double v = f();
      fesetround(FE_TONEAREST);
      return static_cast<double>(v);
    };
    close(0, x + y, 0);
    close(1, x * y, 0);
    close(2, std::fma(X, Y, c[i]), 0);
    close(3, x / y, 0);
    close(4, std::sqrt(X), 0);
    close(6, X >= 0x1p63 ? 0x1p63 : X <= -0x1p63 ? -0x1p63 : static_cast<double>(static_cast<int64_t>(X)), 0);
    close(7, std::floor(X), 0);
    close(8, X < Y ? X : Y, 0);
    close(9, magnitude >= 0x1p64 ? 0x1p64 : static_cast<double>(static_cast<uint64_t>(magnitude)), 0);
    close(10, in_mode(FE_UPWARD, [&] { return x + y; }), 0);
    close(11, in_mode(FE_TOWARDZERO, [&] { return x / y; }), 0);
    close(13, static_cast<float>(X), 0);
    close(5, std::exp(X * 0.01), 1e-14);
    close(12, std::sin(X), 1e-14);
    close(14, std::log(magnitude + 1), 1e-14);
    close(15, std::pow(magnitude, 0.3), 1e-14);
  }
}

TEST_P(Math, FlushToZero) {
  const uint32_t a[6] = {0x00000001, 0x00400000, 0x00800000, 0x80000001, 0x00800000, 0x3f800000};
  const uint32_t b[6] = {0x3f800000, 0x3f800000, 0x3f000000, 0x00000000, 0x80800001, 0x00000007};
  std::vector<uint32_t> out(24), want(24);
  ASSERT_EQ(run(p, "ftz_ops", 1, 6, 0, a, b, out.data()), "");
  auto value = [](uint32_t x) { return bits<float>(x); };
  auto flushed = [](uint32_t x) { return x & 0x7f800000 ? x : x & 0x80000000; };
  for (int i = 0; i < 6; i++) {
    float x = value(flushed(a[i])), y = value(flushed(b[i]));
    want[4 * i] = flushed(bits<uint32_t>(x + y));
    want[4 * i + 1] = flushed(bits<uint32_t>(x * y));
    want[4 * i + 2] = bits<uint32_t>(value(a[i]) * value(b[i]));
    want[4 * i + 3] = bits<uint32_t>(x == 0 ? 1.f : 0.f);
  }
  EXPECT_TRUE(same(out, want, 4));
}

}  // namespace
}  // namespace standin::ptx::test
