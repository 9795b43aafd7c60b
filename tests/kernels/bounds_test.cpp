// Nothing is read outside of a bucket but for the rest of the 16 bytes in which it begins and ends: memory there may
// belong to nobody. The stand-in driver gives every allocation pages of its own with none before and behind.
#include <gtest/gtest.h>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

constexpr std::size_t kPage = 4096;

// Both passes over a bucket that begins `offset` bytes after the first byte of `pages` pages, and ends `short_of` bytes
// before the last one.
void expect_right(Datatype type, std::size_t pages, std::uint32_t offset, std::uint32_t short_of, std::uint32_t ctas) {
  SCOPED_TRACE(std::string(name(type)) + ", pages " + std::to_string(pages) + ", from " + std::to_string(offset) +
               " to " + std::to_string(short_of) + " before the end, ctas " + std::to_string(ctas));
  const DeviceMemory memory(pages * kPage);
  const Elements elements =
      small_integers(type, (pages * kPage - offset - short_of) / element_bytes(type), offset + short_of);
  check(cuMemcpyHtoD(memory.address() + offset, elements.bytes().data(), elements.bytes().size()), "cuMemcpyHtoD");
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  RigOptions options;
  options.k = ctas == 1 ? 4096 : 256;
  options.ctas = ctas;
  Rig rig(options);
  gate::GateEntry entry{};
  entry.input = entry.output = memory.address() + offset;
  entry.count = entry.output_count = elements.size();
  entry.key = 3;
  entry.datatype = static_cast<std::uint8_t>(type);
  rig.add(0, entry);
  rig.publish(0);
  const Reference want = measure(elements, options.k, run_key_reference(3, 1));
  for (const gate::Pass pass : {gate::kInputPass, gate::kResultPass}) {
    const auto results = run_pass(rig, {.ctas = ctas, .kernel = measured_type(type), .pass = pass});
    ASSERT_EQ(results.size(), 1u);
    expect_measures(results[0], want, type, Sums::exact);
  }
}

TEST(Bounds, BucketsThatFillTheirPages) {
  for (const Datatype type : kTypes) {
    for (const std::uint32_t offset : offsets(type)) {
      expect_right(type, 1, offset, 0, 1);
      expect_right(type, 1, 0, offset, 1);
    }
    const std::uint32_t one = element_bytes(type);
    // Whole superrows up to the end, and one vector more or less.
    for (const std::size_t bytes : {16384u * one, 5 * 16384u * one, 8 * 16384u * one}) {
      expect_right(type, bytes / kPage, 0, 0, 3);
      expect_right(type, bytes / kPage, 0, 16, 3);
      expect_right(type, bytes / kPage, 16 - one, 0, 3);
      expect_right(type, bytes / kPage + 1, 16, one, 3);
      expect_right(type, bytes / kPage + 1, one, kPage - 16, 3);
    }
  }
}

// An element of each kind alone on the last bytes that there are, and on the first.
TEST(Bounds, SingleElements) {
  for (const Datatype type : kTypes) {
    expect_right(type, 1, kPage - element_bytes(type), 0, 1);
    expect_right(type, 1, 0, kPage - element_bytes(type), 1);
  }
}

}  // namespace
}  // namespace gradprobe::test
