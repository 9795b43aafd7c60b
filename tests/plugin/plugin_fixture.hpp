// What most tests of the plugin need: a folder for rings, a device, a stream, and what a record of a bucket must say.
#pragma once

#include <gtest/gtest.h>

#include <map>

#include "fake_nccl.hpp"

namespace gradprobe::test {

class PluginTest : public ::testing::Test {
 protected:
  void SetUp() override { cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING); }
  void TearDown() override { cuStreamDestroy(stream_); }

  void expect_measured(const Record& r, const Bucket& b) {
    EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none) << "op " << r.head.op;
    EXPECT_EQ(r.head.collective.count, b.count()) << "op " << r.head.op;
    EXPECT_NEAR(r.head.collective.sum_squares / b.sum_squares(), 1.0, 1e-7) << "op " << r.head.op;
  }
  static Missed missed(const Record& r) { return static_cast<Missed>(r.head.missed); }
  std::uint64_t missed(Missed reason) const { return folder_.counters().missed[static_cast<int>(reason)]; }

  // Inputs of the only ring by op, replays of one op in their order.
  std::map<std::uint64_t, std::vector<Record>> by_op() const {
    std::map<std::uint64_t, std::vector<Record>> ops;
    for (const Record& r : folder_.collectives())
      if (r.kind() != RecordKind::result) ops[r.head.op].push_back(r);
    return ops;
  }
  std::vector<Record> of_kind(RecordKind kind) const { return folder_.records(kind); }

  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
};

}  // namespace gradprobe::test
