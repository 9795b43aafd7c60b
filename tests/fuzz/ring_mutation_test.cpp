// The fuzzers' entry point with a fixed series of mutated rings, so that it runs with every compiler and sanitizer.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "ring_fuzz.hpp"
#include "synthetic_ring.hpp"

namespace gradprobe::test {
namespace {

std::vector<unsigned char> golden(const std::string& name) {
  std::ifstream in(GRADPROBE_TEST_DATA "/golden/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Large enough for confirmed steps, without sketches so that heads are hit more often.
std::vector<unsigned char> many_records() {
  RingSpec spec;
  spec.sketch_floats = 0;
  spec.capacity = 64;
  SyntheticRing ring(spec);
  for (std::uint64_t i = 0; i < 90; i++) {
    const std::uint64_t step = i < 40 ? kNone : i / 3;
    const auto step_op = static_cast<std::uint32_t>(i % 3);
    ring.append(step_op == 2 ? make_scalar(i, step, step_op, 3, 0.5f)
                             : make_collective(i, step, step_op, 3, 100 + step_op, 1));
  }
  return ring.bytes();
}

// Inputs with their results behind them, from steps that aren't known to steps that are.
std::vector<unsigned char> many_results() {
  RingSpec spec;
  spec.sketch_floats = 0;
  spec.capacity = 64;
  SyntheticRing ring(spec);
  for (std::uint64_t i = 0; i < 32; i++) {
    const std::uint64_t step = i < 20 ? kNone : i / 3;
    const auto step_op = static_cast<std::uint32_t>(i % 3);
    const RecordHead input =
        step_op == 2 ? make_scalar(i, step, step_op, 3, 0.5f) : make_collective(i, step, step_op, 3, 100 + step_op, 1);
    ring.append(input);
    ring.append(make_result(input, 1000 + i));
  }
  return ring.bytes();
}

std::vector<unsigned char> largest_sketches() {
  RingSpec spec;
  spec.sketch_floats = kMaxSketchFloats;
  spec.capacity = 3;
  SyntheticRing ring(spec);
  const std::vector<float> sketch(kMaxSketchFloats, 0.25f);
  for (std::uint64_t i = 0; i < 2; i++) {
    const RecordHead input = make_collective(i, i, 0, 1, 100'000, 1);
    ring.append(input, sketch);
    ring.append(make_result(input, i), sketch);
  }
  return ring.bytes();
}

void mutate(std::vector<unsigned char>& bytes, std::mt19937_64& random) {
  const std::uint64_t interesting[] = {0,         1,    7, 255, 256, 0x7FFFFFFF, 0xFFFFFFFF, std::uint64_t{1} << 62,
                                       kNone - 1, kNone};
  const std::size_t changes = 1 + random() % 6;
  for (std::size_t i = 0; i < changes && !bytes.empty(); i++) {
    // Half of the changes go to the header and the counters, where few bytes decide much.
    const std::size_t area =
        random() % 2 == 0 ? std::min<std::size_t>(bytes.size(), random() % 2 == 0 ? 120 : 2400) : bytes.size();
    const std::size_t at = random() % area;
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<unsigned char>(random());
        break;
      case 1:
        bytes[at] = static_cast<unsigned char>(bytes[at] ^ (1u << random() % 8));
        break;
      case 2: {
        const std::size_t field = at / 8 * 8;
        const std::uint64_t value = interesting[random() % std::size(interesting)];
        if (field + 8 <= bytes.size()) std::memcpy(bytes.data() + field, &value, random() % 2 == 0 ? 4 : 8);
        break;
      }
      default:
        if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
        break;
    }
  }
}

// The records' checksums made right again, so that nonsense gets past them.
void repair_records(std::vector<unsigned char>& bytes) {
  FileHeader h;
  if (bytes.size() < 4096) return;
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.record_bytes < 256 || h.record_bytes > 65536 || h.sketch_floats > 4096) return;
  const std::size_t payload = 256 - 20 + std::size_t{4} * h.sketch_floats;
  for (std::size_t at = 4096; at + 20 + payload <= bytes.size(); at += h.record_bytes) {
    const std::uint32_t crc = slow_crc32c(bytes.data() + at + 20, payload);
    std::memcpy(bytes.data() + at + 16, &crc, sizeof crc);
  }
}

void run(const std::vector<unsigned char>& original, std::uint64_t seed, int inputs) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < inputs; i++) {
    std::vector<unsigned char> bytes = original;
    mutate(bytes, random);
    if (random() % 4 != 0) repair_header(bytes.data(), bytes.size());
    if (random() % 4 == 0) repair_records(bytes);
    read_everything(bytes.data(), bytes.size());
  }
}

TEST(RingMutation, Golden) {
  run(golden("ring-v1.ring"), 1, 6000);
}
TEST(RingMutation, GoldenResults) {
  run(golden("ring-v1-results.ring"), 3, 3000);
}
TEST(RingMutation, ManyRecords) {
  run(many_records(), 2, 3000);
}

TEST(RingMutation, ManyResults) {
  run(many_results(), 4, 3000);
}
TEST(RingMutation, LargestSketches) {
  run(largest_sketches(), 5, 200);
}

TEST(RingMutation, EveryLength) {
  const std::vector<unsigned char> whole = golden("ring-v1.ring");
  for (std::size_t size = 0; size <= whole.size(); size += size < 4200 ? 1 : 37) read_everything(whole.data(), size);
}

}  // namespace
}  // namespace gradprobe::test
