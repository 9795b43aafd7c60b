#include <gtest/gtest.h>
#include <sys/mman.h>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "this_machine.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

const std::string kGolden = GRADPROBE_TEST_DATA "/golden/ring-v1.ring";

std::vector<Json> objects(const Outcome& o) {
  std::vector<Json> all;
  for (const std::string& line : lines(o.out)) all.push_back(Json::parse(line));
  return all;
}

TEST(Dump, TextTableIsAligned) {
  const Outcome o = run_tool({"dump", kGolden});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.err, "");
  const auto table = lines(o.out);
  ASSERT_EQ(table.size(), 7u);
  const std::size_t column = table[0].find("status");
  ASSERT_NE(column, std::string::npos);
  EXPECT_EQ(table[1].substr(column, 8), "measured");
  EXPECT_EQ(table[2].substr(column, 5), "3 ops");
  EXPECT_EQ(table[4].substr(column, 7), "timeout");
  EXPECT_NE(table[1].find("0.625"), std::string::npos);
  EXPECT_NE(table[5].find("1.5,-2"), std::string::npos);
  EXPECT_NE(table[6].find(" 17 "), std::string::npos);
}

TEST(Dump, JsonHasTheGoldenValues) {
  const auto o = objects(run_tool({"dump", "--json", kGolden}));
  ASSERT_EQ(o.size(), 6u);
  EXPECT_EQ(o[0]["comm"], "0123456789abcdef");
  EXPECT_EQ(o[0]["rank"], 3);
  EXPECT_EQ(o[0]["kind"], "scalar");
  EXPECT_EQ(o[0]["values"], Json::array({0.625}));
  EXPECT_TRUE(o[0]["norm"].is_null());
  EXPECT_EQ(o[1]["kind"], "step");
  EXPECT_EQ(o[1]["norm"], 2.5);
  EXPECT_EQ(o[1]["elements"], 300);
  EXPECT_TRUE(o[1]["first_bad_op"].is_null());
  EXPECT_EQ(o[2]["norm"], 3.0);
  EXPECT_EQ(o[2]["step"], 1);
  EXPECT_EQ(o[2]["function"], "AllReduce");
  EXPECT_EQ(o[2]["datatype"], "f32");
  EXPECT_EQ(o[2]["in_place"], true);
  EXPECT_EQ(o[2]["sketch_key"], "000000000000fef0");
  EXPECT_FALSE(o[2].contains("sketch"));
  EXPECT_EQ(o[3]["status"], "timeout");
  EXPECT_TRUE(o[3]["norm"].is_null());
  EXPECT_TRUE(o[3]["nan"].is_null());
  EXPECT_EQ(o[4]["values"], Json::array({1.5, -2.0}));
  EXPECT_EQ(o[5]["nan"], 2);
  EXPECT_EQ(o[5]["first_nonfinite"], 17);
}

TEST(Dump, JsonSketch) {
  const auto o = objects(run_tool({"dump", "--json", "--sketch", "--kind", "collective", kGolden}));
  ASSERT_EQ(o.size(), 3u);
  ASSERT_EQ(o[0]["sketch"].size(), 256u);
  EXPECT_EQ(o[0]["sketch"][128], 4.5);
  EXPECT_EQ(o[1]["sketch"].size(), 0u);
}

TEST(Dump, NonFiniteNumbersAreStrings) {
  TemporaryFolder folder;
  SyntheticRing ring(RingSpec{});
  ring.append(make_scalar(0, 0, 0, 1, NAN));
  ring.append(make_scalar(1, 0, 0, 1, INFINITY));
  ring.append(make_scalar(2, 0, 0, 1, -INFINITY));
  ring.save(folder / "a.ring");
  const auto o = objects(run_tool({"dump", "--json", folder / "a.ring"}));
  ASSERT_EQ(o.size(), 3u);
  EXPECT_EQ(o[0]["values"][0], "NaN");
  EXPECT_EQ(o[1]["values"][0], "Infinity");
  EXPECT_EQ(o[2]["values"][0], "-Infinity");
}

TEST(Dump, Filters) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.write(folder);
  const auto count = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"dump", "--json"});
    options.push_back(folder.path());
    const Outcome o = run_tool(options);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return objects(o).size();
  };
  EXPECT_EQ(count({}), 4u * 18);
  EXPECT_EQ(count({"--kind", "scalar"}), 4u * 6);
  EXPECT_EQ(count({"--kind", "step"}), 0u);
  EXPECT_EQ(count({"--kind", "scalar", "--kind", "collective"}), 4u * 18);
  EXPECT_EQ(count({"--rank", "2"}), 18u);
  EXPECT_EQ(count({"--rank", "2", "--rank", "0"}), 36u);
  EXPECT_EQ(count({"--rank", "1,2,3"}), 54u);
  EXPECT_EQ(count({"--step", "3"}), 4u * 3);
  EXPECT_EQ(count({"--step", "3:4"}), 4u * 6);
  EXPECT_EQ(count({"--step", ":1"}), 4u * 6);
  EXPECT_EQ(count({"--step", "4:"}), 4u * 6);
  EXPECT_EQ(count({"--step", "99:"}), 0u);
  EXPECT_EQ(count({"--step", "1:1", "--rank", "0", "--kind", "scalar"}), 1u);
}

TEST(Dump, OrderAndStepsOfUnconfirmedRecords) {
  TemporaryFolder folder;
  TrainingSpec spec;
  spec.confirmed = false;
  TrainingRun run(spec);
  run.write(folder);
  const auto all = objects(run_tool({"dump", "--json", folder.path()}));
  ASSERT_EQ(all.size(), 72u);
  for (std::size_t i = 0; i < all.size(); i++) {
    EXPECT_EQ(all[i]["rank"], i / 18);
    EXPECT_EQ(all[i]["number"], i % 18);
    EXPECT_EQ(all[i]["step"], i % 18 / 3);
    EXPECT_EQ(all[i]["step_confirmed"], false);
  }
}

TEST(Dump, SeveralCommunicatorsGetAColumn) {
  TemporaryFolder folder;
  TrainingSpec spec;
  TrainingRun(spec).write(folder);
  spec.comm_id = 0xBEEF;
  TrainingRun(spec).write(folder);
  const auto table = lines(run_tool({"dump", folder.path()}).out);
  EXPECT_EQ(table[0].rfind("comm", 0), 0u);
  EXPECT_EQ(table[1].rfind("000000000000beef", 0), 0u);
}

TEST(Dump, DamagedRecordsAreSaid) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.write(folder);
  SyntheticRing& ring = run.ring(1);
  ring.bytes()[ring.slot(4) + 300] ^= 1;
  ring.save(run.path(folder, 1));
  const Outcome o = run_tool({"dump", "--json", run.path(folder, 1)});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(objects(o).size(), 17u);
  EXPECT_NE(o.err.find("1 record(s) damaged"), std::string::npos) << o.err;
}

TEST(Dump, OtherFilesInAFolderAreSkippedWithANote) {
  TemporaryFolder folder;
  TrainingRun(TrainingSpec{}).write(folder);
  std::ofstream(folder / "broken.ring") << "hello, this is no ring";
  std::ofstream(folder / "notes.txt") << "x";
  const Outcome o = run_tool({"dump", "--json", folder.path()});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(objects(o).size(), 72u);
  EXPECT_NE(o.err.find("skipped " + (folder / "broken.ring") + ": not a gradprobe ring"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("1 other file(s) skipped"), std::string::npos) << o.err;
}

TEST(Info, SaysWhatIsInTheGoldenRing) {
  const Outcome o = run_tool({"info", kGolden});
  EXPECT_EQ(o.exit_code, 0);
  for (const char* part :
       {"0123456789abcdef \"dp\"", "3 of 8, 2 node(s)", "4711 on node7, job \"job-5\"", "Test Device", "finalized",
        "2023-11-14 22:13:20.000 UTC", "version 1, 6 records of 1280 bytes", "8 record(s), 2 overwritten",
        "6: 3 collective, 1 step, 2 scalar", "GRADPROBE_SKETCH=256",
        "1: NCCL named the buffers later than GRADPROBE_GATE_TIMEOUT (timeout)"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << "\n" << o.out;
  }
}

TEST(Info, TornDamagedTruncated) {
  TemporaryFolder folder;
  SyntheticRing ring(spec_of_dead_writer());
  for (std::uint64_t i = 0; i < 6; i++) ring.append(make_collective(i, i, 0, 1, 100, 1));
  const auto stores = ring.stores(make_collective(6, 6, 0, 1, 100, 1), {});
  for (std::size_t i = 0; i < 100; i++) ring.bytes()[stores[i].first] = stores[i].second;
  ring.bytes()[ring.slot(2) + 100] ^= 4;
  ring.save(folder / "a.ring");
  std::string out = run_tool({"info", folder / "a.ring"}).out;
  EXPECT_NE(out.find("1 (number 6): the writer was killed in it"), std::string::npos) << out;
  EXPECT_NE(out.find("damaged        1 (number 2)"), std::string::npos) << out;
  std::filesystem::resize_file(folder / "a.ring", 4096 + 1280 * 4 + 7);
  out = run_tool({"info", folder / "a.ring"}).out;
  EXPECT_NE(out.find("2 record(s) lost with the rest"), std::string::npos) << out;
}

// Names come from the file: none may reach the terminal as control characters.
TEST(Info, NoControlCharacters) {
  TemporaryFolder folder;
  SyntheticRing ring(RingSpec{});
  FileHeader h = make_header(RingSpec{});
  std::memcpy(h.comm_name, "\x1b[31mred\x07\xff", 10);
  h.crc = slow_crc32c(reinterpret_cast<const unsigned char*>(&h), offsetof(FileHeader, crc));
  std::memcpy(ring.bytes().data(), &h, sizeof h);
  ring.save(folder / "a.ring");
  for (const char* command : {"info", "compare", "dump"}) {
    for (const char c : run_tool({command, folder / "a.ring"}).out) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  }
}

}  // namespace
}  // namespace gradprobe::test
