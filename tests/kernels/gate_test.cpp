// The gate's protocol with the host: publishing, time-outs, the workspace, the ring, raw values, bad input.
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "check.hpp"
#include "inputs.hpp"

namespace gradprobe::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kK = 256;

RigOptions small_rig() {
  RigOptions options;
  options.k = kK;
  return options;
}

Bucket integers(Datatype type, std::size_t n, std::uint32_t seed) {
  return Bucket(type, small_integers(type, n, seed));
}

// Raw bytes in device memory, `offset` bytes from a multiple of 256.
class RawInput {
 public:
  RawInput(Datatype type, std::vector<unsigned char> bytes, std::uint32_t offset = 0)
      : type_(type), bytes_(std::move(bytes)), offset_(offset), memory_(offset + bytes_.size()) {
    check(cuMemcpyHtoD(memory_.address() + offset, bytes_.data(), bytes_.size()), "cuMemcpyHtoD");
  }
  gate::GateEntry entry() const {
    gate::GateEntry e{};
    e.input = memory_.address() + offset_;
    e.count = bytes_.size() / element_bytes(type_);
    e.key = 5;
    e.datatype = static_cast<std::uint8_t>(type_);
    e.mode = gate::kRaw;
    return e;
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  Datatype type_;
  std::vector<unsigned char> bytes_;
  std::uint32_t offset_;
  DeviceMemory memory_;
};

template <typename T>
RawInput raw_values(Datatype type, const std::vector<T>& values, std::uint32_t offset = 0) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return RawInput(type, std::move(bytes), offset);
}

void expect_idle(const Rig& rig) {
  const gate::WorkspaceHead head = rig.workspace();
  EXPECT_EQ(head.busy_since, 0u);
  EXPECT_EQ(head.owner, 0u);
  for (const std::uint32_t ticket : head.cta_tickets) ASSERT_EQ(ticket, 0u);
  for (const std::uint32_t ticket : head.block_tickets) ASSERT_EQ(ticket, 0u);
}

TEST(Gate, OpensWhenPublishedWhileWaiting) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket bucket = integers(Datatype::f32, 30'000, 1);
  rig.launch(0, 3, stream.get());
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(rig.runs(0), 0u);
  EXPECT_TRUE(rig.collect().empty());
  std::thread host([&] {
    rig.add(0, bucket.entry(9));
    rig.publish(0);
  });
  host.join();
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 9, 1, kK, Sums::exact);
  EXPECT_GE(results[0].head.gate_wait_ns, 20'000'000u);
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, TimesOutAndIgnoresWhatComesLate) {
  RigOptions options = small_rig();
  options.timeout_ns = 30'000'000;
  Rig rig(options);
  Stream stream;
  const Bucket bucket = integers(Datatype::bf16, 5000, 2);
  rig.launch(0, 3, stream.get());
  stream.synchronize();
  auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kTimedOut);
  EXPECT_EQ(results[0].head.slot, 0u);
  EXPECT_EQ(results[0].head.entry, 0u);
  EXPECT_EQ(results[0].head.run, 1u);
  EXPECT_EQ(results[0].head.sketch_floats, 0u);
  EXPECT_GE(results[0].head.gate_wait_ns, options.timeout_ns);
  EXPECT_EQ(rig.runs(0), 1u);
  rig.add(0, bucket.entry(1));
  rig.publish(0);
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  expect_idle(rig);
  // Nothing of it is left for the next one.
  rig.add(1, bucket.entry(3));
  rig.publish(1);
  rig.launch(1, 3, stream.get());
  stream.synchronize();
  results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.slot, 1u);
  expect_measured(results[0], bucket, 3, 1, kK, Sums::exact);
}

TEST(Gate, CancelledSlotLeavesNoResult) {
  Rig rig(small_rig());
  Stream stream;
  rig.launch(0, 2, stream.get());
  rig.publish(0, gate::kSlotCancelled);
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, SlotWithoutEntries) {
  Rig rig(small_rig());
  Stream stream;
  rig.publish(0);
  rig.launch(0, 2, stream.get());
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, ManyEntriesOfAllDatatypes) {
  // Large beside small ones, so that CTAs hold several buckets and buckets several CTAs and blocks of them.
  const std::size_t sizes[] = {1, 700'000, 5, 16'384, 16'385, 40'000, 32'768, 3, 330'000, 2049, 65'537, 8};
  std::vector<Bucket> buckets;
  std::uint32_t seed = 0;
  for (const std::size_t n : sizes) {
    for (const Datatype type : kTypes) {
      buckets.emplace_back(type, small_integers(type, n, seed), seed % 3 ? 0 : element_bytes(type));
      ++seed;
    }
  }
  for (const std::uint32_t ctas : {1u, 5u, 20u, 40u, 64u}) {
    SCOPED_TRACE(ctas);
    Rig rig(small_rig());
    Stream stream;
    for (std::size_t i = 0; i < buckets.size(); ++i) rig.add(0, buckets[i].entry(100 + i));
    rig.publish(0);
    rig.launch(0, ctas, stream.get());
    stream.synchronize();
    const auto results = rig.collect();
    ASSERT_EQ(results.size(), buckets.size());
    std::set<std::uint32_t> seen;
    for (const Measured& result : results) {
      const std::uint32_t i = result.head.entry;
      ASSERT_LT(i, buckets.size());
      SCOPED_TRACE(i);
      EXPECT_TRUE(seen.insert(i).second);
      expect_measured(result, buckets[i], 100 + i, 1, kK, Sums::exact);
    }
    EXPECT_EQ(rig.runs(0), 1u);
    expect_idle(rig);
  }
}

TEST(Gate, ReplaysDrawFreshKeys) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket first = integers(Datatype::f16, 50'000, 3), second = integers(Datatype::f32, 300, 4);
  rig.add(0, first.entry(11));
  rig.add(0, second.entry(12));
  rig.publish(0);
  std::vector<std::vector<float>> sketches;
  for (std::uint32_t run = 1; run <= 3; ++run) {
    SCOPED_TRACE(run);
    rig.launch(0, 2, stream.get());
    stream.synchronize();
    EXPECT_EQ(rig.runs(0), run);
    const auto results = rig.collect();
    ASSERT_EQ(results.size(), 2u);
    for (const Measured& result : results) {
      const bool is_first = result.head.entry == 0;
      expect_measured(result, is_first ? first : second, is_first ? 11 : 12, run, kK, Sums::exact);
      if (is_first) sketches.push_back(result.sketch);
    }
  }
  EXPECT_NE(sketches[0], sketches[1]);
  EXPECT_NE(sketches[1], sketches[2]);
}

TEST(Gate, RawBytesOfEveryDatatype) {
  Rig rig(small_rig());
  Stream stream;
  std::vector<RawInput> inputs;
  std::mt19937 random(5);
  for (int type = 0; type <= static_cast<int>(Datatype::f8e5m2); ++type) {
    const auto datatype = static_cast<Datatype>(type);
    const std::uint32_t size = element_bytes(datatype);
    for (const std::uint32_t count : {1u, 3u, 8u}) {
      std::vector<unsigned char> bytes(count * size);
      for (auto& b : bytes) b = static_cast<unsigned char>(random());
      inputs.emplace_back(datatype, std::move(bytes), size * (count % 4));
    }
  }
  for (const RawInput& input : inputs) rig.add(0, input.entry());
  rig.publish(0);
  rig.launch(0, 2, stream.get());
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), inputs.size());
  for (const Measured& result : results) {
    SCOPED_TRACE(result.head.entry);
    EXPECT_EQ(result.head.status, gate::kMeasured);
    EXPECT_EQ(result.head.sketch_floats, 0u);
    std::vector<unsigned char> want = inputs[result.head.entry].bytes();
    want.resize(sizeof(result.head.raw), 0);
    EXPECT_EQ(std::vector(result.head.raw, result.head.raw + sizeof(result.head.raw)), want);
  }
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, RawScalarsOfFloatingPointTypes) {
  Rig rig(small_rig());
  Stream stream;
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values = {1.5, -3, 0, infinity, nan, -infinity, 0.25};
  std::vector<std::uint16_t> half, bfloat;
  std::vector<float> single;
  for (const double v : values) {
    single.push_back(static_cast<float>(v));
    const bool finite = std::isfinite(v);
    const auto bits = [&](Datatype type) {
      const std::uint32_t special = std::isnan(v) ? quiet_nan_bits(type) : infinity_bits(type);
      return static_cast<std::uint16_t>(finite ? encode(type, v) : special | (v < 0 ? 0x8000 : 0));
    };
    half.push_back(bits(Datatype::f16));
    bfloat.push_back(bits(Datatype::bf16));
  }
  const RawInput inputs[] = {raw_values(Datatype::f16, half), raw_values(Datatype::bf16, bfloat),
                             raw_values(Datatype::f32, single), raw_values(Datatype::f64, values)};
  for (const RawInput& input : inputs) rig.add(0, input.entry());
  rig.publish(0);
  rig.launch(0, 1, stream.get());
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), 4u);
  for (const Measured& result : results) {
    SCOPED_TRACE(result.head.entry);
    EXPECT_EQ(result.head.sum_squares, 1.5 * 1.5 + 9 + 0.0625);
    EXPECT_EQ(result.head.max_abs, 3);
    EXPECT_EQ(result.head.nan_count, 1u);
    EXPECT_EQ(result.head.inf_count, 2u);
    EXPECT_EQ(result.head.zero_count, 1u);
    EXPECT_EQ(result.head.first_nonfinite, 3u);
  }
}

TEST(Gate, MaximumEntries) {
  RigOptions options = small_rig();
  options.k = 0;
  options.ring_capacity = 2 * gate::kMaxEntries;
  Rig rig(options);
  Stream stream;
  const RawInput loss = raw_values(Datatype::f32, std::vector<float>{0.5f, 2.0f});
  const Bucket bucket = integers(Datatype::bf16, 100, 6);
  std::size_t buckets = 0;
  for (std::uint32_t i = 0; i < gate::kMaxEntries; ++i) {
    const bool is_bucket = i % 100 == 99;
    buckets += is_bucket;
    rig.add(0, is_bucket ? bucket.entry(i) : loss.entry());
  }
  rig.publish(0);
  rig.launch(0, 7, stream.get());
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), gate::kMaxEntries);
  std::vector<bool> seen(gate::kMaxEntries);
  for (const Measured& result : results) {
    const std::uint32_t i = result.head.entry;
    ASSERT_FALSE(seen[i]);
    seen[i] = true;
    if (i % 100 == 99) {
      expect_measured(result, bucket, i, 1, 0, Sums::exact);
    } else {
      ASSERT_EQ(result.head.sum_squares, 4.25);
    }
  }
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, FullRingDropsAndCounts) {
  RigOptions options = small_rig();
  options.ring_capacity = 4;
  Rig rig(options);
  Stream stream;
  const Bucket bucket = integers(Datatype::f32, 100, 7);
  const RawInput raw = raw_values(Datatype::i64, std::vector<std::int64_t>{1, 2});
  for (int i = 0; i < 7; ++i) rig.add(0, i % 2 ? raw.entry() : bucket.entry(20));
  rig.publish(0);
  rig.launch(0, 2, stream.get());
  stream.synchronize();
  EXPECT_EQ(rig.control().dropped, 3u);
  EXPECT_EQ(rig.slot(0).dropped, 3u);
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
  EXPECT_EQ(rig.collect().size(), 4u);
  // What was read is free again, also where the ring wraps.
  for (std::uint32_t run = 1; run <= 3; ++run) {
    rig.reopen(1);
    for (int i = 0; i < 3; ++i) rig.add(1, bucket.entry(30));
    rig.publish(1);
    rig.set_launch(1 + run);
    rig.launch(1, 2, stream.get());
    stream.synchronize();
    const auto results = rig.collect();
    ASSERT_EQ(results.size(), 3u);
    for (const Measured& result : results) expect_measured(result, bucket, 30, 1, kK, Sums::exact);
  }
  EXPECT_EQ(rig.control().dropped, 3u);
}

// A second stream of the communicator finds the workspace taken.
TEST(Gate, BusyWorkspace) {
  Rig rig(small_rig());
  Stream stream, other;
  const Bucket bucket = integers(Datatype::f32, 20'000, 8);
  rig.add(0, bucket.entry(1));
  rig.publish(0);
  rig.launch_gate(0, stream.get());
  stream.synchronize();
  rig.add(1, bucket.entry(2));
  rig.publish(1);
  rig.launch(1, 2, other.get());
  other.synchronize();
  auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kBusy);
  EXPECT_EQ(results[0].head.slot, 1u);
  EXPECT_EQ(rig.runs(1), 1u);
  EXPECT_EQ(rig.runs(0), 0u);
  rig.launch_measure(0, Datatype::f32, 2, stream.get());
  stream.synchronize();
  results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 1, 1, kK, Sums::exact);
  expect_idle(rig);
  rig.launch(1, 2, other.get());
  other.synchronize();
  results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 2, 2, kK, Sums::exact);
}

// The measuring kernel of a run was never launched: later runs are busy, but not for ever.
TEST(Gate, TakesOverFromALostRun) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket bucket = integers(Datatype::f16, 20'000, 9);
  rig.add(0, bucket.entry(1));
  rig.publish(0);
  rig.launch_gate(0, stream.get());
  rig.add(1, bucket.entry(2));
  rig.publish(1);
  rig.launch(1, 2, stream.get());
  stream.synchronize();
  auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].head.status, gate::kBusy);
  rig.age_workspace(gate::kLostRunNs + 1);
  rig.launch(1, 2, stream.get());
  stream.synchronize();
  results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 2, 2, kK, Sums::exact);
  expect_idle(rig);
}

TEST(Gate, MeasuringKernelOfAnotherLaunchStaysAway) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket bucket = integers(Datatype::f32, 20'000, 10);
  // No gate at all.
  rig.launch_measure(0, Datatype::f32, 2, stream.get());
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  // A late kernel of the slot's former launch.
  rig.add(0, bucket.entry(1));
  rig.publish(0);
  rig.set_launch(8);
  rig.launch_gate(0, stream.get());
  rig.set_launch(7);
  rig.launch_measure(0, Datatype::f32, 2, stream.get());
  stream.synchronize();
  EXPECT_TRUE(rig.collect().empty());
  rig.set_launch(8);
  rig.launch_measure(0, Datatype::f32, 2, stream.get());
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), 1u);
  expect_measured(results[0], bucket, 1, 1, kK, Sums::exact);
}

TEST(Gate, EntriesThatMakeNoSense) {
  Rig rig(small_rig());
  Stream stream;
  const Bucket bucket = integers(Datatype::f32, 1000, 11);
  const RawInput raw = raw_values(Datatype::f32, std::vector<float>{1.0f});
  const gate::GateEntry good = bucket.entry(1);
  std::vector<gate::GateEntry> bad(9, good);
  bad[0].count = 0;
  bad[1].datatype = 255;
  bad[2].datatype = static_cast<std::uint8_t>(Datatype::i32);
  bad[3].input += 2;
  bad[4].input = 0;
  bad[5].count = ~std::uint64_t{0};
  bad[6].mode = 7;
  bad[7] = raw.entry();
  bad[7].count = 9;
  bad[8] = raw.entry();
  bad[8].datatype = 12;
  for (const auto& entry : bad) rig.add(0, entry);
  rig.add(0, good);
  rig.publish(0);
  rig.launch(0, 2, stream.get());
  stream.synchronize();
  const auto results = rig.collect();
  ASSERT_EQ(results.size(), bad.size() + 1);
  for (const Measured& result : results) {
    SCOPED_TRACE(result.head.entry);
    if (result.head.entry == bad.size()) {
      expect_measured(result, bucket, 1, 1, kK, Sums::exact);
    } else {
      EXPECT_EQ(result.head.status, gate::kInvalid);
    }
  }
  EXPECT_EQ(rig.runs(0), 1u);
  expect_idle(rig);
}

TEST(Gate, MoreEntriesThanASlotCanHave) {
  for (const std::uint32_t entries : {gate::kMaxEntries + 1, ~0u}) {
    Rig rig(small_rig());
    Stream stream;
    rig.slot(0).entries = entries;
    rig.publish(0);
    rig.launch(0, 2, stream.get());
    stream.synchronize();
    const auto results = rig.collect();
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].head.status, gate::kInvalid);
    EXPECT_EQ(rig.runs(0), 1u);
    expect_idle(rig);
  }
}

// Measurements of two slots on two streams, and a host that reads along.
TEST(Gate, TwoStreamsShareTheWorkspace) {
  RigOptions options = small_rig();
  options.ring_capacity = 8;
  Rig rig(options);
  Stream streams[2];
  const Bucket buckets[] = {integers(Datatype::f32, 60'000, 12), integers(Datatype::bf16, 70'000, 13)};
  const std::uint32_t runs = 20;
  for (std::uint32_t s = 0; s < 2; ++s) {
    rig.add(s, buckets[s].entry(s));
    rig.publish(s);
  }
  for (std::uint32_t run = 0; run < runs; ++run) {
    for (std::uint32_t s = 0; s < 2; ++s) rig.launch(s, 3, streams[s].get());
  }
  std::uint32_t seen[2] = {};
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (seen[0] + seen[1] + rig.control().dropped < 2 * runs && std::chrono::steady_clock::now() < deadline) {
    for (const Measured& result : rig.collect()) {
      const std::uint32_t s = result.head.slot;
      ASSERT_LT(s, 2u);
      ++seen[s];
      if (result.head.status == gate::kBusy) continue;
      expect_measured(result, buckets[s], s, result.head.run, kK, Sums::exact);
    }
  }
  for (const Stream& stream : streams) stream.synchronize();
  EXPECT_EQ(seen[0] + seen[1] + rig.control().dropped, 2 * runs);
  EXPECT_EQ(rig.runs(0), runs);
  EXPECT_EQ(rig.runs(1), runs);
  expect_idle(rig);
}

}  // namespace
}  // namespace gradprobe::test
