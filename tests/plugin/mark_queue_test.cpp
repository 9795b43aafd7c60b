#include "marks.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace gradprobe {
namespace {

Mark step_mark(std::uint64_t number) {
  Mark mark;
  mark.kind = MarkKind::step;
  mark.number = number;
  return mark;
}
Mark scalar_mark(const char* name, double value = 0) {
  Mark mark;
  mark.kind = MarkKind::scalar;
  mark.value = value;
  set_name(&mark, name);
  return mark;
}

TEST(MarkQueue, GivesEachMarkWhenItsOpIsReached) {
  MarkQueue queue;
  std::atomic<std::uint64_t> announced{0}, calls{0};
  queue.push(scalar_mark("a"), announced, calls);
  announced = 3;
  calls = 30;
  queue.push(scalar_mark("b"), announced, calls);
  queue.push(scalar_mark("c"), announced, calls);
  announced = 4;
  calls = 41;
  queue.push(scalar_mark("d"), announced, calls);
  EXPECT_STREQ(queue.take(0)->name, "a");
  EXPECT_FALSE(queue.take(0));
  EXPECT_FALSE(queue.take(2));
  EXPECT_STREQ(queue.take(3)->name, "b");
  EXPECT_STREQ(queue.take(3)->name, "c");
  EXPECT_FALSE(queue.take(3));
  const auto last = queue.take(100);
  ASSERT_TRUE(last);
  EXPECT_STREQ(last->name, "d");
  EXPECT_EQ(last->index, 4u);
  EXPECT_EQ(last->op, 41u);
  EXPECT_FALSE(queue.take(100));
}

// What the application counts, and the step that records carry from there on.
TEST(MarkQueue, StepsNeverFall) {
  MarkQueue queue;
  const std::atomic<std::uint64_t> announced{0}, calls{0};
  EXPECT_EQ(queue.step(), kNone);
  const std::pair<std::uint64_t, std::uint64_t> steps[] = {
      {5, 5},   {6, 6},   {6, 6},   {9, 9},                        // gaps and repetitions
      {0, 10},  {1, 11},  {1, 11},  {2, 12},                       // the next epoch counts from 0
      {0, 13},  {0, 13},  {50, 63}, {49, 64}, {50, 65}, {51, 66},  // back by one
      {51, 66}, {52, 67},
  };
  for (const auto& [number, step] : steps) {
    queue.push(step_mark(number), announced, calls);
    EXPECT_EQ(queue.step(), step) << number;
    const auto mark = queue.take(0);
    ASSERT_TRUE(mark);
    EXPECT_EQ(mark->number, number);
    EXPECT_EQ(mark->step, step);
  }
  queue.push(scalar_mark("loss"), announced, calls);
  EXPECT_EQ(queue.take(0)->step, 67u);
}

TEST(MarkQueue, NumbersThatNoStepHasAreIgnored) {
  MarkQueue queue;
  const std::atomic<std::uint64_t> announced{0}, calls{0};
  constexpr std::uint64_t kTop = (std::uint64_t{1} << 63) - 1;
  queue.push(step_mark(kNone), announced, calls);
  queue.push(step_mark(kTop + 1), announced, calls);
  EXPECT_EQ(queue.step(), kNone);
  EXPECT_FALSE(queue.take(0));
  queue.push(step_mark(kTop), announced, calls);
  EXPECT_EQ(queue.step(), kTop);
  // Nothing above is left for a count that begins again.
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, kTop}) {
    queue.push(step_mark(number), announced, calls);
    EXPECT_GE(queue.step(), kTop);
    EXPECT_NE(queue.step(), kNone);
  }
}

TEST(MarkQueue, LongNamesAreCutBetweenCharacters) {
  const std::string longest(kMarkNameBytes - 1, 'x');
  EXPECT_EQ(scalar_mark(longest.c_str()).name, longest);
  EXPECT_EQ(scalar_mark((longest + "y").c_str()).name, longest);
  EXPECT_STREQ(scalar_mark("").name, "");
  // A character of 2, 3 or 4 bytes that begins 1 ... 4 bytes before the end of what fits.
  for (const std::string character : {"\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (std::size_t before = 1; before <= 4; before++) {
      const std::string kept = longest.substr(before);
      const std::string name = kept + character + longest;
      const std::string expected = character.size() <= before ? name.substr(0, kMarkNameBytes - 1) : kept;
      EXPECT_EQ(scalar_mark(name.c_str()).name, expected) << character.size() << " " << before;
    }
  }
  // No UTF-8 at all: cut, not endless.
  EXPECT_GE(std::string(scalar_mark(std::string(400, '\x80').c_str()).name).size(), kMarkNameBytes - 4);
}

TEST(MarkQueue, FullQueueDropsScalarsBeforeSteps) {
  MarkQueue queue;
  const std::atomic<std::uint64_t> announced{0}, calls{0};
  constexpr std::size_t kScalars = MarkQueue::kCapacity - MarkQueue::kForSteps;
  for (std::size_t i = 0; i < kScalars + 10; i++)
    queue.push(scalar_mark("x", static_cast<double>(i)), announced, calls);
  EXPECT_EQ(queue.lost(), 10u);
  for (std::size_t i = 0; i < MarkQueue::kForSteps; i++) queue.push(step_mark(i), announced, calls);
  EXPECT_EQ(queue.lost(), 10u);
  queue.push(step_mark(1 << 20), announced, calls);
  EXPECT_EQ(queue.lost(), 11u);
  for (std::size_t i = 0; i < kScalars; i++) ASSERT_EQ(queue.take(0)->value, static_cast<double>(i));
  for (std::size_t i = 0; i < MarkQueue::kForSteps; i++) ASSERT_EQ(queue.take(0)->step, i);
  EXPECT_FALSE(queue.take(0));
  queue.push(scalar_mark("again"), announced, calls);
  EXPECT_STREQ(queue.take(0)->name, "again");
}

TEST(MarkQueue, ManyThreadsAndACollector) {
  constexpr int kThreads = 4, kMarks = 20000;
  MarkQueue queue;
  std::atomic<std::uint64_t> announced{0}, calls{0};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([&, t] {
      const std::string name = std::to_string(t);
      for (int i = 0; i < kMarks; i++) {
        queue.push(scalar_mark(name.c_str(), i), announced, calls);
        announced++;
      }
      running--;
    });
  }
  std::vector<double> last(kThreads, -1);
  std::uint64_t taken = 0, index = 0;
  const auto take_all = [&] {
    while (const auto mark = queue.take(announced)) {
      taken++;
      ASSERT_GE(mark->index, index);
      index = mark->index;
      double& before = last[static_cast<std::size_t>(std::stoi(mark->name))];
      ASSERT_GT(mark->value, before);
      before = mark->value;
    }
  };
  while (running > 0) take_all();
  for (std::thread& thread : threads) thread.join();
  take_all();
  EXPECT_EQ(taken + queue.lost(), std::uint64_t{kThreads} * kMarks);
}

}  // namespace
}  // namespace gradprobe
