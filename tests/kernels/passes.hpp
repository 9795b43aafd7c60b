// Whole passes for tests that need nothing unusual of the protocol.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "rig.hpp"

namespace gradprobe::test {

// One bucket in a slot of its own, by the kernel of its datatype unless another is named.
class SinglePass {
 public:
  SinglePass(const Bucket& bucket, std::uint64_t key, RigOptions options, std::uint32_t ctas)
      : SinglePass(bucket, key, options, ctas, measured_type(bucket.type())) {}
  SinglePass(const Bucket& bucket, std::uint64_t key, RigOptions options, std::uint32_t ctas, std::uint32_t kernel)
      : rig_(with_ctas(options, ctas)), ctas_(ctas), kernel_(kernel) {
    rig_.add(0, bucket.entry(key, bucket));
    rig_.publish(0);
  }

  Measured input() { return run(gate::kInputPass); }
  // After input(); the bucket is its own output.
  Measured result() { return run(gate::kResultPass); }

 private:
  static RigOptions with_ctas(RigOptions options, std::uint32_t ctas) {
    options.ctas = ctas;
    options.ring_capacity = 2;
    options.slots = 1;
    return options;
  }
  Measured run(gate::Pass pass) {
    rig_.launch({.ctas = ctas_, .kernel = kernel_, .pass = pass}, stream_);
    stream_.synchronize();
    EXPECT_TRUE(rig_.idle());
    EXPECT_EQ(pass == gate::kInputPass ? rig_.runs(0) : rig_.result_runs(0), 1u);
    auto results = rig_.collect();
    if (results.size() != 1) throw std::runtime_error(std::to_string(results.size()) + " results, not one");
    return std::move(results[0]);
  }

  Rig rig_;
  Stream stream_;
  std::uint32_t ctas_, kernel_;
};

inline Measured measure_one(const Bucket& bucket, std::uint64_t key, const RigOptions& options, std::uint32_t ctas) {
  return SinglePass(bucket, key, options, ctas).input();
}

// The results of a pass by their entries; each of `entries` has exactly one.
inline std::vector<Measured> by_entry(std::vector<Measured> results, std::size_t entries) {
  std::vector<Measured> ordered(entries);
  std::vector<bool> seen(entries);
  for (Measured& result : results) {
    const std::uint32_t entry = result.head.entry;
    if (entry >= entries) throw std::runtime_error("a result of entry " + std::to_string(entry));
    if (seen[entry]) throw std::runtime_error("two results of entry " + std::to_string(entry));
    seen[entry] = true;
    ordered[entry] = std::move(result);
  }
  if (results.size() != entries) {
    throw std::runtime_error(std::to_string(results.size()) + " results of " + std::to_string(entries) + " entries");
  }
  return ordered;
}

// Launches a pass, waits for its end and takes what it left.
inline std::vector<Measured> run_pass(Rig& rig, const Launch& launch) {
  Stream stream;
  rig.launch(launch, stream);
  stream.synchronize();
  EXPECT_TRUE(rig.idle());
  return rig.collect();
}

}  // namespace gradprobe::test
