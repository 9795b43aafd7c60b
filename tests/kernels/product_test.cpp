// Datatypes x sizes x alignments x sketch sizes x grids x kernels (of the datatype, or the one for several).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

// The values of all six dimensions, as numbers.
std::array<std::uint64_t, 6> values(const Case& c) {
  return {static_cast<std::uint64_t>(c.type), c.size, c.offset, c.k, c.grid, c.mixed};
}

// Pairs of values of two dimensions.
class Pairs {
 public:
  void add(const Case& c) {
    for_each(c, [&](const Pair& pair) { seen_.insert(pair); });
  }
  std::size_t missing(const Case& c) const {
    std::size_t n = 0;
    for_each(c, [&](const Pair& pair) { n += !seen_.contains(pair); });
    return n;
  }
  std::size_t count(std::size_t a, std::size_t b) const {
    return static_cast<std::size_t>(
        std::count_if(seen_.begin(), seen_.end(), [&](const Pair& p) { return p[0] == a && p[1] == b; }));
  }

 private:
  using Pair = std::array<std::uint64_t, 4>;  // both dimensions, both values
  template <typename Use>
  static void for_each(const Case& c, Use use) {
    const auto v = values(c);
    for (std::size_t a = 0; a < v.size(); ++a) {
      for (std::size_t b = a + 1; b < v.size(); ++b) use(Pair{a, b, v[a], v[b]});
    }
  }
  std::set<Pair> seen_;
};

// Cases that are chosen one after another, each from candidates: the one with the most pairs that no case had yet.
class Choice {
 public:
  void add(const std::vector<Case>& candidates) {
    const Case* best = nullptr;
    std::size_t most = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      // Another one comes first every time: when no pair is missing any more, all take their turns.
      const Case& candidate = candidates[(i + 7 * cases_.size()) % candidates.size()];
      const std::size_t missing = pairs_.missing(candidate);
      if (best && missing <= most) continue;
      best = &candidate;
      most = missing;
    }
    pairs_.add(*best);
    cases_.push_back(*best);
  }
  const std::vector<Case>& cases() const { return cases_; }
  const Pairs& pairs() const { return pairs_; }

 private:
  std::vector<Case> cases_;
  Pairs pairs_;
};

// All of datatypes x sizes x alignments.
Choice every_pair() {
  Choice choice;
  for (const Datatype type : kTypes) {
    for (const std::size_t size : kSizes) {
      for (const std::uint32_t offset : offsets(type)) {
        std::vector<Case> candidates;
        for (const std::uint32_t k : kSketchSizes) {
          for (const std::uint32_t grid : kGrids) {
            for (const bool mixed : {false, true}) candidates.push_back({type, size, offset, k, grid, mixed});
          }
        }
        choice.add(candidates);
      }
    }
  }
  return choice;
}

// All of datatypes x sizes x sketch sizes x grids.
Choice full_product() {
  Choice choice;
  for (const Datatype type : kTypes) {
    for (const std::size_t size : kSizes) {
      for (const std::uint32_t k : kSketchSizes) {
        for (const std::uint32_t grid : kGrids) {
          std::vector<Case> candidates;
          for (const std::uint32_t offset : offsets(type)) {
            for (const bool mixed : {false, true}) candidates.push_back({type, size, offset, k, grid, mixed});
          }
          choice.add(candidates);
        }
      }
    }
  }
  return choice;
}

TEST(Product, PairsAreCovered) {
  enum { type, size, offset, k, grid, mixed };
  constexpr std::size_t types = std::size(kTypes), sizes = std::size(kSizes), sketches = std::size(kSketchSizes),
                        grids = std::size(kGrids), alignments = 16;
  std::size_t type_alignments = 0;
  for (const Datatype t : kTypes) type_alignments += 16 / element_bytes(t);
  for (const Choice& choice : {every_pair(), full_product()}) {
    const Pairs& pairs = choice.pairs();
    EXPECT_EQ(pairs.count(type, size), types * sizes);
    EXPECT_EQ(pairs.count(type, offset), type_alignments);
    EXPECT_EQ(pairs.count(type, k), types * sketches);
    EXPECT_EQ(pairs.count(type, grid), types * grids);
    EXPECT_EQ(pairs.count(type, mixed), types * 2);
    EXPECT_EQ(pairs.count(size, offset), sizes * alignments);
    EXPECT_EQ(pairs.count(size, k), sizes * sketches);
    EXPECT_EQ(pairs.count(size, grid), sizes * grids);
    EXPECT_EQ(pairs.count(size, mixed), sizes * 2);
    EXPECT_EQ(pairs.count(offset, k), alignments * sketches);
    EXPECT_EQ(pairs.count(offset, grid), alignments * grids);
    EXPECT_EQ(pairs.count(offset, mixed), alignments * 2);
    EXPECT_EQ(pairs.count(k, grid), sketches * grids);
    EXPECT_EQ(pairs.count(k, mixed), sketches * 2);
    EXPECT_EQ(pairs.count(grid, mixed), grids * 2);
    for (const Case& c : choice.cases()) EXPECT_LE(ctas(c), gate::kMaxCtas);
  }
}

// `results`: one in so many cases has a result pass, too; 0: none.
void run(const std::vector<Case>& cases, std::uint64_t results) {
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
    if (results && key % results == 0) {
      const Measured result = pass.result();
      expect_run(result, gate::kResultPass, key, 1);
      expect_measures(result, want, c.type, Sums::exact);
      EXPECT_EQ(result.head.fingerprint, fingerprint(elements->bytes()));
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Product, EveryPair) {
  run(every_pair().cases(), 2);
}

TEST(Product, EverySizeAndSketchAndGrid) {
  run(full_product().cases(), 0);
}

}  // namespace
}  // namespace gradprobe::test
