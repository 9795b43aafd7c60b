// From init to the end of the process, in every order that frameworks and users come up with.
#include <gtest/gtest.h>
#include <gradprobe/ring_reader.hpp>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "ranks.hpp"

namespace gradprobe::faults {
namespace {

struct Ring {
  FileHeader header{};
  LiveCounters counters{};
  std::vector<Record> inputs;  // with a body
};

std::vector<Ring> read_rings(const std::string& folder) {
  std::vector<Ring> rings;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    auto opened = RingReader::open(entry.path());
    // A process may have ended while it made its ring.
    EXPECT_TRUE(opened.reader || opened.error.find("no header yet") != std::string::npos) << opened.error;
    if (!opened.reader) continue;
    Ring ring;
    ring.header = opened.reader->header();
    ring.counters = opened.reader->counters();
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;)
      if (r.has_body() && static_cast<RecordKind>(r.head.kind) != RecordKind::result) ring.inputs.push_back(r);
    EXPECT_EQ(cursor.losses().torn_count + cursor.losses().corrupt_count, 0u);
    rings.push_back(std::move(ring));
  }
  return rings;
}

std::uint64_t missed(const LiveCounters& counters) {
  std::uint64_t n = 0;
  for (const std::uint64_t m : counters.missed) n += m;
  return n;
}

// All rings have this state, and of every call in them it is known what became of it. A captured call is announced once
// and has a record for each of its `replays`.
void expect_accounted(const std::vector<Ring>& rings, RingState state, std::size_t count) {
  EXPECT_EQ(rings.size(), count);
  for (const Ring& ring : rings) {
    EXPECT_EQ(ring.counters.state, static_cast<std::uint64_t>(state));
    std::set<std::uint64_t> captured;
    std::uint64_t replays = 0;
    for (const Record& r : ring.inputs)
      if (r.has(kFlagCaptured)) {
        captured.insert(r.head.op);
        replays++;
      }
    EXPECT_EQ(ring.counters.measured + missed(ring.counters), ring.counters.announced - captured.size() + replays);
    EXPECT_EQ(ring.inputs.size(), ring.counters.measured + missed(ring.counters));
  }
}

constexpr std::size_t kComms = 2;  // of each rank

class Life : public ::testing::Test {
 protected:
  // Runs a scenario whose ranks end well, and checks the weights.
  std::vector<Ring> run_well(const std::string& scenario, const Environment& environment = {}) {
    Job job;
    job.scenario = scenario;
    job.all = environment;
    Running running(job);
    expect_trained(running.wait(), scenario, scenario);
    return read_rings(running.rings());
  }
};

TEST_F(Life, DestroyedWhileResultsAreInFlight) {
  expect_accounted(run_well("destroy_in_flight", {{"GRADPROBE_RESULT", "1"}}), RingState::finalized, kRanks * kComms);
}

TEST_F(Life, ClosedAndLoadedAgain) {
  expect_accounted(run_well("again", {{"FAULTS_COLLECTORS", "1"}}), RingState::finalized, 3 * kRanks * kComms);
}

TEST_F(Life, DestroyedInAnExitHandlerBehindThePlugins) {
  expect_accounted(run_well("destroy_in_exit_handler"), RingState::exited, kRanks * kComms);
}

TEST_F(Life, ExitOnAnotherThreadWithoutDestroy) {
  expect_accounted(run_well("exit_on_another_thread"), RingState::exited, kRanks * kComms);
}

TEST_F(Life, ForkedChildrenLeaveTheRingsAlone) {
  expect_accounted(run_well("fork_after_init", {{"FAULTS_RINGS", "1"}}), RingState::finalized, kRanks * kComms);
}

TEST_F(Life, ForkBeforeInit) {
  expect_accounted(run_well("fork_before_init"), RingState::finalized, kRanks * kComms);
}

TEST_F(Life, ExecWithLiveCommunicators) {
  Job job;
  job.scenario = "exec";
  Running running(job);
  expect_trained(running.wait(), "exec", "exec");
  const std::vector<Ring> rings = read_rings(running.rings());
  EXPECT_EQ(rings.size(), kRanks * kComms);
  for (const Ring& ring : rings) {
    // As after a kill: nothing said that it was the end.
    EXPECT_EQ(ring.counters.state, static_cast<std::uint64_t>(RingState::running));
    EXPECT_NE(kill(static_cast<pid_t>(ring.header.pid), 0), 0);
  }
}

TEST_F(Life, AbortWhileARankIsMissing) {
  Job job;
  job.scenario = "abort";
  Running running(job);
  for (const Rank& rank : running.wait()) {
    EXPECT_EQ(rank.status, 0) << rank.err;
    EXPECT_LE(rank.plugin_lines.size(), 4u) << rank.err;  // rank 0's banner and summaries
  }
  expect_accounted(read_rings(running.rings()), RingState::finalized, kRanks * kComms);
}

TEST_F(Life, KilledRankLeavesAReadableRing) {
  Job job;
  job.scenario = "kill_one";
  Running running(job);
  const std::vector<Rank> ranks = running.wait();
  EXPECT_EQ(ranks[1].status, 128 + SIGKILL);
  for (const int r : {0, 2}) {
    EXPECT_NE(ranks[static_cast<std::size_t>(r)].status, kHung);
    EXPECT_NE(ranks[static_cast<std::size_t>(r)].status, 0);  // its training can't go on
  }
  for (const Ring& ring : read_rings(running.rings())) {
    if (ring.header.rank != 1) continue;
    EXPECT_EQ(ring.counters.state, static_cast<std::uint64_t>(RingState::running));
    EXPECT_GT(ring.counters.announced, 0u);
    // Two steps were over: of each communicator at most what the collector had not read yet is lost.
    EXPECT_LE(ring.inputs.size(), ring.counters.measured + missed(ring.counters));
  }
}

TEST_F(Life, ExitInASignalHandlerWhereverItComes) {
  unsigned times = 0;
  {
    Job job;
    job.scenario = "exit_in_signal_handler";
    job.one[1] = {{"FAULTS_COUNT", "FOLDER/libc"}, {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    expect_trained(running.wait(), "no signal", "exit_in_signal_handler");
    times = read_counts(running.folder() / "libc")["time_on_main_thread"];
  }
  ASSERT_GT(times, 4u);
  // In init, in launches, where the communicator's mutex is held, and in finalize, where the process's is.
  for (unsigned i = 0; i <= 8; i++) {
    const unsigned n = std::max(1u, times * i / 8);
    Job job;
    job.scenario = "exit_in_signal_handler";
    job.one[1] = {{"FAULTS_SIGNAL", std::to_string(n)}, {"LD_PRELOAD", FAULTS_LIBC}};
    Running running(job);
    const std::vector<Rank> ranks = running.wait();
    EXPECT_EQ(ranks[1].status, 7) << "signal " << n << " of " << times << "\n" << ranks[1].err;
    for (const Ring& ring : read_rings(running.rings())) EXPECT_LE(ring.inputs.size(), ring.counters.announced + 100);
  }
}

TEST_F(Life, LaunchBlocking) {
  Job job;
  job.all = {{"CUDA_LAUNCH_BLOCKING", "1"}};
  Running running(job);
  expect_trained(running.wait(), "CUDA_LAUNCH_BLOCKING=1");
  const std::vector<Ring> rings = read_rings(running.rings());
  expect_accounted(rings, RingState::finalized, kRanks * kComms);
  for (const Ring& ring : rings)
    for (const Record& r : ring.inputs)
      EXPECT_EQ(static_cast<Missed>(r.head.missed), r.has(kFlagCaptured) ? Missed::none : Missed::launch_blocking);
}

TEST_F(Life, NcclsOwnLaunchFails) {
  // On all ranks, the launch of the second step's first bucket, when the gate is already on the stream.
  const std::string scenario = "start_again_after_failure";
  const Environment failure = {{"STANDIN_CUDA_FAIL", "cuLaunchKernelEx@libnccl:5:719"},
                               {"GRADPROBE_GATE_TIMEOUT", "300"}};
  Job without;
  without.scenario = scenario;
  without.plugin = false;
  without.all = failure;
  const std::vector<Rank> expected = run(without);
  Job with = without;
  with.plugin = true;
  Running running(with);
  const std::vector<Rank> ranks = running.wait();
  for (std::size_t r = 0; r < ranks.size(); r++) {
    EXPECT_EQ(expected[r].status, 0) << expected[r].err;
    EXPECT_EQ(ranks[r].status, 0) << ranks[r].err;
    EXPECT_FALSE(ranks[r].weights.empty());
    EXPECT_TRUE(ranks[r].weights == expected[r].weights);
  }
  expect_accounted(read_rings(running.rings()), RingState::finalized, 2 * kRanks * kComms);
}

class Stopped : public Life {
 protected:
  static Job job(const std::string& how) {
    Job job;
    job.scenario = "mark";
    job.all = {{"GRADPROBE_GATE_TIMEOUT", "300"}};
    job.one[1] = {{"NCCL_PROFILER_PLUGIN", FAULTS_STOPPING},
                  {"FAULTS_INNER", GRADPROBE_PLUGIN_FILE},
                  {"FAULTS_STOP", std::to_string(kLaunch) + ":" + how}};
    return job;
  }
  // The first step launches a bucket, a group, one more bucket and the loss; the next one is the second step's first.
  static constexpr int kLaunch = 5;
  static constexpr std::uint64_t kOp = 4;  // of the communicator that reduces gradients

  static Missed outcome(const std::vector<Ring>& rings, std::uint32_t rank) {
    for (const Ring& ring : rings)
      if (ring.header.rank == rank && ring.inputs.size() > kOp)
        return static_cast<Missed>(ring.inputs.at(kOp).head.missed);
    return Missed::count_;
  }
};

TEST_F(Stopped, HostThreadDelaysNobodyBeyondTheGatesTimeOut) {
  Running running(job("thread"));
  expect_trained(running.wait(), "stopped thread", "mark");
  // Rank 1's host went on only when the others had the collective's result.
  EXPECT_TRUE(std::filesystem::exists(running.folder() / "others_were_first"));
  const std::vector<Ring> rings = read_rings(running.rings());
  expect_accounted(rings, RingState::finalized, kRanks * kComms);
  EXPECT_EQ(outcome(rings, 1), Missed::timeout);
}

TEST_F(Stopped, WholeProcessGoesOnAsIfNothingHadBeen) {
  Running running(job("process"));
  ASSERT_TRUE(running.wait_until_stopped(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // longer than the gate waits
  kill(running.pid(1), SIGCONT);
  expect_trained(running.wait(), "stopped process", "mark");
  expect_accounted(read_rings(running.rings()), RingState::finalized, kRanks * kComms);
}

}  // namespace
}  // namespace gradprobe::faults
