// Several buckets in one pass: who measures which.
#include <gtest/gtest.h>

#include <random>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kK = 256;

RigOptions small_rig(std::uint32_t ctas) {
  RigOptions options;
  options.k = kK;
  options.ctas = ctas;
  options.ring_capacity = 256;
  return options;
}

// One pass over the buckets, whose keys count from 100.
std::vector<Measured> measure_all(const std::vector<Bucket>& buckets, std::uint32_t ctas,
                                  std::uint32_t kernel = gate::kMixed) {
  Rig rig(small_rig(ctas));
  for (std::size_t i = 0; i < buckets.size(); ++i) rig.add(0, buckets[i].entry(100 + i));
  rig.publish(0);
  auto results = by_entry(run_pass(rig, {.ctas = ctas, .kernel = kernel}), buckets.size());
  EXPECT_EQ(rig.runs(0), 1u);
  return results;
}

void expect_all(const std::vector<Bucket>& buckets, std::initializer_list<std::uint32_t> grids, std::uint32_t kernel) {
  std::vector<Reference> want;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    want.push_back(measure(buckets[i].elements(), kK, run_key_reference(100 + i, 1)));
  }
  for (const std::uint32_t ctas : grids) {
    SCOPED_TRACE(ctas);
    const auto results = measure_all(buckets, ctas, kernel);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      SCOPED_TRACE(i);
      expect_run(results[i], gate::kInputPass, 100 + i, 1);
      expect_measures(results[i], want[i], buckets[i].type(), Sums::exact);
    }
  }
}

// Large beside small ones, so that CTAs hold several buckets and buckets several CTAs and blocks of them.
TEST(Buckets, ManySizesOfAllDatatypes) {
  const std::size_t sizes[] = {1, 700'000, 5, 16'384, 65'536, 40'000, 132'768, 3, 330'000, 2049, 65'535, 8};
  std::vector<Bucket> buckets;
  std::uint32_t seed = 0;
  for (const std::size_t n : sizes) {
    for (const Datatype type : kTypes) {
      buckets.emplace_back(small_integers(type, n, seed), seed % 3 ? 0 : element_bytes(type));
      ++seed;
    }
  }
  expect_all(buckets, {1, 5, 20, 61, 250}, gate::kMixed);
}

// The same by the kernel of one datatype, with the sizes in other orders.
TEST(Buckets, ManySizesOfOneDatatype) {
  std::mt19937 random(3);
  for (const Datatype type : kTypes) {
    std::vector<std::size_t> sizes = {1, 500'000, 5, 70'000, 131'072, 40'000, 262'145, 3, 90'000, 65'536};
    std::shuffle(sizes.begin(), sizes.end(), random);
    std::vector<Bucket> buckets;
    for (const std::size_t n : sizes) buckets.emplace_back(small_integers(type, n, 5));
    SCOPED_TRACE(name(type));
    expect_all(buckets, {2, 17, 33, 100}, measured_type(type));
  }
}

std::vector<Bucket> small_buckets() {
  std::mt19937 random(4);
  std::vector<Bucket> buckets;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const Datatype type = kTypes[i % std::size(kTypes)];
    const std::size_t n = i == 0 ? gate::kSmallCount - 1 : 1 + random() % (i % 2 ? 3000u : 40'000u);
    buckets.emplace_back(gaussian(type, n, i), i % 5 == 0 ? element_bytes(type) : 0);
  }
  return buckets;
}

// Whatever the grid and the neighbours, one CTA measures a small bucket alone: the same bits everywhere.
TEST(Buckets, SmallOnesHaveOneCta) {
  const auto buckets = small_buckets();
  std::vector<Measured> alone;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    RigOptions options;
    options.k = kK;
    alone.push_back(measure_one(buckets[i], 100 + i, options, 1));
    expect_measured(alone.back(), buckets[i], 100 + i, 1, kK, Sums::rounded);
  }
  for (const std::uint32_t ctas : {1u, 3u, 20u, 40u, 64u}) {
    SCOPED_TRACE(ctas);
    const auto results = measure_all(buckets, ctas);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same_bits(results[i], alone[i]);
    }
  }
}

TEST(Buckets, SmallOnesTouchNoPartialResults) {
  const auto buckets = small_buckets();
  Rig rig(small_rig(40));
  rig.fill_partials(0, 0xa5);
  const auto before = rig.partials(0);
  for (std::size_t i = 0; i < buckets.size(); ++i) rig.add(0, buckets[i].entry(i));
  rig.publish(0);
  EXPECT_EQ(run_pass(rig, {.ctas = 40}).size(), buckets.size());
  EXPECT_EQ(rig.partials(0), before);
  // Where several CTAs share a bucket they do: the comparison can fail.
  const Bucket large(small_integers(Datatype::f32, 200'000, 1));
  rig.add(1, large.entry(7));
  rig.publish(1);
  EXPECT_EQ(run_pass(rig, {.slot = 1, .ctas = 40}).size(), 1u);
  EXPECT_NE(rig.partials(0), before);
}

TEST(Buckets, MaximumEntries) {
  RigOptions options;
  options.k = 0;
  options.ring_capacity = 2 * gate::kMaxEntries;
  Rig rig(options);
  Elements values(Datatype::f32, 2);
  values.set(0, encode(Datatype::f32, 0.5));
  values.set(1, encode(Datatype::f32, 2));
  const Bucket loss(values), bucket(small_integers(Datatype::bf16, 100, 6)),
      large(small_integers(Datatype::f16, 66'000, 7));
  gate::GateEntry raw = loss.entry(1);
  raw.mode = gate::kRaw;
  const auto is_large = [](std::uint32_t i) { return i % 400 == 399; };
  const auto is_bucket = [](std::uint32_t i) { return i % 20 == 19; };
  for (std::uint32_t i = 0; i < gate::kMaxEntries; ++i) {
    rig.add(0, is_large(i) ? large.entry(i) : is_bucket(i) ? bucket.entry(i) : raw);
  }
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.ctas = 7}), gate::kMaxEntries);
  for (std::uint32_t i = 0; i < gate::kMaxEntries; ++i) {
    SCOPED_TRACE(i);
    if (is_bucket(i)) {
      expect_measured(results[i], is_large(i) ? large : bucket, i, 1, 0, Sums::exact);
    } else {
      ASSERT_EQ(results[i].head.sum_squares, 4.25);
    }
  }
  EXPECT_EQ(rig.runs(0), 1u);
}

// Nothing but buckets, as many as there can be.
TEST(Buckets, MaximumBuckets) {
  RigOptions options;
  options.k = 0;
  options.ring_capacity = gate::kMaxEntries;
  options.ctas = gate::kMaxCtas;
  Rig rig(options);
  std::vector<Bucket> buckets;
  for (const Datatype type : kTypes) buckets.emplace_back(small_integers(type, 3, 8));
  for (std::uint32_t i = 0; i < gate::kMaxEntries; ++i) rig.add(0, buckets[i % buckets.size()].entry(i));
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.ctas = gate::kMaxCtas}), gate::kMaxEntries);
  for (std::uint32_t i = 0; i < gate::kMaxEntries; ++i) {
    SCOPED_TRACE(i);
    expect_measured(results[i], buckets[i % buckets.size()], i, 1, 0, Sums::exact);
  }
}

// A kernel of one datatype is only for buckets of it: what else is there is an error of the host, and said so.
TEST(Buckets, OfAnotherDatatypeThanTheKernels) {
  Rig rig(small_rig(3));
  const Bucket right(small_integers(Datatype::f16, 70'000, 1)), wrong(small_integers(Datatype::f32, 70'000, 2));
  rig.add(0, wrong.entry(1));
  rig.add(0, right.entry(2));
  rig.publish(0);
  const auto results = by_entry(run_pass(rig, {.kernel = gate::kTypeF16}), 2);
  EXPECT_EQ(results[0].head.status, gate::kInvalid);
  expect_measured(results[1], right, 2, 1, kK, Sums::exact);
}

}  // namespace
}  // namespace gradprobe::test
