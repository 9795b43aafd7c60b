#include "reference.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace gradprobe::test {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// splitmix64 as a generator: state advances by the golden gamma, output is the mixed state.
class SplitMix64 {
 public:
  explicit SplitMix64(u64 seed) : state_(seed) {}
  u64 next() {
    u64 z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

 private:
  u64 state_;
};

struct Hash {
  u32 value;
  u32 top3;  // of the second 64-bit product
};
Hash mum2(u32 x, u32 ka, u32 kb) {
  u64 m = static_cast<u64>(static_cast<u32>(x + ka)) * 0xD2511F53u;
  const u32 a = static_cast<u32>(m >> 32) ^ static_cast<u32>(m) ^ kb;
  m = static_cast<u64>(a) * 0xCD9E8D57u;
  return {static_cast<u32>(m >> 32) ^ static_cast<u32>(m), static_cast<u32>(m >> 61)};
}

struct Place {
  u32 bucket;  // 0 ... 2047
  bool negative;
};
Place place(u64 i, const std::array<u32, 4>& k) {
  const u32 c = static_cast<u32>(i >> 14), u = static_cast<u32>(i >> 11) & 7, p = static_cast<u32>(i) & 2047;
  const Hash w0 = mum2(4 * c, k[2], k[3]);
  const u32 w1 = mum2(4 * c + 1, k[2], k[3]).value;
  const u32 slot = u ^ w0.top3;
  const u32 r8 = ((slot < 4 ? w0.value : w1) >> (8 * (slot & 3))) & 255;
  const u32 bucket = p ^ (r8 << 3) ^ slot;
  const u32 h = mum2(512 * c + 2 * (bucket >> 3) + ((p >> 2) & 1), k[0], k[1]).value;
  return {bucket, ((h >> (8 * (p & 3) + 7 - slot)) & 1) != 0};
}

constexpr std::array<u32, 16> kFoldConstants = {0x000, 0xcc1, 0x6ce, 0xfed, 0xaca, 0x35a, 0x9b5, 0xdd7,
                                                0x636, 0x064, 0xfca, 0x09d, 0xf03, 0xaff, 0x63e, 0x005};

// Position of register position `bucket` in a sketch of k: out[j] = sum over r of bucket r * k + (j ^ fold(r)).
u32 folded(u32 bucket, u32 k) {
  const u32 r = bucket / k;
  return (bucket % k) ^ (kFoldConstants[r] & (k - 1));
}

}  // namespace

double decode(Datatype type, u32 bits) {
  switch (type) {
    case Datatype::f32:
      return static_cast<double>(std::bit_cast<float>(bits));
    case Datatype::bf16:
      return static_cast<double>(std::bit_cast<float>(bits << 16));
    case Datatype::f16: {
      const int exponent = static_cast<int>(bits >> 10 & 31);
      const double fraction = bits & 1023;
      double value;
      if (exponent == 31) {
        value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
      } else if (exponent == 0) {
        value = std::ldexp(fraction, -24);
      } else {
        value = std::ldexp(1024 + fraction, exponent - 25);
      }
      return bits & 0x8000 ? -value : value;
    }
    default:
      return 0;
  }
}

u32 encode(Datatype type, double value) {
  const u32 single = std::bit_cast<u32>(static_cast<float>(value));
  switch (type) {
    case Datatype::f32:
      return single;
    case Datatype::bf16:
      return (single + 0x7fff + (single >> 16 & 1)) >> 16;
    case Datatype::f16: {
      const u32 sign = std::signbit(value) ? 0x8000 : 0;
      const double magnitude = std::fabs(value);
      if (magnitude == 0) return sign;
      int exponent = 0;
      std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [0.5, 1)
      const int field = std::max(exponent + 14, 0);
      const double unit = std::ldexp(1.0, std::max(field, 1) - 25);
      // A fraction that rounds up to 1024 or 2048 carries into the exponent field by itself.
      const u32 fraction = static_cast<u32>(std::nearbyint(magnitude / unit));
      return sign | (field == 0 ? fraction : (static_cast<u32>(field - 1) << 10) + fraction);
    }
    default:
      return 0;
  }
}

Reference measure(Datatype type, std::span<const u32> bits, u32 k, u64 run_key) {
  Reference r;
  r.sketch.assign(k, 0);
  r.magnitudes.assign(k, 0);
  SplitMix64 generator(run_key);
  const u64 a = generator.next(), b = generator.next();
  const std::array<u32, 4> keys = {static_cast<u32>(a), static_cast<u32>(a >> 32), static_cast<u32>(b),
                                   static_cast<u32>(b >> 32)};
  for (u64 i = 0; i < bits.size(); ++i) {
    const double x = decode(type, bits[i]);
    if (!std::isfinite(x)) {
      ++(std::isnan(x) ? r.nan_count : r.inf_count);
      if (r.first_nonfinite == kNone) r.first_nonfinite = i;
      continue;
    }
    r.sum_squares += x * x;
    r.max_abs = std::max(r.max_abs, std::fabs(x));
    r.zero_count += x == 0;
    if (k == 0) continue;
    const Place at = place(i, keys);
    const u32 j = folded(at.bucket, k);
    r.sketch[j] += at.negative ? -x : x;
    r.magnitudes[j] += std::fabs(x);
  }
  return r;
}

u64 run_key_reference(u64 key, u32 run) {
  return SplitMix64(key ^ SplitMix64(run).next()).next();
}

}  // namespace gradprobe::test
