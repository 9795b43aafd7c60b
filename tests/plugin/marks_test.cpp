// Marks through gradprobe.h, into the loaded plugin and its rings.
#include <gradprobe/gradprobe.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include <gradprobe/step_assignment.hpp>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

std::vector<Record> marks_of(const RingFolder& folder) {
  std::vector<Record> all = folder.records();
  std::erase_if(all, [](const Record& r) { return r.kind() != RecordKind::mark; });
  return all;
}

MarkKind kind_of(const Record& r) {
  return static_cast<MarkKind>(r.head.mark.kind);
}
std::string name_of(const Record& r) {
  return field_text(r.head.mark.name);
}

TEST(Marks, WithoutThePluginNothingHappens) {
  EXPECT_EQ(gradprobe_version(), nullptr);
  gradprobe_step(1);
  gradprobe_scalar("loss", 2.0);
  gradprobe_phase("train");
  // Loaded later, it is found.
  plugin_library();
  ASSERT_NE(gradprobe_version(), nullptr);
  EXPECT_STREQ(gradprobe_version(), GRADPROBE_TEST_VERSION);
}

TEST(Marks, StandBetweenTheCollectivesThatTheyWereCalledBetween) {
  const RingFolder folder;
  const Device device;
  const Bucket bucket(1000);
  {
    FakeComm comm;
    comm.all_reduce(bucket, nullptr);  // of no step
    for (std::uint64_t s = 0; s < 20; s++) {
      gradprobe_step(100 + s);
      comm.all_reduce(bucket, nullptr);
      gradprobe_scalar("loss", static_cast<double>(s) + 0.5);
      comm.all_reduce(bucket, nullptr);
      comm.all_reduce(bucket, nullptr);
    }
    gradprobe_phase("eval");
  }
  const std::vector<Record> all = folder.records();
  std::uint64_t op = 0, step = kNone;
  std::uint32_t in_step = 0;
  std::size_t marks = 0, steps = 0;
  for (const Record& r : all) {
    if (r.kind() == RecordKind::step) {
      EXPECT_EQ(r.head.step, 100 + steps++);
      EXPECT_EQ(r.head.step_body.ops, 3u);
      EXPECT_EQ(r.head.step_body.first_op, 1 + 3 * (r.head.step - 100));
      continue;
    }
    if (r.kind() == RecordKind::mark) {
      marks++;
      EXPECT_EQ(r.head.op, op);
      if (kind_of(r) == MarkKind::step) {
        step = r.head.mark.number;
        in_step = 0;
        EXPECT_EQ(op, 1 + 3 * (step - 100));
      } else if (kind_of(r) == MarkKind::scalar) {
        EXPECT_EQ(name_of(r), "loss");
        EXPECT_EQ(r.head.mark.value, static_cast<double>(step - 100) + 0.5);
        EXPECT_EQ(op, 2 + 3 * (step - 100));
      } else {
        EXPECT_EQ(name_of(r), "eval");
        EXPECT_EQ(op, 61u);
      }
      EXPECT_EQ(r.head.step, step);
      EXPECT_TRUE(r.has(kFlagStepConfirmed));
      continue;
    }
    EXPECT_EQ(r.head.op, op++);
    EXPECT_EQ(r.head.step, step);
    EXPECT_EQ(r.has(kFlagStepConfirmed), step != kNone);
    if (step == kNone) continue;
    EXPECT_EQ(r.head.step_op, in_step++);
    EXPECT_EQ(r.head.ops_per_step, 0u);
  }
  EXPECT_EQ(op, 61u);
  EXPECT_EQ(marks, 41u);
  EXPECT_EQ(steps, 20u);
  EXPECT_EQ(folder.counters().marks_lost, 0u);
}

// From its first step mark on, whatever the sequence says.
TEST(Marks, HoldAgainstStepsThatWereFound) {
  const RingFolder folder;
  const Device device;
  const Bucket bucket(100), scalar(1);
  {
    FakeComm comm;
    for (int i = 0; i < 30; i++) {
      comm.all_reduce(bucket, nullptr);
      comm.all_reduce(scalar, nullptr);
    }
    for (std::uint64_t s = 7; s < 10; s++) {
      gradprobe_step(s);
      for (int i = 0; i < 5; i++) comm.all_reduce(bucket, nullptr);
    }
  }
  std::vector<NumberedHead> heads;
  for (const Record& r : folder.records()) heads.push_back({r.number, r.head});
  const std::vector<AssignedStep> steps = assign_steps(heads);
  for (std::size_t i = 0; i < heads.size(); i++) {
    const RecordHead& head = heads[i].head;
    if (static_cast<RecordKind>(head.kind) == RecordKind::step || !detail::is_op(head)) continue;
    // What was found before 7 is void from step 7 on.
    const std::uint64_t expected = head.op < 14 ? head.op / 2 : head.op < 60 ? kNone : 7 + (head.op - 60) / 5;
    EXPECT_EQ(steps[i].step, expected) << head.op;
  }
}

TEST(Marks, GoToEveryCommunicatorAtItsOwnPlace) {
  const RingFolder folder;
  const Device device;
  const Bucket bucket(100);
  {
    FakeComm a(0xA), b(0xB);
    for (int i = 0; i < 3; i++) a.all_reduce(bucket, nullptr);
    gradprobe_step(5);
    b.all_reduce(bucket, nullptr);
    gradprobe_scalar("x", -1);
    a.all_reduce(bucket, nullptr);
  }
  ASSERT_EQ(folder.files().size(), 2u);
  const std::vector<Record> marks = marks_of(folder);
  ASSERT_EQ(marks.size(), 4u);  // of A, then of B
  EXPECT_EQ(marks[0].head.op, 3u);
  EXPECT_EQ(marks[1].head.op, 3u);
  EXPECT_EQ(marks[2].head.op, 0u);
  EXPECT_EQ(marks[3].head.op, 1u);
}

TEST(Marks, StepAndPhaseHoldForLaterCommunicators) {
  const RingFolder folder;
  const Device device;
  const Bucket bucket(100);
  plugin_library();
  gradprobe_step(3);
  gradprobe_phase("train");
  gradprobe_scalar("loss", 1);  // a moment's: gone
  for (std::uint64_t i = 0; i < 2; i++) {
    FakeComm comm(100 + i);
    comm.all_reduce(bucket, nullptr);
    if (i == 0) gradprobe_step(4);
    comm.all_reduce(bucket, nullptr);
  }
  std::vector<std::uint64_t> steps;
  for (const Record& r : folder.collectives()) steps.push_back(r.head.step);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{3, 4, 4, 4}));
  const std::vector<Record> marks = marks_of(folder);
  ASSERT_EQ(marks.size(), 5u);
  EXPECT_EQ(name_of(marks[1]), "train");
  EXPECT_EQ(marks[2].head.mark.number, 4u);
  EXPECT_EQ(marks[3].head.op, 0u);
  EXPECT_EQ(name_of(marks[4]), "train");
}

TEST(Marks, OddValuesAndNames) {
  const RingFolder folder;
  const Device device;
  {
    FakeComm comm;
    gradprobe_scalar("nan", std::nan(""));
    gradprobe_scalar("inf", -INFINITY);
    gradprobe_scalar(nullptr, 1);
    gradprobe_phase(nullptr);
    gradprobe_phase("");
    gradprobe_scalar(std::string(100000, 'y').c_str(), 1);
    gradprobe_step(UINT64_MAX);
  }
  const std::vector<Record> marks = marks_of(folder);
  ASSERT_EQ(marks.size(), 4u);
  EXPECT_TRUE(std::isnan(marks[0].head.mark.value));
  EXPECT_EQ(marks[1].head.mark.value, -INFINITY);
  EXPECT_EQ(name_of(marks[2]), "");
  EXPECT_EQ(name_of(marks[3]), std::string(159, 'y'));
  for (const Record& r : marks) EXPECT_EQ(r.head.step, kNone);
}

TEST(Marks, AfterFinalizeNothingHappens) {
  const RingFolder folder;
  const Device device;
  const Bucket bucket(100);
  FakeComm comm;
  gradprobe_step(1);
  comm.all_reduce(bucket, nullptr);
  comm.finalize();
  gradprobe_step(2);
  gradprobe_scalar("loss", 1);
  EXPECT_EQ(marks_of(folder).size(), 1u);
}

// Threads mark while others call collectives and communicators come and go. Each thread's marks keep their order.
TEST(Marks, FromManyThreads) {
  const RingFolder folder;
  setenv("GRADPROBE_RING_MB", "2", 1);
  setenv("GRADPROBE_SKETCH", "0", 1);
  const Device device;
  constexpr int kThreads = 3, kMarks = 200;
  {
    FakeComm comm;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++) {
      threads.emplace_back([t] {
        const std::string name = std::to_string(t);
        for (int i = 0; i < kMarks; i++) {
          gradprobe_scalar(name.c_str(), i);
          gradprobe_step(static_cast<std::uint64_t>(i));
        }
      });
    }
    const Bucket bucket(100);
    for (int i = 0; i < 5; i++) {
      comm.all_reduce(bucket, nullptr);
      FakeComm other(0x99);
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::size_t scalars = 0;
  std::uint64_t step = 0, last_op = 0;
  std::vector<double> last(kThreads, -1);
  const auto opened = RingReader::open(folder.files().back());  // 0x1234: the others' numbers are lower
  ASSERT_TRUE(opened.reader) << opened.error;
  ASSERT_EQ(opened.reader->header().comm_id, 0x1234u);
  RingCursor cursor(*opened.reader);
  for (Record r; cursor.next(r) == Next::record;) {
    if (r.kind() != RecordKind::mark) continue;
    ASSERT_GE(r.head.op, last_op);
    last_op = r.head.op;
    if (r.has(kFlagStepConfirmed)) {
      ASSERT_GE(r.head.step, step);
      step = r.head.step;
    }
    if (kind_of(r) != MarkKind::scalar) continue;
    scalars++;
    double& before = last[static_cast<std::size_t>(std::stoi(name_of(r)))];
    ASSERT_GT(r.head.mark.value, before);
    before = r.head.mark.value;
  }
  EXPECT_EQ(opened.reader->counters().marks_lost, 0u);
  EXPECT_EQ(scalars, std::size_t{kThreads} * kMarks);
}

// The parent's collector may hold any lock at the moment of the fork.
TEST(Marks, InAForkedChildNothingHappens) {
  const RingFolder folder;
  const Device device;
  FakeComm comm;
  std::atomic<bool> stop{false}, looked{false};
  std::thread busy([&] {
    for (; !stop; looked = true) gradprobe_scalar("parent", 1);
  });
  // ThreadSanitizer's own lock of dlopen doesn't survive a fork in the middle of the thread's first look-up.
  while (!looked) std::this_thread::yield();
  for (int i = 0; i < 20; i++) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      gradprobe_step(9);
      gradprobe_scalar("child", 1);
      gradprobe_phase("child");
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  busy.join();
  comm.finalize();
  for (const Record& r : marks_of(folder)) ASSERT_EQ(name_of(r), "parent");
}

// Exit handlers of the application run after or before the plugin's.
TEST(Marks, DuringExit) {
  const RingFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const Device device;
    std::atexit([] { gradprobe_scalar("early", 1); });  // runs last
    {
      auto* comm = new FakeComm;
      gradprobe_step(1);
      static_cast<void>(comm);  // never destroyed: the plugin's exit handler finishes the ring
    }
    std::atexit([] { gradprobe_scalar("late", 1); });  // runs first
    std::exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  const std::vector<Record> marks = marks_of(folder);
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(kind_of(marks[0]), MarkKind::step);
  EXPECT_EQ(name_of(marks[1]), "late");
  EXPECT_EQ(folder.counters().state, static_cast<std::uint64_t>(RingState::exited));
}

// Results are measured in every N-th step as the application counts.
TEST(Marks, SayWhichStepsResultsAreMeasured) {
  const RingFolder folder;
  setenv("GRADPROBE_RESULT", "5", 1);
  const Device device;
  const Bucket bucket(100);
  {
    FakeComm comm;
    for (std::uint64_t s = 1; s <= 20; s++) {
      gradprobe_step(s);
      for (int i = 0; i < 2; i++) comm.all_reduce(bucket, nullptr);
    }
  }
  std::vector<std::uint64_t> steps;
  for (const Record& r : folder.records())
    if (r.kind() == RecordKind::result) steps.push_back(r.head.step);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{5, 5, 10, 10, 15, 15, 20, 20}));
}

}  // namespace
}  // namespace gradprobe::test
