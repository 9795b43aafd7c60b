// Raw entries: a few values as they are.
#include <gtest/gtest.h>

#include <random>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

gate::GateEntry raw(gate::GateEntry entry) {
  entry.mode = gate::kRaw;
  return entry;
}

std::vector<unsigned char> raw_bytes(const Elements& elements) {
  std::vector<unsigned char> bytes;
  for (const std::byte b : elements.bytes()) bytes.push_back(std::to_integer<unsigned char>(b));
  bytes.resize(sizeof(gate::Result::raw), 0);
  return bytes;
}

std::vector<unsigned char> raw_bytes(const Measured& measured) {
  return {std::begin(measured.head.raw), std::end(measured.head.raw)};
}

TEST(Raw, BytesOfEveryDatatype) {
  Rig rig;
  std::vector<Bucket> inputs;
  std::mt19937_64 random(5);
  for (int type = 0; type <= static_cast<int>(Datatype::f8e5m2); ++type) {
    const auto datatype = static_cast<Datatype>(type);
    for (const std::uint32_t count : {1u, 3u, 8u}) {
      Elements elements(datatype, count);
      for (std::uint32_t i = 0; i < count; ++i) elements.set(i, random());
      inputs.emplace_back(elements, element_bytes(datatype) * (count % 4));
    }
  }
  for (const Bucket& input : inputs) rig.add(0, raw(input.entry(5)));
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.ctas = 2}), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(results[i].head.status, gate::kMeasured);
    EXPECT_EQ(results[i].head.sketch_floats, 0u);
    EXPECT_EQ(raw_bytes(results[i]), raw_bytes(inputs[i].elements()));
  }
  EXPECT_EQ(rig.runs(0), 1u);
}

TEST(Raw, ScalarsOfFloatingPointTypes) {
  Rig rig;
  std::vector<Bucket> inputs;
  for (const Datatype type : kTypes) {
    const std::uint64_t nonfinite = nonfinite_bits(type).back();
    Elements elements(type, 7);
    for (const auto& [i, value] : {std::pair{0, 1.5}, {1, -3.0}, {2, 0.0}, {5, -0.0}, {6, 0.25}}) {
      elements.set(static_cast<std::size_t>(i), encode(type, value));
    }
    elements.set(3, nonfinite);
    elements.set(4, nan_bits(type));
    inputs.emplace_back(elements);
  }
  for (const Bucket& input : inputs) rig.add(0, raw(input.entry(5)));
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.ctas = 1}), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(name(inputs[i].type()));
    const bool infinite = has_infinity(inputs[i].type());
    EXPECT_EQ(results[i].head.sum_squares, 1.5 * 1.5 + 9 + 0.0625);
    EXPECT_EQ(results[i].head.max_abs, 3);
    EXPECT_EQ(results[i].head.nan_count, infinite ? 1u : 2u);
    EXPECT_EQ(results[i].head.inf_count, infinite ? 1u : 0u);
    EXPECT_EQ(results[i].head.zero_count, 2u);
    EXPECT_EQ(results[i].head.first_nonfinite, 3u);
    expect_run(results[i], gate::kInputPass, 5, 1);
  }
}

TEST(Raw, ZerosAreNotCountedUnasked) {
  RigOptions options;
  options.flags = 0;
  Rig rig(options);
  const Bucket input(Elements(Datatype::f32, 4));
  rig.add(0, raw(input.entry(1)));
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {}), 1);
  EXPECT_EQ(results[0].head.zero_count, kNone);
  EXPECT_EQ(results[0].head.nan_count, 0u);
}

// Every number of the 8-bit types, and numbers of all magnitudes of the others.
TEST(Raw, ScalarsOfManyNumbers) {
  std::mt19937_64 random(7);
  for (const Datatype type : kTypes) {
    SCOPED_TRACE(name(type));
    RigOptions options;
    options.ring_capacity = 256;
    Rig rig(options);
    std::vector<Bucket> inputs;
    for (std::uint64_t i = 0; i < 256; ++i) {
      Elements elements(type, 1);
      elements.set(0, element_bytes(type) == 1 ? i : random());
      inputs.emplace_back(elements);
      rig.add(0, raw(inputs.back().entry(i)));
    }
    rig.publish(0);
    const auto results = by_entry(run_pass(rig, {.ctas = 1, .kernel = measured_type(type)}), inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      SCOPED_TRACE(inputs[i].elements()[0]);
      const Reference want = measure(inputs[i].elements(), 0, 0);
      EXPECT_EQ(results[i].head.sum_squares, want.sum_squares);
      EXPECT_EQ(results[i].head.max_abs, want.max_abs);
      EXPECT_EQ(results[i].head.nan_count, want.nan_count);
      EXPECT_EQ(results[i].head.inf_count, want.inf_count);
      EXPECT_EQ(results[i].head.zero_count, want.zero_count);
      EXPECT_EQ(results[i].head.first_nonfinite, want.first_nonfinite);
    }
  }
}

// The result pass copies the output.
TEST(Raw, Outputs) {
  Rig rig;
  std::mt19937_64 random(8);
  std::vector<Bucket> inputs, outputs;
  for (const Datatype type : {Datatype::f32, Datatype::i64, Datatype::bf16, Datatype::u8}) {
    Elements input(type, 5), output(type, 3);
    for (std::size_t i = 0; i < 5; ++i) input.set(i, random());
    for (std::size_t i = 0; i < 3; ++i) output.set(i, random());
    inputs.emplace_back(input);
    outputs.emplace_back(output);
    rig.add(0, raw(inputs.back().entry(1, outputs.back())));
  }
  rig.publish(0);
  const auto before = by_entry(run_pass(rig, {}), inputs.size());
  const auto after = by_entry(run_pass(rig, {.pass = gate::kResultPass}), inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(raw_bytes(before[i]), raw_bytes(inputs[i].elements()));
    EXPECT_EQ(raw_bytes(after[i]), raw_bytes(outputs[i].elements()));
    EXPECT_EQ(after[i].head.fingerprint, fingerprint(outputs[i].elements().bytes()));
    EXPECT_EQ(after[i].head.pass, gate::kResultPass);
    EXPECT_EQ(after[i].head.sketch_floats, 0u);
  }
}

}  // namespace
}  // namespace gradprobe::test
