// NCCL may call with handles of communicators that are gone, of others, or with none at all: such calls change nothing.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <span>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint64_t kEvents[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 1u << 20, 0};

// What may come from another thread than that which uses the communicator.
constexpr std::uint64_t kOfHostCallbacks[] = {1, 2};

// A descriptor of any type whose fields are as NCCL would fill them.
Descriptor descriptor(std::uint64_t type, void* parent, CUstream stream, const Bucket& bucket) {
  Descriptor d;
  d.type = type;
  d.parent = parent;
  switch (type) {
    case 512:
      d.coll_api = {"AllReduce", bucket.count(), "ncclFloat32", 0, stream, false, 0};
      break;
    case 2048:
      d.kernel_launch = {stream};
      break;
    case 2:
      d.coll = {0,      "AllReduce", bucket.pointer(), bucket.pointer(), bucket.count(), 0, "ncclFloat32", 1, 8,
                "RING", "LL",        nullptr,          nullptr,          false,          0};
      break;
    default:
      break;
  }
  return d;
}

// Every callback with `context` and `handle`; true when the plugin took none of the events.
bool call_everything(void* context, void* handle, CUstream stream, const Bucket& bucket,
                     std::span<const std::uint64_t> events = kEvents) {
  const ProfilerV5& p = profiler();
  bool none = true;
  for (const std::uint64_t type : events) {
    Descriptor d = descriptor(type, handle, stream, bucket);
    void* got = reinterpret_cast<void*>(0xdeadbeefull);
    EXPECT_EQ(p.start_event(context, &got, &d), 0);
    none &= got == nullptr;
    EXPECT_EQ(p.stop_event(handle), 0);
    EXPECT_EQ(p.record_event_state(handle, 23, nullptr), 0);
  }
  return none;
}

struct Rig {
  RingFolder folder;
  Device device;
  CUstream stream = nullptr;
  Bucket bucket{900};
  Rig() { cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }

  // The handles that one all-reduce gives.
  std::vector<void*> all_reduce(FakeComm* comm) const {
    bucket.refill();
    void* api = comm->group_api_start();
    void* call = comm->coll_api(api, bucket.count(), stream);
    void* launch = comm->launch_start(api, stream);
    nccl_kernel(bucket, stream);
    comm->stop(launch);
    void* group = comm->group_start();
    comm->coll(call, group, bucket.pointer(), bucket.pointer(), bucket.count());
    comm->stop(group);
    comm->stop(api);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    return {api, call, launch, group, comm->context()};
  }

  // All `n` collectives of the communicator `id` were measured, with the right norm.
  void expect_all_measured(std::uint64_t id, std::uint64_t n) const {
    for (const std::string& file : folder.files()) {
      auto opened = RingReader::open(file);
      ASSERT_TRUE(opened.reader) << opened.error;
      if (opened.reader->header().comm_id != id) continue;
      const LiveCounters counters = opened.reader->counters();
      EXPECT_EQ(counters.announced, n);
      EXPECT_EQ(counters.measured, n);
      RingCursor cursor(*opened.reader);
      for (Record r; cursor.next(r) == Next::record;)
        if (r.has_body()) {
          EXPECT_NEAR(r.head.collective.sum_squares / bucket.sum_squares(), 1, 1e-7);
        }
    }
  }
};

TEST(Handles, OfAFinalizedCommunicator) {
  const Rig rig;
  FakeComm alive(1);
  std::vector<void*> stale;
  {
    FakeComm gone(2);
    stale = rig.all_reduce(&gone);
  }
  std::uint64_t n = 0;
  for (void* context : stale)
    for (void* handle : stale) {
      EXPECT_TRUE(call_everything(context, handle, rig.stream, rig.bucket));
      rig.all_reduce(&alive);
      n++;
    }
  EXPECT_EQ(profiler().finalize(stale.back()), 0);
  // Those of earlier users of a place in the process's table differ from the living one's in a few bits.
  const std::vector<void*> living = rig.all_reduce(&alive);
  n++;
  for (int bit = 44; bit <= 60; bit++) {
    const auto other = [bit](void* handle) {
      return reinterpret_cast<void*>(reinterpret_cast<std::uint64_t>(handle) ^ std::uint64_t{1} << bit);
    };
    for (void* handle : living)
      EXPECT_TRUE(call_everything(other(living.back()), other(handle), rig.stream, rig.bucket));
    EXPECT_EQ(profiler().finalize(other(living.back())), 0);
    rig.all_reduce(&alive);
    n++;
  }
  alive.finalize();
  rig.expect_all_measured(1, n);
  EXPECT_EQ(profiler().finalize(alive.context()), 0);  // twice
}

TEST(Handles, OfAnotherCommunicatorAndWithoutSense) {
  const Rig rig;
  FakeComm one(1), other(2);
  std::mt19937_64 random(1);
  std::uint64_t n = 0;
  for (int round = 0; round < 20; round++) {
    // Between the calls of one communicator come those that name the other's handles.
    const std::vector<void*> foreign = rig.all_reduce(&other);
    n++;
    rig.bucket.refill();
    void* api = one.group_api_start();
    void* call = one.coll_api(api, rig.bucket.count(), rig.stream);
    void* launch = one.launch_start(api, rig.stream);
    nccl_kernel(rig.bucket, rig.stream);
    one.stop(launch);
    void* group = one.group_start();
    one.coll(foreign[1], group, reinterpret_cast<void*>(0x1000), nullptr, 7);
    one.coll(nullptr, group, reinterpret_cast<void*>(0x1000), nullptr, 7);
    one.coll(foreign[4], group, reinterpret_cast<void*>(0x1000), nullptr, 7);
    one.coll(call, group, rig.bucket.pointer(), rig.bucket.pointer(), rig.bucket.count());
    one.stop(foreign[3]);
    one.stop(group);
    one.stop(api);
    EXPECT_EQ(cuStreamSynchronize(rig.stream), CUDA_SUCCESS);
    for (int i = 0; i < 500; i++) {
      void* const context = i % 2 == 0 ? nullptr : reinterpret_cast<void*>(random() | 0xFFull << 52);
      EXPECT_TRUE(call_everything(context, reinterpret_cast<void*>(random()), rig.stream, rig.bucket));
    }
  }
  one.finalize();
  other.finalize();
  rig.expect_all_measured(1, n);
  rig.expect_all_measured(2, n);
}

// NCCL promises that no callback runs beside finalize; a host callback of a graph that the user still replays may.
TEST(Handles, WhileTheCommunicatorIsFinalized) {
  const Rig rig;
  setenv("GRADPROBE_GATE_TIMEOUT", "20", 1);  // of gates whose buffers never come
  FakeComm alive(1);
  for (int round = 0; round < 8; round++) {
    FakeComm comm(2);
    const std::vector<void*> handles = rig.all_reduce(&comm);
    std::atomic<bool> stop{false};
    std::atomic<int> running{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
      threads.emplace_back([&, i] {
        cuCtxSetCurrent(rig.device.context());
        CUstream stream = nullptr;
        cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
        const Bucket bucket(50, static_cast<unsigned>(i));
        while (!stop) {
          if (i == 0)
            comm.all_reduce(bucket, stream);
          else
            call_everything(comm.context(), handles[static_cast<std::size_t>(i) + 1], stream, bucket, kOfHostCallbacks);
          running++;
        }
        cuStreamSynchronize(stream);
        cuStreamDestroy(stream);
      });
    while (running < 20 + round) std::this_thread::yield();
    comm.finalize();
    const int before = running;
    while (running < before + 3) std::this_thread::yield();
    stop = true;
    for (std::thread& t : threads) t.join();
    EXPECT_TRUE(call_everything(comm.context(), handles[1], rig.stream, rig.bucket));
  }
  setenv("GRADPROBE_GATE_TIMEOUT", "5000", 1);
  FakeComm after(3);
  rig.all_reduce(&after);
  after.finalize();
  rig.expect_all_measured(3, 1);
}

// One thread is inside a launch all the while, as if the driver held it.
TEST(Handles, WhileALaunchIsUnderWay) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);  // the driver's launches block; the plugin isn't told
  const Rig rig;
  unsetenv("CUDA_LAUNCH_BLOCKING");
  setenv("GRADPROBE_GATE_TIMEOUT", "4000", 1);
  FakeComm comm(1);
  void* api = comm.group_api_start();
  void* call = comm.coll_api(api, rig.bucket.count(), rig.stream);
  static std::atomic<bool> entered, released;
  // What the launch waits for. The call that enqueues it blocks, too.
  std::thread holder([&] {
    cuCtxSetCurrent(rig.device.context());
    cuLaunchHostFunc(
        rig.stream,
        [](void*) {
          entered = true;
          while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        nullptr);
  });
  while (!entered) std::this_thread::yield();
  std::thread launcher([&] {
    cuCtxSetCurrent(rig.device.context());
    comm.stop(comm.launch_start(api, rig.stream));
    void* group = comm.group_start();
    comm.coll(call, group, rig.bucket.pointer(), rig.bucket.pointer(), rig.bucket.count());
    comm.stop(group);
    comm.stop(api);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the launch is under way
  std::atomic<bool> finalized{false};
  std::thread finalizer([&] {
    comm.finalize();
    finalized = true;
  });
  // From the beginning of finalize on no call counts, while it waits for the device.
  while (comm.coll_api(nullptr, 10, rig.stream) != nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(finalized);
  EXPECT_EQ(comm.launch_start(nullptr, rig.stream), nullptr);
  finalizer.join();  // it doesn't wait for the launch
  EXPECT_FALSE(released);
  released = true;
  launcher.join();
  holder.join();
  EXPECT_EQ(cuStreamSynchronize(rig.stream), CUDA_SUCCESS);  // the kernel still found its memory
  const LiveCounters c = rig.folder.counters();
  EXPECT_EQ(c.state, static_cast<std::uint64_t>(RingState::finalized));
  EXPECT_EQ(c.measured, 0u);
}

}  // namespace
}  // namespace gradprobe::test
