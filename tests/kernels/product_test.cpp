// Datatypes x sizes x alignments x sketch sizes x grids x kernels (of the datatype, or the one for several).
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kSketchSizes[] = {0, 256, 512, 1024, 2048, 4096};
constexpr std::size_t kSizes[] = {1, 7, 2047, 2048, 2049, 16383, 16384, 16385, 65535, 65536, 100000, 1000003};
constexpr std::uint32_t kMoreThanWork = 0;
constexpr std::uint32_t kGrids[] = {1, 3, 20, 40, kMoreThanWork};

struct Case {
  Datatype type;
  std::size_t size;
  std::uint32_t offset, k, grid;
  bool mixed;  // by the kernel for several datatypes
};

std::uint32_t ctas(const Case& c) {
  if (c.grid != kMoreThanWork) return c.grid;
  return gate::measure_ctas(c.size, element_bytes(c.type)) + 3;
}

// All of datatypes x sizes x alignments; the other dimensions go round with periods that have no common divisor.
std::vector<Case> every_pair() {
  std::vector<Case> cases;
  for (const Datatype type : kTypes) {
    for (const std::size_t size : kSizes) {
      for (const std::uint32_t offset : offsets(type)) {
        const std::size_t i = cases.size();
        cases.push_back({type, size, offset, kSketchSizes[i % 6], kGrids[i % 5], i % 7 == 0});
      }
    }
  }
  return cases;
}

// All of datatypes x sizes x sketch sizes x grids; alignments and kernels go round.
std::vector<Case> full_product() {
  std::vector<Case> cases;
  for (const Datatype type : kTypes) {
    const auto all_offsets = offsets(type);
    for (const std::size_t size : kSizes) {
      for (const std::uint32_t k : kSketchSizes) {
        for (const std::uint32_t grid : kGrids) {
          const std::size_t i = cases.size();
          // Every second case aligned.
          const std::uint32_t offset = i % 2 ? all_offsets[i / 2 % all_offsets.size()] : 0;
          cases.push_back({type, size, offset, k, grid, i % 7 == 0});
        }
      }
    }
  }
  return cases;
}

template <typename A, typename B>
std::size_t distinct(const std::vector<Case>& cases, A Case::*a, B Case::*b) {
  std::set<std::pair<A, B>> seen;
  for (const Case& c : cases) seen.emplace(c.*a, c.*b);
  return seen.size();
}

TEST(Product, PairsAreCovered) {
  constexpr std::size_t types = std::size(kTypes), sizes = std::size(kSizes), sketches = std::size(kSketchSizes),
                        grids = std::size(kGrids), alignments = 16;
  std::size_t type_alignments = 0;
  for (const Datatype type : kTypes) type_alignments += 16 / element_bytes(type);
  for (const auto& cases : {every_pair(), full_product()}) {
    EXPECT_EQ(distinct(cases, &Case::type, &Case::k), types * sketches);
    EXPECT_EQ(distinct(cases, &Case::type, &Case::size), types * sizes);
    EXPECT_EQ(distinct(cases, &Case::type, &Case::offset), type_alignments);
    EXPECT_EQ(distinct(cases, &Case::type, &Case::grid), types * grids);
    EXPECT_EQ(distinct(cases, &Case::type, &Case::mixed), types * 2);
    EXPECT_EQ(distinct(cases, &Case::k, &Case::grid), sketches * grids);
    EXPECT_EQ(distinct(cases, &Case::k, &Case::mixed), sketches * 2);
    EXPECT_EQ(distinct(cases, &Case::size, &Case::k), sizes * sketches);
    EXPECT_EQ(distinct(cases, &Case::size, &Case::grid), sizes * grids);
    EXPECT_EQ(distinct(cases, &Case::offset, &Case::size), alignments * sizes);
    EXPECT_EQ(distinct(cases, &Case::offset, &Case::k), alignments * sketches);
    EXPECT_EQ(distinct(cases, &Case::offset, &Case::grid), alignments * grids);
  }
  for (const Case& c : every_pair()) EXPECT_LE(ctas(c), gate::kMaxCtas);
}

void run(const std::vector<Case>& cases, bool result_pass) {
  std::optional<Elements> elements;
  std::uint64_t key = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c.type, c.size, c.k, ctas(c), c.offset) + (c.mixed ? " mixed" : ""));
    ++key;
    if (!elements || elements->type() != c.type || elements->size() != c.size) {
      elements = small_integers(c.type, c.size, static_cast<std::uint32_t>(key));
    }
    const Bucket bucket(*elements, c.offset);
    RigOptions options;
    options.k = c.k;
    const std::uint32_t kernel = c.mixed ? gate::kMixed : static_cast<std::uint32_t>(measured_type(c.type));
    SinglePass pass(bucket, key, options, ctas(c), kernel);
    const Measured input = pass.input();
    const Reference want = measure(*elements, c.k, run_key_reference(key, 1));
    expect_run(input, gate::kInputPass, key, 1);
    expect_measures(input, want, c.type, Sums::exact);
    if (result_pass) {
      const Measured result = pass.result();
      expect_run(result, gate::kResultPass, key, 1);
      expect_measures(result, want, c.type, Sums::exact);
      EXPECT_EQ(result.head.fingerprint, fingerprint(elements->bytes()));
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Product, EveryPair) {
  run(every_pair(), true);
}

TEST(Product, EverySizeAndSketchAndGrid) {
  run(full_product(), false);
}

}  // namespace
}  // namespace gradprobe::test
