#include "reference.hpp"

#include <cmath>

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
  u32 upper3;  // lowest bits of the upper half of the second 64-bit product
};
Hash mum2(u32 x, u32 ka, u32 kb) {
  u64 m = static_cast<u64>(static_cast<u32>(x + ka)) * 0xD2511F53u;
  const u32 a = static_cast<u32>(m >> 32) ^ static_cast<u32>(m) ^ kb;
  m = static_cast<u64>(a) * 0xCD9E8D57u;
  return {static_cast<u32>(m >> 32) ^ static_cast<u32>(m), static_cast<u32>(m >> 32) & 7};
}

constexpr u32 kPositions = 2048;
constexpr std::array<u32, 16> kFoldConstants = {0x000, 0xcc1, 0x6ce, 0xfed, 0xaca, 0x35a, 0x9b5, 0xdd7,
                                                0x636, 0x064, 0xfca, 0x09d, 0xf03, 0xaff, 0x63e, 0x005};

class Accumulator {
 public:
  Accumulator(Datatype type, u32 k, u64 run_key) : type_(type), map_(k, run_key) {
    result_.sketch.assign(k, 0);
    result_.magnitudes.assign(k, 0);
  }

  void add(u64 i, u64 bits) {
    const double x = decode(type_, bits), magnitude = std::fabs(x);
    if (!std::isfinite(x)) {
      ++(std::isnan(x) ? result_.nan_count : result_.inf_count);
      if (result_.first_nonfinite == kNone) result_.first_nonfinite = i;
      return;
    }
    result_.sum_squares += x * x;
    result_.max_abs = std::max(result_.max_abs, magnitude);
    result_.zero_count += x == 0;
    if (result_.sketch.empty() || magnitude > kSketchLimit) return;
    const double single = static_cast<double>(static_cast<float>(x));
    const SketchPlace at = map_(i);
    result_.sketch[at.index] += at.negative ? -single : single;
    result_.magnitudes[at.index] += magnitude;
  }

  Reference finish(u64 count) {
    result_.count = count;
    return std::move(result_);
  }

 private:
  Datatype type_;
  SketchMap map_;
  Reference result_;
};

}  // namespace

SketchMap::SketchMap(u32 k, u64 run_key) : k_(k) {
  SplitMix64 generator(run_key);
  const u64 a = generator.next(), b = generator.next();
  keys_ = {static_cast<u32>(a), static_cast<u32>(a >> 32), static_cast<u32>(b), static_cast<u32>(b >> 32)};
}

SketchPlace SketchMap::operator()(u64 i) const {
  const auto& k = keys_;
  const u32 c = static_cast<u32>(i >> 14), u = static_cast<u32>(i >> 11) & 7, p = static_cast<u32>(i) & 2047;
  const Hash w0 = mum2(4 * c, k[2], k[3]);
  const u32 w1 = mum2(4 * c + 1, k[2], k[3]).value;
  const u32 slot = u ^ w0.upper3;
  const u32 r8 = ((slot < 4 ? w0.value : w1) >> (8 * (slot & 3))) & 255;
  const u32 position = p ^ (r8 << 3) ^ slot;
  const u32 h = mum2(512 * c + 2 * (position >> 3) + ((p >> 2) & 1), k[0], k[1]).value;
  const bool negative = ((h >> (8 * (p & 3) + 7 - slot)) & 1) != 0;
  if (k_ > kPositions) {
    // Two rows of sums; the superrows of a pair go to different ones, which first is drawn.
    const u32 row = (c & 1) ^ (mum2(4 * (c >> 1) + 2, k[2], k[3]).value & 1);
    return {position + kPositions * row, negative};
  }
  const u32 r = position / k_;
  return {(position % k_) ^ (kFoldConstants[r] & (k_ - 1)), negative};
}

Reference measure(const Elements& elements, u32 k, u64 run_key) {
  Accumulator accumulator(elements.type(), k, run_key);
  for (u64 i = 0; i < elements.size(); ++i) accumulator.add(i, elements[i]);
  return accumulator.finish(elements.size());
}

Reference measure_sparse(Datatype type, u64 count, std::span<const Planted> planted, u32 k, u64 run_key) {
  Accumulator accumulator(type, k, run_key);
  for (const Planted& element : planted) accumulator.add(element.index, element.bits);
  Reference result = accumulator.finish(count);
  result.zero_count += count - planted.size();
  return result;
}

u64 fingerprint(std::span<const std::byte> bytes) {
  u64 sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum += std::to_integer<u64>(bytes[i]) << (8 * (i % 4));
  return sum;
}

u64 run_key_reference(u64 key, u32 run) {
  return SplitMix64(key ^ SplitMix64(run).next()).next();
}

}  // namespace gradprobe::test
