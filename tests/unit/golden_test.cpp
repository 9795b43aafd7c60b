// The rings in tests/data/golden were written by the scripts beside them, which share no code with the project. The
// values below are those literals: a reader of any later version must find them.
#include <gtest/gtest.h>
#include <gradprobe/ring_reader.hpp>
#include <gradprobe/scalar.hpp>

#include <cmath>

namespace gradprobe {
namespace {

const std::string kGolden = GRADPROBE_TEST_DATA "/golden/ring-v1.ring";
const std::string kMarks = GRADPROBE_TEST_DATA "/golden/ring-v1-marks.ring";
const std::string kResults = GRADPROBE_TEST_DATA "/golden/ring-v1-results.ring";

TEST(Golden, Header) {
  const auto opened = RingReader::open(kGolden);
  ASSERT_TRUE(opened.reader) << opened.error;
  const FileHeader& h = opened.reader->header();
  EXPECT_EQ(h.version, 1u);
  EXPECT_EQ(h.record_bytes, 1280u);
  EXPECT_EQ(h.sketch_floats, 256u);
  EXPECT_EQ(h.capacity, 6u);
  EXPECT_EQ(h.comm_id, 0x0123456789abcdefu);
  EXPECT_EQ(h.rank, 3u);
  EXPECT_EQ(h.nranks, 8u);
  EXPECT_EQ(h.nnodes, 2u);
  EXPECT_EQ(h.profiler_abi, 6u);
  EXPECT_EQ(h.sketch_seed, 42u);
  EXPECT_EQ(h.start_time_ns, 1'700'000'000'000'000'000u);
  EXPECT_EQ(h.pid, 4711u);
  EXPECT_EQ(field_text(h.boot_id), "00000000-1111-2222-3333-444444444444");
  EXPECT_EQ(field_text(h.host), "node7");
  EXPECT_EQ(field_text(h.comm_name), "dp");
  EXPECT_EQ(h.device_uuid[15], 15);
  EXPECT_EQ(field_text(h.device_name), "Test Device");
  EXPECT_EQ(field_text(h.job), "job-5");
  EXPECT_EQ(field_text(h.config), "GRADPROBE_SKETCH=256\nGRADPROBE_SEED=42\n");
  const LiveCounters live = opened.reader->counters();
  EXPECT_EQ(live.written, 8u);
  EXPECT_EQ(live.state, 1u);
  EXPECT_EQ(live.measured, 4u);
  EXPECT_EQ(live.gated_ns, 1500u);
  EXPECT_EQ(live.announced, 7u);
  EXPECT_EQ(live.missed[static_cast<std::size_t>(Missed::timeout)], 1u);
}

TEST(Golden, Records) {
  const auto opened = RingReader::open(kGolden);
  ASSERT_TRUE(opened.reader) << opened.error;
  RingCursor cursor(*opened.reader);
  std::vector<Record> r;
  for (Record record; cursor.next(record) == Next::record;) r.push_back(record);
  ASSERT_EQ(r.size(), 6u);
  EXPECT_EQ(cursor.losses().overwritten, 2u);
  EXPECT_EQ(cursor.losses().torn_count + cursor.losses().corrupt_count + cursor.losses().missing, 0u);

  EXPECT_EQ(r[0].number, 2u);
  EXPECT_EQ(r[0].kind(), RecordKind::scalar);
  EXPECT_EQ(loss_value(r[0].head), 0.625);
  EXPECT_TRUE(r[0].sketch.empty());

  EXPECT_EQ(r[1].kind(), RecordKind::step);
  const StepBody& step = r[1].head.step_body;
  EXPECT_EQ(step.first_op, 0u);
  EXPECT_EQ(step.ops, 3u);
  EXPECT_EQ(step.measured, 2u);
  EXPECT_EQ(step.scalars, 1u);
  EXPECT_EQ(step.elements, 300u);
  EXPECT_EQ(step.sum_squares, 6.25);
  EXPECT_EQ(step.first_bad_op, kNone);
  EXPECT_EQ(step.scalar_sum, 0.625);

  EXPECT_EQ(r[2].kind(), RecordKind::collective);
  EXPECT_EQ(r[2].head.op, 3u);
  EXPECT_EQ(r[2].head.step, 1u);
  EXPECT_EQ(r[2].head.ops_per_step, 3u);
  EXPECT_EQ(r[2].head.time_ns, 1'700'000'001'000'000'004u);
  EXPECT_TRUE(r[2].has(kFlagStepConfirmed));
  EXPECT_TRUE(r[2].has(kFlagInPlace));
  const CollectiveBody& bucket = r[2].head.collective;
  EXPECT_EQ(bucket.count, 100u);
  EXPECT_EQ(bucket.input, 0x7F0000000000u);
  EXPECT_EQ(bucket.sum_squares, 9.0);
  EXPECT_EQ(bucket.max_abs, 2.0);
  EXPECT_EQ(bucket.zero_count, kNone);
  EXPECT_EQ(bucket.gpu_start_ns, 1004u);
  EXPECT_EQ(bucket.gpu_end_ns, 2004u);
  EXPECT_EQ(bucket.sketch_key, 0xFEED + 3u);
  EXPECT_EQ(static_cast<Function>(bucket.function), Function::all_reduce);
  EXPECT_EQ(static_cast<Datatype>(bucket.datatype), Datatype::f32);
  ASSERT_EQ(r[2].sketch.size(), 256u);
  for (std::size_t i = 0; i < 256; i++) EXPECT_EQ(r[2].sketch[i], 4 + static_cast<float>(i) / 256);

  EXPECT_EQ(r[3].head.missed, static_cast<std::uint16_t>(Missed::timeout));
  EXPECT_TRUE(r[3].sketch.empty());

  EXPECT_EQ(raw_value(r[4].head.collective, 0), 1.5);
  EXPECT_EQ(raw_value(r[4].head.collective, 1), -2.0);
  EXPECT_EQ(loss_value(r[4].head), std::nullopt);

  EXPECT_EQ(r[5].number, 7u);
  EXPECT_EQ(r[5].head.collective.nan_count, 2u);
  EXPECT_EQ(r[5].head.collective.first_nonfinite, 17u);
}

TEST(Golden, Results) {
  const auto opened = RingReader::open(kResults);
  ASSERT_TRUE(opened.reader) << opened.error;
  EXPECT_EQ(opened.reader->header().features_compatible, kFeatureResults);
  EXPECT_EQ(opened.reader->counters().measured, 3u);
  EXPECT_EQ(opened.reader->counters().results, 2u);
  RingCursor cursor(*opened.reader);
  std::vector<Record> r;
  for (Record record; cursor.next(record) == Next::record;) r.push_back(record);
  ASSERT_EQ(r.size(), 6u);

  EXPECT_EQ(r[0].kind(), RecordKind::collective);
  EXPECT_EQ(r[0].head.collective.count, 8000u);
  EXPECT_EQ(r[0].head.collective.fingerprint, 0u);
  EXPECT_EQ(static_cast<Datatype>(r[1].head.collective.datatype), Datatype::f8e4m3);

  EXPECT_EQ(r[2].kind(), RecordKind::result);
  EXPECT_EQ(r[2].head.op, 0u);
  const CollectiveBody& shard = r[2].head.collective;
  EXPECT_EQ(static_cast<Function>(shard.function), Function::reduce_scatter);
  EXPECT_EQ(static_cast<Datatype>(shard.datatype), Datatype::bf16);
  EXPECT_EQ(shard.count, 1000u);
  EXPECT_EQ(shard.sum_squares, 6.25);
  EXPECT_EQ(shard.max_abs, 1.5);
  EXPECT_EQ(shard.fingerprint, 0xFEDCBA9876543210u);
  EXPECT_EQ(shard.sketch_key, 0xFEEDu);
  EXPECT_EQ(shard.raw_count, 0u);
  ASSERT_EQ(r[2].sketch.size(), 256u);
  for (std::size_t i = 0; i < 256; i++) EXPECT_EQ(r[2].sketch[i], 2 - static_cast<float>(i) / 256);

  EXPECT_EQ(r[3].kind(), RecordKind::scalar);
  EXPECT_EQ(loss_value(r[3].head), 0.1);

  EXPECT_EQ(r[4].kind(), RecordKind::result);
  EXPECT_EQ(static_cast<Missed>(r[4].head.missed), Missed::result_lost);
  EXPECT_TRUE(r[4].sketch.empty());

  EXPECT_EQ(r[5].kind(), RecordKind::result);
  EXPECT_EQ(r[5].head.op, 2u);
  EXPECT_EQ(r[5].head.collective.raw_count, 1u);
  EXPECT_EQ(raw_value(r[5].head.collective, 0), 0.8);
  // 0.8 is 3FE99999'9999999A.
  EXPECT_EQ(r[5].head.collective.fingerprint, 0x3FE99999u + 0x9999999Au);
  EXPECT_EQ(loss_value(r[5].head), std::nullopt);
}

TEST(Golden, Marks) {
  const auto opened = RingReader::open(kMarks);
  ASSERT_TRUE(opened.reader) << opened.error;
  EXPECT_EQ(opened.reader->header().features_compatible, kFeatureResults | kFeatureMarks);
  EXPECT_EQ(opened.reader->counters().marks_lost, 2u);
  RingCursor cursor(*opened.reader);
  std::vector<Record> r;
  for (Record record; cursor.next(record) == Next::record;) r.push_back(record);
  ASSERT_EQ(r.size(), 8u);
  const auto kind = [&](std::size_t i) { return static_cast<MarkKind>(r[i].head.mark.kind); };

  EXPECT_EQ(r[0].kind(), RecordKind::mark);
  EXPECT_EQ(kind(0), MarkKind::phase);
  EXPECT_EQ(field_text(r[0].head.mark.name), "Aufw\xC3\xA4rmen");
  EXPECT_EQ(r[0].head.step, kNone);
  EXPECT_FALSE(r[0].has_body());

  EXPECT_EQ(kind(1), MarkKind::step);
  EXPECT_EQ(r[1].head.mark.number, 40u);
  EXPECT_EQ(r[1].head.step, 40u);
  EXPECT_EQ(r[1].head.op, 0u);

  EXPECT_EQ(r[3].kind(), RecordKind::collective);
  EXPECT_EQ(r[3].head.ops_per_step, 0u);
  EXPECT_TRUE(r[3].has(kFlagStepConfirmed));

  EXPECT_EQ(kind(4), MarkKind::scalar);
  EXPECT_EQ(r[4].head.mark.value, 0.625);
  EXPECT_EQ(r[4].head.op, 2u);
  EXPECT_EQ(loss_value(r[4].head), std::nullopt);
  EXPECT_EQ(r[5].head.mark.number, 7u);
  EXPECT_EQ(r[5].head.step, 41u);
  EXPECT_TRUE(std::isnan(r[7].head.mark.value));
}

}  // namespace
}  // namespace gradprobe
