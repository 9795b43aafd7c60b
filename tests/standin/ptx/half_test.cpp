// Half, bfloat16 and the 8-bit formats against exact arithmetic and table look-up.
#include <algorithm>
#include <climits>

#include "small_float.hpp"
#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Half : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"half"});
  Program& p = *program;
};
FOR_ARCHITECTURES(Half, 75, 80, 90, 120);

// A float with the given upper half.
float spread(uint32_t i) {
  return bits<float>(i << 16 | ((i * 40503u) & 0xffff));
}

int to_int(double v, double least, double most) {
  return static_cast<int>(static_cast<long long>(std::clamp(v, least, most)));
}

// Counts values that differ; any not-a-number is as good as another.
class Tally {
 public:
  void half(const char* what, uint32_t i, uint16_t got, uint32_t want) { compare(what, i, half_format(), got, want); }
  void bfloat16(const char* what, uint32_t i, uint16_t got, uint32_t want) {
    compare(what, i, bfloat16_format(), got, want);
  }
  void compare(const char* what, uint32_t i, const SmallFloat& f, uint32_t got, uint32_t want) {
    exact(what, i, f.is_nan(got) && f.is_nan(want) ? want : got, want);
  }
  void exact(const char* what, uint32_t i, uint32_t got, uint32_t want) {
    if (got == want || differences_++ > 10) return;
    ADD_FAILURE() << what << " of pattern " << std::hex << i << ": got " << got << ", want " << want;
  }

 private:
  int differences_ = 0;
};

TEST_P(Half, ConversionsOfEveryPattern) {
  std::vector<uint16_t> out(65536 * 32);
  ASSERT_EQ(run(p, "half_conv", 256, 256, 0, out.data()), "");
  const SmallFloat &h = half_format(), &b = bfloat16_format();
  Tally tally;
  for (uint32_t i = 0; i < 65536; i++) {
    const uint16_t* o = &out[i * 32];
    auto wide = [&](int k) { return o[2 * k] | static_cast<uint32_t>(o[2 * k + 1]) << 16; };
    double half = h.value(i), bf = b.value(i), w = spread(i);
    if (!std::isnan(half)) tally.exact("half to float", i, wide(0), bits<uint32_t>(static_cast<float>(half)));
    if (!std::isnan(bf)) tally.exact("bfloat16 to float", i, wide(1), i << 16);
    const Mode modes[] = {Mode::kNearest, Mode::kZero, Mode::kUp, Mode::kDown};
    for (int k = 0; k < 4; k++) {
      tally.half("float to half", i, o[4 + k], h.round(w, modes[k]));
      tally.bfloat16("float to bfloat16", i, o[8 + k], b.round(w, modes[k]));
    }
    if (!std::isnan(half)) {
      tally.exact("half to short", i, o[12], static_cast<uint16_t>(to_int(std::nearbyint(half), -32768, 32767)));
      tally.exact("half to unsigned short", i, o[13], static_cast<uint16_t>(to_int(std::trunc(half), 0, 65535)));
      tally.exact("half to int", i, wide(7), static_cast<uint32_t>(to_int(std::floor(half), INT_MIN, INT_MAX)));
    }
    if (!std::isnan(bf))
      tally.exact("bfloat16 to int", i, wide(9), static_cast<uint32_t>(to_int(std::nearbyint(bf), INT_MIN, INT_MAX)));
    tally.half("short to half", i, o[16], h.round(static_cast<int16_t>(i), Mode::kNearest));
    tally.half("unsigned short to half", i, o[17], h.round(i, Mode::kZero));
    tally.bfloat16("int to bfloat16", i, o[20], b.round(static_cast<int>(i * 77777u), Mode::kNearest));
    tally.half("int to half", i, o[21], h.round(static_cast<int>(i) - 32768, Mode::kNearest));
    volatile double longer = w * 1.0000001;
    tally.half("double to half", i, o[22], h.round(longer, Mode::kNearest));
    tally.bfloat16("double to bfloat16", i, o[23], b.round(longer, Mode::kNearest));
    tally.half("nearest integer", i, o[24], h.round(std::nearbyint(half), Mode::kNearest));
    tally.half("floor", i, o[25], h.round(std::floor(half), Mode::kNearest));
    tally.half("pair of halves, low", i, o[26], h.round(w, Mode::kNearest));
    tally.half("pair of halves, high", i, o[27], h.round(-w, Mode::kNearest));
    tally.bfloat16("pair of bfloat16, low", i, o[28], b.round(w, Mode::kNearest));
    tally.bfloat16("pair of bfloat16, high", i, o[29], b.round(-w, Mode::kNearest));
  }
}

double smaller(double a, double b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a < b || std::signbit(a) > std::signbit(b) ? a : b;
}
double greater(double a, double b) {
  return smaller(a, b) == a && !std::isnan(a) && !std::isnan(b) && std::signbit(a) == std::signbit(smaller(a, b)) ? b
         : std::isnan(b)                                                                                          ? a
         : std::isnan(a)                                                                                          ? b
                                                                                                                  : a;
}

class HalfArithmetic : public Half {};
// Older architectures have no bfloat16 arithmetic; the compiler's replacement rounds twice.
FOR_ARCHITECTURES(HalfArithmetic, 80, 90, 120);

TEST_P(HalfArithmetic, RandomOperands) {
  const int n = 60000;
  std::vector<uint16_t> x(3 * n), out(24 * n);
  for (int i = 0; i < n; i++)
    for (int k = 0; k < 3; k++) {
      uint16_t v = static_cast<uint16_t>(rng());
      // two in three have exponents near each other, so that sums round
      if (i % 3 == 1) v = static_cast<uint16_t>((v & 0x83ff) | (10 + rng() % 12) << 10);
      if (i % 3 == 2) v = static_cast<uint16_t>((v & 0x807f) | (118 + rng() % 20) << 7);
      x[3 * i + k] = v;
    }
  ASSERT_EQ(run(p, "half_arith", (n + 255) / 256, 256, 0, x.data(), out.data(), n), "");
  const SmallFloat &h = half_format(), &b = bfloat16_format();
  Tally tally;
  auto nearest = [](const SmallFloat& f, Wide v) { return f.round(v, Mode::kNearest); };
  for (int i = 0; i < n; i++) {
    const uint16_t *o = &out[24 * i], ua = x[3 * i], ub = x[3 * i + 1], uc = x[3 * i + 2];
    uint32_t at = static_cast<uint32_t>(i);
    double A = h.value(ua), B = h.value(ub), C = h.value(uc);
    auto fma = [&](double p1, double p2, double c) {  // exact: at most 80 bits
      double inexact = p1 * p2 + c;
      return std::isfinite(inexact) ? static_cast<Wide>(p1) * p2 + c : static_cast<Wide>(inexact);
    };
    tally.half("add", at, o[0], nearest(h, A + B));
    tally.half("mul", at, o[1], nearest(h, A * B));
    tally.half("sub", at, o[3], nearest(h, A - B));
    tally.half("min", at, o[4], nearest(h, smaller(A, B)));
    tally.half("max", at, o[5], nearest(h, greater(A, B)));
    tally.exact("comparisons", at, o[6],
                static_cast<uint32_t>((A < B) | (A == B) << 1 | static_cast<int>(!(A < B)) << 2));
    tally.half("abs", at, o[7], ua & 0x7fffu);
    if (fma(A, B, C) != 0) tally.half("fma", at, o[2], nearest(h, fma(A, B, C)));
    if (fma(A, B, A) != 0) tally.half("fma pair, low", at, o[8], nearest(h, fma(A, B, A)));
    if (fma(B, C, B) != 0) tally.half("fma pair, high", at, o[9], nearest(h, fma(B, C, B)));
    tally.half("add pair, low", at, o[10], nearest(h, A + B));
    tally.half("add pair, high", at, o[11], nearest(h, B + C));
    tally.exact("greater, low", at, o[20], A > B ? 0x3c00 : 0);
    tally.exact("greater, high", at, o[21], B > C ? 0x3c00 : 0);
    tally.exact("equal pair", at, o[22], A == A && B == B);
    tally.half("neg", at, o[23], ua ^ 0x8000u);
    double D = b.value(ua), E = b.value(ub), F = b.value(uc);
    tally.bfloat16("bfloat16 mul", at, o[13], nearest(b, static_cast<Wide>(D) * E));
    tally.bfloat16("bfloat16 max", at, o[15], nearest(b, greater(D, E)));
    tally.bfloat16("bfloat16 mul pair, low", at, o[18], nearest(b, static_cast<Wide>(D) * E));
    tally.bfloat16("bfloat16 mul pair, high", at, o[19], nearest(b, static_cast<Wide>(E) * F));
    if (i % 3 != 2) continue;  // sums of far exponents have no exact reference here
    tally.bfloat16("bfloat16 add", at, o[12], nearest(b, static_cast<Wide>(D) + E));
    if (fma(D, E, F) != 0) tally.bfloat16("bfloat16 fma", at, o[14], nearest(b, fma(D, E, F)));
    tally.bfloat16("bfloat16 fma pair, low", at, o[16], nearest(b, fma(D, E, D)));
    tally.bfloat16("bfloat16 fma pair, high", at, o[17], nearest(b, fma(E, F, E)));
  }
}

TEST_P(Half, EightBitFormats) {
  std::vector<uint16_t> out(65536 * 4);
  ASSERT_EQ(run(p, "fp8_conv", 256, 256, 0, out.data()), "");
  const SmallFloat e4m3(3, 4, true), e5m2(2, 5);
  Tally tally;
  for (uint32_t i = 0; i < 65536; i++) {
    const uint16_t* o = &out[i * 4];
    double w = spread(i);
    tally.compare("float to e4m3", i, e4m3, o[0], e4m3.round(w, Mode::kNearest, true));
    tally.compare("float to e5m2", i, e5m2, o[1], e5m2.round(w, Mode::kNearest, true));
    tally.half("e4m3 to half", i, o[2], half_format().round(e4m3.value(i & 0xff), Mode::kNearest));
    tally.half("e5m2 to half", i, o[3], half_format().round(e5m2.value(i & 0xff), Mode::kNearest));
  }
}

TEST_P(Half, Atomics) {
  uint32_t pair = 0, bpair = 0;
  uint16_t single[2] = {0, 0};
  ASSERT_EQ(run(p, "half_atomics", 1, 64, 0, &pair, &bpair, single), "");
  auto h = [](double v) { return half_format().round(v, Mode::kNearest); };
  auto b = [](double v) { return bfloat16_format().round(v, Mode::kNearest); };
  EXPECT_EQ(pair, h(32) << 16 | h(64));
  EXPECT_EQ(bpair, b(128) << 16 | b(64));
  EXPECT_EQ(single[0], h(64));
  EXPECT_EQ(single[1], 0);
}

}  // namespace
}  // namespace standin::ptx::test
