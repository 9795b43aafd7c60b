// What profiler struct v7 (NCCL 2.31 and later) adds: symmetric kernels named in the records, the user's tag, and a
// mask that switches on nothing that gradprobe has no use for.
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin_fixture.hpp"

namespace gradprobe::test {
namespace {

class Version7 : public PluginTest {
 protected:
  Version7() { setenv("GRADPROBE_RESULT", "1", 1); }

  // A line of the log that has `text` in it.
  static std::string line_with(const std::string& text) {
    for (const std::string& line : take_log())
      if (line.find(text) != std::string::npos) return line;
    return {};
  }
  void all_reduce(FakeComm* comm, const Bucket& bucket) {
    bucket.refill();
    comm->all_reduce(bucket, stream_);
    cuStreamSynchronize(stream_);
  }
  std::uint64_t features() const {
    auto opened = RingReader::open(folder_.files().at(0));
    return opened.reader->header().features_compatible;
  }
};

TEST_F(Version7, ASymmetricKernelIsMeasuredAndSaidToBeOne) {
  const Bucket bucket(3000);
  FakeComm comm(1, 2, 0, 7);
  for (const bool symmetric : {false, true, false}) {
    comm.symmetric = symmetric;
    all_reduce(&comm, bucket);
  }
  comm.finalize();
  EXPECT_NE(features() & kFeatureSymmetric, 0u);
  const auto inputs = of_kind(RecordKind::collective), results = of_kind(RecordKind::result);
  ASSERT_EQ(inputs.size(), 3u);
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t i = 0; i < 3; i++) {
    expect_measured(inputs[i], bucket);
    EXPECT_EQ(missed(results[i]), Missed::none);
    EXPECT_EQ(inputs[i].has(kFlagSymmetric), i == 1) << i;
    EXPECT_EQ(results[i].has(kFlagSymmetric), i == 1) << i;
  }
}

TEST_F(Version7, OneOfAGroupsCollectivesIsSymmetric) {
  const Bucket a(3000, 1), b(5000, 2);
  FakeComm comm(1, 2, 0, 7);
  void* api = comm.group_api_start();
  void* first = comm.coll_api(api, a.count(), stream_);
  void* second = comm.coll_api(api, b.count(), stream_);
  comm.launch(api, stream_, {{.call = first, .input = &a}, {.call = second, .input = &b}});
  void* group = comm.group_start();
  comm.symmetric = true;
  comm.coll(second, group, b.pointer(), b.pointer(), b.count());
  comm.symmetric = false;
  comm.coll(first, group, a.pointer(), a.pointer(), a.count());
  comm.stop(group);
  comm.stop(api);
  cuStreamSynchronize(stream_);
  comm.finalize();
  auto ops = by_op();
  ASSERT_EQ(ops.size(), 2u);
  expect_measured(ops[0].at(0), a);
  expect_measured(ops[1].at(0), b);
  EXPECT_FALSE(ops[0].at(0).has(kFlagSymmetric));
  EXPECT_TRUE(ops[1].at(0).has(kFlagSymmetric));
}

TEST_F(Version7, OlderStructsDoNotSaySymmetric) {
  const Bucket bucket(3000);
  FakeComm comm(1, 2, 0, 6);
  all_reduce(&comm, bucket);
  comm.finalize();
  EXPECT_EQ(features() & kFeatureSymmetric, 0u);
  EXPECT_FALSE(of_kind(RecordKind::collective).at(0).has(kFlagSymmetric));
}

TEST_F(Version7, UserTagsReachThePlaceWhereRecordsAreMade) {
  const Bucket bucket(3000);
  FakeComm comm(1, 2, 0, 7);
  for (const std::uint64_t tag : {0u, 41u, 42u}) {
    comm.user_tag = tag;
    all_reduce(&comm, bucket);
  }
  setenv("NCCL_DEBUG", "INFO", 1);
  comm.finalize();
  EXPECT_NE(line_with("3 measured").find("3 measured, 0 missed, 2 with a user tag (the last 42), in "),
            std::string::npos);
}

TEST_F(Version7, OlderStructsHaveNoUserTags) {
  const Bucket bucket(3000);
  FakeComm comm(1, 2, 0, 6);
  all_reduce(&comm, bucket);
  setenv("NCCL_DEBUG", "INFO", 1);
  comm.finalize();
  EXPECT_NE(line_with("1 measured").find("1 measured, 0 missed, in "), std::string::npos);
}

TEST_F(Version7, AsksForNothingThatNcclsProfilerThreadWorksFor) {
  setenv("NCCL_DEBUG", "INFO", 1);
  constexpr int kKernelCh = 64, kProxy = 8 | 16 | 32, kNetPlugin = 128, kCeSyncAndBatch = 8192 | 16384,
                kKernelPhase = 32768;
  FakeComm comm(1, 2, 0, 7);
  EXPECT_EQ(comm.mask() & (kKernelCh | kProxy | kNetPlugin | kCeSyncAndBatch | kKernelPhase), 0);
  EXPECT_EQ(comm.mask(), FakeComm(2, 2, 0, 6).mask());
  EXPECT_NE(line_with("events that NCCL is asked for")
                .find("profiler struct v7, events that NCCL is asked for: 0x1b03 (Group Coll GroupApi CollApi "
                      "KernelLaunch CeColl)"),
            std::string::npos);
}

}  // namespace
}  // namespace gradprobe::test
