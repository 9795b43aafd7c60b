// The table of communicators against a std::map, and what its users may rely on while others remove entries.
#include "preload/comm_table.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

namespace gradprobe::preload {
namespace {

const nccl::Comm* comm(std::uintptr_t i) {
  return reinterpret_cast<const nccl::Comm*>(0x7f0000000000u + i * 64);
}
void* context(std::uintptr_t i) {
  return reinterpret_cast<void*>(i + 1);
}

TEST(CommTable, HoldsWhatAMapHolds) {
  static CommTable table;
  std::map<std::uintptr_t, std::uintptr_t> reference;
  std::mt19937 random(7);
  for (std::uintptr_t step = 0; step < 200000; step++) {
    const std::uintptr_t i = random() % 3000;
    void* forgotten = nullptr;
    if (random() % 2 == 0) {
      Identity identity;
      identity.comm_id = step;
      Tracked* added = table.add(comm(i), identity, &forgotten);
      ASSERT_NE(added, nullptr);
      added->context.store(context(step));
      ASSERT_EQ(forgotten, reference.contains(i) ? context(reference[i]) : nullptr);
      reference[i] = step;
    } else {
      ASSERT_EQ(table.remove(comm(i)), reference.contains(i) ? context(reference[i]) : nullptr);
      reference.erase(i);
    }
    const std::uintptr_t looked_for = random() % 3000;
    const Acquired found(table, comm(looked_for));
    ASSERT_EQ(static_cast<bool>(found), reference.contains(looked_for));
    if (found) {
      ASSERT_EQ(found->identity.comm_id, reference[looked_for]);
    }
  }
}

TEST(CommTable, RefusesWhenItIsFull) {
  static CommTable table;
  void* forgotten = nullptr;
  std::uintptr_t i = 0;
  while (i < 10000 && table.add(comm(i), {}, &forgotten) != nullptr) i++;
  EXPECT_GE(i, 1024u);
  EXPECT_LT(i, 10000u);
  EXPECT_TRUE(Acquired(table, comm(0)));
  EXPECT_FALSE(Acquired(table, comm(i)));
  table.remove(comm(0));
  EXPECT_NE(table.add(comm(i), {}, &forgotten), nullptr);
}

TEST(CommTable, RemovingWaitsForUsersAndThenGivesUp) {
  static CommTable table;
  void* forgotten = nullptr;
  table.add(comm(1), {}, &forgotten)->context.store(context(1));
  Tracked* used = table.acquire(comm(1));
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CommTable::release(used);
  });
  EXPECT_EQ(table.remove(comm(1)), context(1));
  EXPECT_EQ(used->users.load(), 0u);
  user.join();

  table.add(comm(2), {}, &forgotten)->context.store(context(2));
  used = table.acquire(comm(2));
  EXPECT_EQ(table.remove(comm(2)), nullptr) << "the context of a communicator in use";
  EXPECT_FALSE(Acquired(table, comm(2)));
  CommTable::release(used);
}

}  // namespace
}  // namespace gradprobe::preload
