// Single instructions that kernels of this project or its compilers use.
#include <algorithm>
#include <cmath>
#include <set>

#include "small_float.hpp"
#include "test_support.hpp"

namespace standin::ptx::test {
namespace {

class Instruction : public Interpreter {
 protected:
  std::shared_ptr<Program> program = load({"instruction"});
  Program& p = *program;
  std::vector<uint32_t> random_words(size_t n) {
    std::vector<uint32_t> v(n);
    for (auto& x : v) x = rng();
    return v;
  }
};
FOR_ARCHITECTURES(Instruction, 75, 80, 90, 100, 120);

TEST_P(Instruction, AcquireSeesWhatReleasePublished) {
  const int rounds = 200;
  std::vector<uint64_t> slots(16), out(rounds), want(rounds);
  for (int r = 0; r < rounds; r++) want[r] = (r + 1) * 1000;
  ASSERT_EQ(run(p, "acquire_release", 2, 1, 0, slots.data(), out.data(), rounds), "");
  EXPECT_TRUE(same(out, want));
}

TEST_P(Instruction, AtomicForms) {
  const uint32_t blocks = 4, threads = 96, n = blocks * threads;
  std::vector<uint32_t> w(16), old(2 * n);
  uint64_t q[2] = {0, static_cast<uint64_t>(INT64_MIN)};
  float f = 0;
  double d = 0;
  w[4] = 0xffffffff;
  ASSERT_EQ(run(p, "atomic_forms", blocks, threads, 0, w.data(), q, &f, &d, old.data()), "");
  uint32_t parity = 0, inc = 0, dec = 0, block_sums = 0;
  for (uint32_t t = 0; t < n; t++) {
    parity ^= t * 2654435761u;
    inc = inc >= 6 ? 0 : inc + 1;
    dec = dec == 0 || dec > 6 ? 6 : dec - 1;
    block_sums += t;
  }
  EXPECT_EQ(w[0], n * (n - 1) / 2);
  EXPECT_EQ(w[1], n - 1);
  EXPECT_EQ(static_cast<int>(w[2]), 1 - static_cast<int>(n));
  EXPECT_EQ(w[3], 0xffffffffu);
  EXPECT_EQ(w[4], 0xffff0000u);
  EXPECT_EQ(w[5], parity);
  EXPECT_EQ(w[6], inc);
  EXPECT_EQ(w[7], dec);
  EXPECT_EQ(w[8], n);
  EXPECT_EQ(w[10], 3 * n);
  EXPECT_EQ(w[11], block_sums);
  uint32_t maxima = 0;
  for (uint32_t b = 1; b <= blocks; b++) maxima += b * threads - 1;
  EXPECT_EQ(w[12], maxima);
  EXPECT_EQ(q[0], static_cast<uint64_t>(n) * (n - 1) / 2 << 33);
  EXPECT_EQ(static_cast<int64_t>(q[1]), static_cast<int64_t>(n) - 1 - 5000000000ll);
  EXPECT_EQ(f, 0.25f * n * (n - 1));
  EXPECT_EQ(d, 0.125 * n * (n - 1));
  // each thread got a ticket of its own; the exchanges form one chain from 0 to what is left
  std::set<uint32_t> tickets(old.begin(), old.begin() + n), exchanged(old.begin() + n, old.end());
  EXPECT_EQ(tickets.size(), n);
  EXPECT_EQ(*tickets.rbegin(), n - 1);
  exchanged.insert(w[9]);
  EXPECT_EQ(exchanged.size(), n + 1u);
  EXPECT_EQ(*exchanged.begin(), 0u);
  EXPECT_EQ(*exchanged.rbegin(), n);
}

TEST_P(Instruction, PermuteAndShift) {
  const int n = 3000;
  std::vector<uint32_t> in = random_words(3 * n), out(12 * n), want(12 * n);
  ASSERT_EQ(run(p, "permute_and_shift", (n + 127) / 128, 128, 0, in.data(), out.data(), n), "");
  for (int i = 0; i < n; i++) {
    uint32_t a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2], *o = &want[12 * i];
    unsigned char byte[8];
    memcpy(byte, &a, 4);
    memcpy(byte + 4, &b, 4);
    auto gather = [&](auto choose) {
      uint32_t r = 0;
      for (int k = 0; k < 4; k++) r |= static_cast<uint32_t>(byte[choose(k)]) << (8 * k);
      return r;
    };
    int s = c & 3, high = s >= 2 ? 2 : 0;
    for (int k = 0; k < 4; k++) {
      uint32_t selector = (c >> (4 * k)) & 15, v = byte[selector & 7];
      if (selector & 8) v = v & 0x80 ? 0xff : 0;
      o[0] |= v << (8 * k);
    }
    o[1] = gather([&](int k) { return s + k; });
    o[2] = gather([&](int k) { return (s - k + 8) % 8; });
    o[3] = gather([&](int) { return s; });
    o[4] = gather([&](int k) { return std::max(s, k); });
    o[5] = gather([&](int k) { return std::min(s, k); });
    // replicates the half word that the lowest selector bit names
    high = s & 1 ? 2 : 0;
    o[6] = gather([&](int k) { return high + (k & 1); });
    uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    o[7] = static_cast<uint32_t>(both << (c & 31) >> 32);
    o[8] = static_cast<uint32_t>(both >> (c & 31));
    o[9] = static_cast<uint32_t>(both << std::min(c, 32u) >> 32);
    o[10] = static_cast<uint32_t>(both >> std::min(c, 32u));
    for (int k = 0; k < 32; k++) {
      int index = static_cast<int>((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1));
      o[11] |= static_cast<uint32_t>(0xd2 >> index & 1) << k;
    }
  }
  EXPECT_TRUE(same(out, want, 12));
}

TEST_P(Instruction, WidenEveryHalf) {
  std::vector<uint32_t> out(2 * 65536);
  ASSERT_EQ(run(p, "widen", 256, 256, 0, out.data()), "");
  int differences = 0;
  for (uint32_t i = 0; i < 65536 && differences < 10; i++)
    for (int k = 0; k < 2; k++) {
      double want = (k ? bfloat16_format() : half_format()).value(i);
      float got = bits<float>(out[2 * i + k]);
      bool good = std::isnan(want) ? std::isnan(got) : bits<uint32_t>(static_cast<float>(want)) == bits<uint32_t>(got);
      differences += !good;
      EXPECT_TRUE(good) << "pattern " << i << ": got " << got << ", want " << want;
    }
}

TEST_P(Instruction, StreamingVectorLoads) {
  struct alignas(16) Float4 {
    float v[4];
  };
  struct alignas(16) Long2 {
    uint64_t v[2];
  };
  std::vector<Float4> in(64), out(64);
  std::vector<Long2> in64(64), out64(64);
  for (int i = 0; i < 64; i++) {
    for (float& x : in[i].v) x = static_cast<float>(rng());
    for (uint64_t& x : in64[i].v) x = static_cast<uint64_t>(rng()) << 32 | rng();
  }
  ASSERT_EQ(run(p, "streaming_loads", 1, 64, 0, in.data(), out.data(), in64.data(), out64.data()), "");
  for (int i = 0; i < 64; i++) {
    for (int k = 0; k < 4; k++) EXPECT_EQ(out[i].v[k], in[i].v[3 - k]);
    for (int k = 0; k < 2; k++) EXPECT_EQ(out64[i].v[k], in64[i].v[1 - k]);
  }
}

class Instruction80 : public Instruction {};
FOR_ARCHITECTURES(Instruction80, 80, 90, 100, 120);

TEST_P(Instruction80, WarpReductions) {
  std::vector<uint32_t> in = random_words(64), out(64 * 8), want(64 * 8);
  ASSERT_EQ(run(p, "warp_reductions", 1, 64, 0, in.data(), out.data()), "");
  for (int warp = 0; warp < 2; warp++) {
    const uint32_t* v = &in[warp * 32];
    uint32_t sum = 0, least = ~0u, all = ~0u, parity = 0, odd_or = 0;
    int most = INT32_MIN, even_least = INT32_MAX;
    for (int l = 0; l < 32; l++) {
      sum += v[l];
      least = std::min(least, v[l]);
      most = std::max(most, static_cast<int>(v[l]));
      all &= v[l];
      parity ^= v[l];
      if (l & 1)
        odd_or |= v[l];
      else
        even_least = std::min(even_least, static_cast<int>(v[l]));
    }
    for (int l = 0; l < 32; l++) {
      uint32_t* o = &want[(warp * 32 + l) * 8];
      o[0] = sum;
      o[1] = least;
      o[2] = static_cast<uint32_t>(most);
      o[3] = all;
      o[4] = parity;
      o[5] = l & 1 ? odd_or : static_cast<uint32_t>(even_least);
    }
  }
  EXPECT_TRUE(same(out, want, 8));
}

// min and max of PTX: NaN propagates with .NaN, else the number wins; .xorsign.abs compares magnitudes and gives the
// result the sign of the operands' product.
double extremum(double a, double b, bool max, bool nan, bool xorsign) {
  bool negative = std::signbit(a) != std::signbit(b);
  if (xorsign) {
    a = std::fabs(a);
    b = std::fabs(b);
  }
  if (std::isnan(a) || std::isnan(b)) {
    if (nan || (std::isnan(a) && std::isnan(b))) return NAN;
    a = b = std::isnan(a) ? b : a;
  }
  bool second = a == b ? std::signbit(b) != max : max ? b > a : b < a;
  double r = second ? b : a;
  return xorsign && negative ? -r : r;
}

class Instruction86 : public Instruction {};
FOR_ARCHITECTURES(Instruction86, 90, 100, 120);

TEST_P(Instruction86, PackedMaxima) {
  const int n = 20000;
  std::vector<uint32_t> in = random_words(2 * n), out(5 * n);
  const uint32_t special[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x7c00, 0xfc00, 0x7e00, 0x3f80, 0xbf80};
  for (int i = 0; i < 4000; i++) in[i] = special[rng() % 10] | special[rng() % 10] << 16;
  ASSERT_EQ(run(p, "packed_maxima", (n + 127) / 128, 128, 0, in.data(), out.data(), n), "");
  struct Column {
    bool bfloat16, max, nan, xorsign;
  };
  const Column columns[4] = {
      {true, true, true, true}, {true, true, true, false}, {false, false, false, true}, {false, true, false, false}};
  int differences = 0;
  for (int i = 0; i < n && differences < 10; i++) {
    uint32_t a = in[2 * i], b = in[2 * i + 1];
    for (int k = 0; k < 4; k++)
      for (int shift = 0; shift < 32; shift += 16) {
        const SmallFloat& f = columns[k].bfloat16 ? bfloat16_format() : half_format();
        double x = f.value(a >> shift & 0xffff), y = f.value(b >> shift & 0xffff);
        double want = extremum(x, y, columns[k].max, columns[k].nan, columns[k].xorsign);
        uint32_t got = out[5 * i + k] >> shift & 0xffff;
        bool good = std::isnan(want) ? f.is_nan(got) : got == f.round(want, Mode::kNearest);
        differences += !good;
        EXPECT_TRUE(good) << "column " << k << " of " << x << ", " << y << ": got " << f.value(got) << ", want "
                          << want;
      }
    double want = extremum(bits<float>(a), bits<float>(b), true, true, true);
    float got = bits<float>(out[5 * i + 4]);
    bool good = std::isnan(want) ? std::isnan(got) : bits<uint32_t>(static_cast<float>(want)) == bits<uint32_t>(got);
    differences += !good;
    EXPECT_TRUE(good) << "single precision: got " << got << ", want " << want;
  }
}

class Instruction100 : public Instruction {};
FOR_ARCHITECTURES(Instruction100, 100, 120);

TEST_P(Instruction100, PairsOfFloats) {
  const int n = 2000;
  std::vector<uint64_t> in(3 * n), out(3 * n), want(3 * n);
  auto any = [&] { return (rng() & 0x807fffffu) | (110 + rng() % 30) << 23; };
  for (auto& x : in) x = static_cast<uint64_t>(any()) << 32 | any();
  ASSERT_EQ(run(p, "float_pairs", (n + 127) / 128, 128, 0, in.data(), out.data(), n), "");
  for (int i = 0; i < n; i++)
    for (int shift = 0; shift < 64; shift += 32) {
      float v[3];
      for (int k = 0; k < 3; k++) v[k] = bits<float>(static_cast<uint32_t>(in[3 * i + k] >> shift));
      volatile float sum = v[0] + v[1], product = v[0] * v[1];
      want[3 * i] |= static_cast<uint64_t>(bits<uint32_t>(std::fma(v[0], v[1], v[2]))) << shift;
      want[3 * i + 1] |= static_cast<uint64_t>(bits<uint32_t>(static_cast<float>(sum))) << shift;
      want[3 * i + 2] |= static_cast<uint64_t>(bits<uint32_t>(static_cast<float>(product))) << shift;
    }
  EXPECT_TRUE(same(out, want, 3));
}

}  // namespace
}  // namespace standin::ptx::test
