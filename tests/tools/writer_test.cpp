// What the tool says and does about the process that writes a ring.
#include <gtest/gtest.h>
#include <regex.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "run_tool.hpp"
#include "this_machine.hpp"
#include "training_run.hpp"

namespace gradprobe::test {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kFinalized = 1, kExited = 2;
constexpr std::uint64_t kSecond = 1'000'000'000;

std::uint32_t own_pid() {
  return static_cast<std::uint32_t>(getpid());
}

std::vector<Json> objects(const Outcome& o) {
  std::vector<Json> all;
  for (const std::string& line : lines(o.out)) all.push_back(Json::parse(line));
  return all;
}

void expect_part(const std::string& whole, const std::string& part) {
  EXPECT_NE(whole.find(part), std::string::npos) << part << "\nis not in\n" << whole;
}

// For ages, which grow a little while the tool starts.
void expect_match(const std::string& whole, const std::string& pattern) {
  regex_t compiled;
  ASSERT_EQ(regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NOSUB), 0);
  EXPECT_EQ(regexec(&compiled, whole.c_str(), 0, nullptr, 0), 0) << pattern << "\nis not in\n" << whole;
  regfree(&compiled);
}

// A writer whose process number means nothing here, for each reason and both for a number that some process here has
// and for one that none has.
std::vector<RingSpec> specs_of_foreign_writers() {
  std::vector<RingSpec> specs;
  for (const std::uint32_t pid : {own_pid(), spec_of_dead_writer().pid}) {
    RingSpec spec = spec_of_writer(pid);
    spec.boot_id = "another boot";
    specs.push_back(spec);
    spec = spec_of_writer(pid);
    spec.host = "x" + spec.host;
    specs.push_back(spec);
    spec = spec_of_writer(pid);
    spec.pid_namespace++;
    specs.push_back(spec);
    spec = spec_of_writer(pid);
    spec.boot_id.clear();
    specs.push_back(spec);
  }
  return specs;
}

std::string info_of(const RingSpec& spec, std::uint64_t heartbeat, std::uint64_t state = 0) {
  TemporaryFolder folder;
  SyntheticRing ring(spec);
  ring.set_heartbeat(heartbeat);
  ring.set_counter(2056, state);
  ring.save(folder / "a.ring");
  return run_tool({"info", folder / "a.ring"}).out;
}

// A ring whose writer is this test.
class GrowingRing {
 public:
  GrowingRing(const TemporaryFolder& folder, const RingSpec& spec)
      : ring_(roomy(spec)), path_(folder / "growing.ring") {
    ring_.set_heartbeat(now_ns());
    ring_.save(path_);
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  }
  ~GrowingRing() { close(fd_); }
  GrowingRing(const GrowingRing&) = delete;
  GrowingRing& operator=(const GrowingRing&) = delete;

  void append() {
    const std::uint64_t n = ring_.written();
    const RecordHead head = make_collective(n, n, 0, 1, 100, 1);
    for (const auto& [offset, byte] : ring_.stores(head, {})) {
      EXPECT_EQ(pwrite(fd_, &byte, 1, static_cast<off_t>(offset)), 1);
    }
    ring_.append(head);
  }
  void set_state(std::uint64_t state) { EXPECT_EQ(pwrite(fd_, &state, 8, 2056), 8); }
  void set_heartbeat(std::uint64_t ns) { EXPECT_EQ(pwrite(fd_, &ns, 8, 2064), 8); }
  const std::string& path() const { return path_; }

 private:
  static RingSpec roomy(RingSpec spec) {
    spec.capacity = 64;
    return spec;
  }
  SyntheticRing ring_;
  std::string path_;
  int fd_ = -1;
};

TEST(Follow, PrintsWhatIsAddedAndEndsWithTheRing) {
  TemporaryFolder folder;
  GrowingRing ring(folder, spec_of_writer(own_pid()));
  ring.append();
  Tool tool({"dump", "--json", "--follow", ring.path()});
  EXPECT_TRUE(tool.printed("\"number\":0,"));
  ring.append();
  EXPECT_TRUE(tool.printed("\"number\":1,"));
  for (int i = 0; i < 30; i++) ring.append();
  ring.set_state(kFinalized);
  const Outcome o = tool.wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  const auto all = objects(o);
  ASSERT_EQ(all.size(), 32u);
  for (std::size_t i = 0; i < all.size(); i++) EXPECT_EQ(all[i]["number"], i);
}

TEST(Follow, EndsWhenTheWriterIsGone) {
  TemporaryFolder folder;
  GrowingRing ring(folder, spec_of_dead_writer());
  ring.append();
  const Outcome o = run_tool({"dump", "--follow", ring.path()});
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(lines(o.out).size(), 2u);
}

TEST(Follow, EndsWithCtrlC) {
  TemporaryFolder folder;
  GrowingRing ring(folder, spec_of_writer(own_pid()));
  ring.append();
  Tool tool({"dump", "--json", "--follow", ring.path()});
  EXPECT_TRUE(tool.printed("\"number\":0,"));
  tool.signal(SIGINT);
  EXPECT_EQ(tool.wait().exit_code, 0);
}

TEST(Follow, EndsWhenTheProcessExitsInOrder) {
  TemporaryFolder folder;
  GrowingRing ring(folder, spec_of_writer(own_pid()));
  ring.append();
  Tool tool({"dump", "--json", "--follow", ring.path()});
  EXPECT_TRUE(tool.printed("\"number\":0,"));
  ring.append();
  ring.set_state(kExited);
  const Outcome o = tool.wait();
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(o.err, "");
  EXPECT_EQ(objects(o).size(), 2u);
}

TEST(Follow, GoesOnWithAWriterElsewhereUntilItsHeartbeatStops) {
  for (const RingSpec& spec : specs_of_foreign_writers()) {
    TemporaryFolder folder;
    GrowingRing ring(folder, spec);
    ring.append();
    Tool tool({"dump", "--json", "--follow", ring.path()});
    EXPECT_TRUE(tool.printed("\"number\":0,"));
    ring.append();
    EXPECT_TRUE(tool.printed("\"number\":1,"));
    ring.set_heartbeat(now_ns() - 60 * kSecond);
    const Outcome o = tool.wait();
    EXPECT_EQ(o.exit_code, 0);
    EXPECT_EQ(objects(o).size(), 2u);
    expect_part(o.err, "can't be seen from here: not followed any longer");
    EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
  }
}

TEST(Info, StateOfAWriterHere) {
  expect_part(info_of(spec_of_writer(own_pid()), now_ns()), "running: process");
  expect_part(info_of(spec_of_writer(own_pid()), 1), "stopped updating");
  expect_part(info_of(spec_of_dead_writer(), now_ns()), "died without finalizing");
  // Rings of a plugin that didn't know its namespace, or had none.
  RingSpec spec = spec_of_writer(own_pid());
  spec.pid_namespace = 0;
  expect_part(info_of(spec, now_ns()), "running: process");
  spec.pid = spec_of_dead_writer().pid;
  expect_part(info_of(spec, now_ns()), "died without finalizing");
}

TEST(Info, StateOfAWriterElsewhereIsJudgedByItsHeartbeat) {
  for (const RingSpec& spec : specs_of_foreign_writers()) {
    expect_match(info_of(spec, now_ns() - 3 * kSecond), "alive elsewhere, heartbeat [3-9] s ago");
    expect_match(info_of(spec, now_ns() + 2 * kSecond), "alive elsewhere, heartbeat [0-9] s ago");
    expect_match(info_of(spec, now_ns() - 75 * kSecond),
                 "unknown: no heartbeat for (7[5-9]|8[0-9]) s; its process can't be seen");
    expect_part(info_of(spec, now_ns() - 5 * 3600 * kSecond), "unknown: no heartbeat for 5 h;");
    expect_part(info_of(spec, now_ns() - 72 * 3600 * kSecond), "unknown: no heartbeat for 3 days;");
    expect_part(info_of(spec, now_ns() + 100 * kSecond), " s ahead of this clock; its process can't be seen");
    expect_part(info_of(spec, 0), "unknown: no heartbeat yet; its process can't be seen");
    expect_part(info_of(spec, UINT64_MAX), "ahead of this clock");
  }
}

// The other way round: the tool in a PID namespace of its own, in which no process has the writer's number.
TEST(Info, ToolInAnotherPidNamespace) {
  const std::string unshare = "unshare --user --map-root-user --pid --fork ";
  if (std::system((unshare + "true 2>/dev/null").c_str()) != 0) GTEST_SKIP() << "no PID namespace may be made here";
  TemporaryFolder folder;
  SyntheticRing ring(spec_of_writer(own_pid()));
  ring.set_heartbeat(now_ns());
  ring.save(folder / "a.ring");
  const std::string command = unshare + GRADPROBE_TOOL + " info " + (folder / "a.ring") + " >" + (folder / "out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  expect_part(contents(folder / "out"), "alive elsewhere, heartbeat ");
}

TEST(Info, StateThatTheWriterLeft) {
  std::vector<RingSpec> specs = specs_of_foreign_writers();
  specs.push_back(spec_of_dead_writer());
  specs.push_back(spec_of_writer(own_pid()));
  for (const RingSpec& spec : specs) {
    expect_part(info_of(spec, 1, kFinalized), "finalized: the communicator was destroyed in order");
    const std::string exited = info_of(spec, 1, kExited);
    expect_part(exited, "exited without destroying the communicator");
    EXPECT_EQ(exited.find("died"), std::string::npos) << exited;
  }
}

TEST(Info, RecordBeingWrittenElsewhereIsNotTorn) {
  RingSpec spec = spec_of_dead_writer();
  const auto torn = [](const RingSpec& writer, std::uint64_t heartbeat) {
    TemporaryFolder folder;
    SyntheticRing ring(writer);
    ring.append(make_collective(0, 0, 0, 1, 100, 1));
    const auto stores = ring.stores(make_collective(1, 1, 0, 1, 100, 1), {});
    for (std::size_t i = 0; i < 100; i++) ring.bytes()[stores[i].first] = stores[i].second;
    ring.set_heartbeat(heartbeat);
    ring.save(folder / "a.ring");
    return run_tool({"info", folder / "a.ring"}).out;
  };
  expect_part(torn(spec, now_ns()), "1 (number 1): the writer was killed in it");
  spec.pid_namespace++;
  expect_part(torn(spec, now_ns()), "torn           none");
  expect_part(torn(spec, 1), "1 (number 1): the writer did not finish it");
}

// Four ranks of one run; rank 3 writes only two of six steps.
std::string compare_with_rank_3(const RingSpec& writer, std::uint64_t heartbeat, std::uint64_t state) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.steps_of = [](std::uint32_t rank) { return rank == 3 ? std::uint64_t{2} : std::uint64_t{6}; };
  run.write(folder);
  SyntheticRing& ring = run.ring(3);
  RingSpec spec = ring.spec();
  spec.pid = writer.pid;
  spec.boot_id = writer.boot_id;
  spec.host = writer.host;
  spec.pid_namespace = writer.pid_namespace;
  const FileHeader header = make_header(spec);
  std::memcpy(ring.bytes().data(), &header, sizeof header);
  ring.set_heartbeat(heartbeat);
  ring.set_counter(2056, state);
  ring.save(run.path(folder, 3));
  return run_tool({"compare", folder.path()}).out;
}

TEST(CompareFindings, WhatBecameOfAShortRing) {
  const std::string ends = "rank 3's ring ends at step 1, the longest at 5: ";
  expect_part(compare_with_rank_3(spec_of_dead_writer(), now_ns(), 0), ends + "its process is gone without finalizing");
  expect_part(compare_with_rank_3(spec_of_writer(own_pid()), now_ns(), 0), ends + "its process is still running");
  for (const RingSpec& spec : specs_of_foreign_writers()) {
    std::string out = compare_with_rank_3(spec, now_ns(), 0);
    expect_part(out, ends + "its process is alive elsewhere (heartbeat ");
    EXPECT_EQ(out.find("died"), std::string::npos) << out;
    expect_part(compare_with_rank_3(spec, now_ns() - 80 * kSecond, 0),
                ends + "it was not finalized (no heartbeat for 8");
    out = compare_with_rank_3(spec, 1, kExited);
    expect_part(out, ends + "its process ended in order without destroying the communicator");
    EXPECT_EQ(out.find("died"), std::string::npos) << out;
  }
}

TEST(CompareFindings, ExitInOrderIsNoFinding) {
  TemporaryFolder folder;
  TrainingRun run(TrainingSpec{});
  run.write(folder);
  for (std::uint32_t r = 0; r < 4; r++) {
    run.ring(r).set_counter(2056, kExited);
    run.ring(r).save(run.path(folder, r));
  }
  const Outcome o = run_tool({"compare", "--fail-on-findings", folder.path()});
  EXPECT_EQ(o.exit_code, 0) << o.out;
  expect_part(o.out, "Nothing conspicuous found");
}

}  // namespace
}  // namespace gradprobe::test
