// Which collectives are measured: by settings, by step, by what a communicator is for; and what is said of the others.
// Whatever is chosen, the numbers of calls (RecordHead::op) and the steps are those of a run that measures everything.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "fake_nccl.hpp"

namespace gradprobe::test {
namespace {

class Choice : public ::testing::Test {
 protected:
  void SetUp() override { cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING); }
  void TearDown() override { cuStreamDestroy(stream_); }

  // One collective call whose buffers are told inline, in place.
  void call(FakeComm* comm, const Bucket& b, const char* function = "AllReduce", const char* type = "ncclFloat32") {
    b.refill();
    comm->all_reduce(b, stream_, type, function);
    cuStreamSynchronize(stream_);
  }
  // A step of a data-parallel model: three buckets and the loss.
  void step(FakeComm* comm) {
    for (const Bucket* b : {&large_, &middle_, &small_, &loss_}) call(comm, *b);
  }
  static bool is_result(const Record& r) { return r.head.kind == static_cast<int>(RecordKind::result); }
  static bool is_step(const Record& r) { return r.head.kind == static_cast<int>(RecordKind::step); }
  // Inputs and results.
  std::vector<Record> buffers() const {
    std::vector<Record> all = folder_.records();
    std::erase_if(all, [](const Record& r) { return is_step(r); });
    return all;
  }
  std::uint64_t missed(Missed reason) { return folder_.counters().missed[static_cast<std::size_t>(reason)]; }
  std::multiset<std::uint64_t> ops() {
    std::multiset<std::uint64_t> all;
    for (const Record& r : folder_.collectives())
      if (r.head.missed == 0) all.insert(r.head.op);
    return all;
  }
  void write_control(const std::string& text) {
    std::ofstream(folder_.path() + "/new") << text;
    std::filesystem::rename(folder_.path() + "/new", folder_.path() + "/control");
  }
  // Waits until the plugin has noticed.
  static bool said(const char* text) {
    for (int i = 0; i < 200; i++) {
      for (const std::string& line : take_log())
        if (line.find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  RingFolder folder_;
  Device device_;
  CUstream stream_ = nullptr;
  const Bucket large_{4000, 1}, middle_{3000, 2}, small_{2000, 3}, loss_{1, 4};
};

TEST_F(Choice, SmallInputsAreLeftOutTinyOnesAreNot) {
  setenv("GRADPROBE_MIN_COUNT", "3000", 1);
  FakeComm comm;
  for (int i = 0; i < 3; i++) step(&comm);
  comm.finalize();
  EXPECT_EQ(ops(), (std::multiset<std::uint64_t>{0, 1, 3, 4, 5, 7, 8, 9, 11}));
  EXPECT_EQ(missed(Missed::not_selected), 3u);
  EXPECT_EQ(folder_.counters().announced, 12u);
}

TEST_F(Choice, ByFunctionAndDatatype) {
  setenv("GRADPROBE_COLLECTIVES", "reducescatter", 1);
  setenv("GRADPROBE_DTYPES", "f32", 1);
  FakeComm comm(0x1234, 1);
  call(&comm, large_);
  call(&comm, large_, "ReduceScatter");
  call(&comm, loss_);
  call(&comm, large_, "ReduceScatter", "ncclFloat64");
  call(&comm, middle_, "ReduceScatter");
  comm.finalize();
  EXPECT_EQ(ops(), (std::multiset<std::uint64_t>{1, 4}));
  EXPECT_EQ(missed(Missed::not_selected), 3u);
}

// In one group, so in one launch, beside others.
TEST_F(Choice, LeftOutWithinAGroup) {
  setenv("GRADPROBE_MIN_COUNT", "2500", 1);
  FakeComm comm;
  for (int round = 0; round < 5; round++) {
    for (const Bucket* b : {&small_, &large_, &middle_}) b->refill();
    void* api = comm.group_api_start();
    void* left_out = comm.coll_api(api, small_.count(), stream_);
    void* first = comm.coll_api(api, large_.count(), stream_);
    void* second = comm.coll_api(api, middle_.count(), stream_);
    EXPECT_EQ(left_out, nullptr);
    void* launch = comm.launch_start(api, stream_);
    for (const Bucket* b : {&small_, &large_, &middle_}) nccl_kernel(*b, stream_);
    comm.stop(launch);
    void* group = comm.group_start();
    comm.coll(left_out, group, small_.pointer(), small_.pointer(), small_.count());
    comm.coll(second, group, middle_.pointer(), middle_.pointer(), middle_.count());
    comm.coll(first, group, large_.pointer(), large_.pointer(), large_.count());
    comm.stop(group);
    comm.stop(api);
    cuStreamSynchronize(stream_);
  }
  comm.finalize();
  ASSERT_EQ(ops().size(), 10u);
  for (const Record& r : folder_.collectives()) {
    const Bucket& b = r.head.op % 3 == 1 ? large_ : middle_;
    EXPECT_EQ(r.head.collective.count, b.count());
    EXPECT_NEAR(r.head.collective.sum_squares / b.sum_squares(), 1.0, 1e-7);
  }
}

// A launch of calls that are left out while an earlier collective's buffers are still to be told by a host callback.
TEST_F(Choice, ALaunchOfOthersTellsNothingOfAnEarlierBatch) {
  setenv("GRADPROBE_MIN_COUNT", "2500", 1);
  FakeComm comm;
  large_.refill();
  void* api = comm.group_api_start();
  void* first = comm.coll_api(api, large_.count(), stream_);
  void* launch = comm.launch_start(api, stream_);
  nccl_kernel(large_, stream_);
  comm.stop(launch);
  comm.stop(api);
  for (const bool announced : {true, false}) {  // false: as sends and receives
    void* other_api = comm.group_api_start();
    if (announced) comm.coll_api(other_api, small_.count(), stream_);
    void* other = comm.launch_start(other_api, stream_);
    comm.stop(other);
    void* group = comm.group_start();
    comm.stop(group);
    comm.stop(other_api);
  }
  std::thread callback([&] {
    void* group = comm.group_start();
    comm.coll(first, group, large_.pointer(), large_.pointer(), large_.count());
    comm.stop(group);
  });
  callback.join();
  cuStreamSynchronize(stream_);
  comm.finalize();
  const auto records = folder_.collectives();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(static_cast<Missed>(records[0].head.missed), Missed::none);
  EXPECT_NEAR(records[0].head.collective.sum_squares / large_.sum_squares(), 1.0, 1e-7);
}

// The calls of a group that failed are left over; a launch of sends must not wait for their buffers.
TEST_F(Choice, ALaunchOfOthersDoesNotWaitForLeftOverCalls) {
  FakeComm comm;
  void* api = comm.group_api_start();
  comm.coll_api(api, large_.count(), stream_);
  comm.stop(api);
  void* other_api = comm.group_api_start();
  void* other = comm.launch_start(other_api, stream_);
  comm.stop(other);
  comm.stop(other_api);
  cuStreamSynchronize(stream_);
  step(&comm);
  comm.finalize();
  EXPECT_EQ(ops(), (std::multiset<std::uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(missed(Missed::no_events), 1u);
  EXPECT_EQ(folder_.counters().missed[static_cast<int>(Missed::timeout)], 0u);
}

TEST_F(Choice, CommunicatorsBySize) {
  setenv("GRADPROBE_COMMS", "size>=4", 1);
  FakeComm two(1, 2), four(2, 4);
  EXPECT_EQ(two.context(), nullptr);
  EXPECT_NE(four.context(), nullptr);
  step(&two);
  step(&four);
  two.finalize();
  four.finalize();
  EXPECT_EQ(ops().size(), 4u);
}

TEST_F(Choice, TensorParallelByNameIsLeftOutUnlessAskedFor) {
  {
    FakeComm tensor(1, 2, 0, 5, "TENSOR_MODEL_PARALLEL_GROUP"), data(2, 2, 0, 5, "DATA_PARALLEL_GROUP");
    EXPECT_EQ(tensor.context(), nullptr);
    EXPECT_NE(data.context(), nullptr);
    bool told = false;
    for (const std::string& line : take_log()) told |= line.find("0000000000000001") != std::string::npos;
    EXPECT_TRUE(told);
  }
  setenv("GRADPROBE_COMMS", "all", 1);
  FakeComm tensor(3, 2, 0, 5, "TENSOR_MODEL_PARALLEL_GROUP");
  EXPECT_NE(tensor.context(), nullptr);
}

TEST_F(Choice, ActivationsByTheirTrafficAreCountedAndSaid) {
  setenv("SLURM_JOB_NUM_NODES", "4", 1);
  const Bucket activations(70'000, 5);
  FakeComm comm;
  for (int i = 0; i < 70; i++) comm.all_reduce(activations, stream_);
  call(&comm, loss_);
  cuStreamSynchronize(stream_);
  comm.finalize();
  EXPECT_EQ(ops(), (std::multiset<std::uint64_t>{70}));
  EXPECT_EQ(missed(Missed::model_parallel), 70u);
  int warnings = 0;
  for (const std::string& line : take_log()) warnings += line.find("GRADPROBE_COMMS=all") != std::string::npos ? 1 : 0;
  EXPECT_EQ(warnings, 1);
}

TEST_F(Choice, EveryThirdStep) {
  setenv("GRADPROBE_EVERY", "3", 1);
  setenv("GRADPROBE_RESULT_EVERY", "6", 1);
  FakeComm comm;
  constexpr std::uint64_t kSteps = 60;
  for (std::uint64_t i = 0; i < kSteps; i++) step(&comm);
  comm.finalize();
  // All, until the steps are known.
  std::array<int, 4 * kSteps> inputs{}, results{};
  for (const Record& r : buffers()) {
    (is_result(r) ? results : inputs)[r.head.op]++;
    if (r.has(kFlagStepConfirmed)) {
      EXPECT_EQ(r.head.step, r.head.op / 4);
    }
  }
  for (std::uint64_t op = 0; op < 48; op++) EXPECT_LE(inputs[op], 1) << op;
  for (std::uint64_t op = 48; op < 4 * kSteps; op++) {
    EXPECT_EQ(inputs[op], op / 4 % 3 == 0 ? 1 : 0) << op;
    EXPECT_EQ(results[op], op / 4 % 6 == 0 ? 1 : 0) << op;
  }
  EXPECT_EQ(folder_.counters().measured + missed(Missed::not_sampled), 4 * kSteps);
  // Steps that were measured have a record of the step.
  std::set<std::uint64_t> steps;
  for (const Record& r : folder_.records())
    if (is_step(r)) steps.insert(r.head.step);
  for (std::uint64_t i = 12; i < kSteps; i++) EXPECT_EQ(steps.count(i), i % 3 == 0 ? 1u : 0u) << i;
}

TEST_F(Choice, ControlFileSwitchesOffAndOnAgain) {
  FakeComm comm;
  for (int i = 0; i < 3; i++) step(&comm);
  write_control("measure=off\n");
  ASSERT_TRUE(said("not measuring"));
  for (int i = 0; i < 3; i++) step(&comm);
  write_control("measure=on\n");
  ASSERT_TRUE(said("every 1. step"));
  for (int i = 0; i < 3; i++) step(&comm);
  comm.finalize();
  std::multiset<std::uint64_t> expected;
  for (std::uint64_t op = 0; op < 36; op++)
    if (op < 12 || op >= 24) expected.insert(op);
  EXPECT_EQ(ops(), expected);
  EXPECT_EQ(missed(Missed::not_sampled), 12u);
}

TEST_F(Choice, ControlFileFromAStepOn) {
  FakeComm comm;
  for (int i = 0; i < 20; i++) step(&comm);
  write_control("every=5\nfrom_step=40\n");
  ASSERT_TRUE(said("from step 40"));
  for (int i = 20; i < 60; i++) step(&comm);
  comm.finalize();
  std::multiset<std::uint64_t> expected;
  for (std::uint64_t op = 0; op < 240; op++)
    if (op / 4 < 40 || op / 4 % 5 == 0) expected.insert(op);
  EXPECT_EQ(ops(), expected);
}

TEST_F(Choice, ReduceHasAResultAtItsRootOnly) {
  setenv("GRADPROBE_RESULT_EVERY", "1", 1);
  {
    FakeComm root(1, 2, 0), other(1, 2, 1);
    for (FakeComm* comm : {&root, &other}) call(comm, large_, "Reduce");
  }
  std::array<int, 2> inputs{}, results{};
  for (const std::string& file : folder_.files()) {
    auto opened = RingReader::open(file);
    ASSERT_TRUE(opened.reader);
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;) {
      if (is_step(r)) continue;
      (is_result(r) ? results : inputs)[opened.reader->header().rank]++;
      if (r.head.kind == static_cast<int>(RecordKind::collective)) {
        EXPECT_NEAR(r.head.collective.sum_squares / large_.sum_squares(), 1.0, 1e-7);
      }
      EXPECT_EQ(r.head.collective.function, static_cast<int>(Function::reduce));
    }
  }
  EXPECT_EQ(inputs, (std::array{1, 1}));
  EXPECT_EQ(results, (std::array{1, 0}));
}

// Other ranks' send buffers of a broadcast may be anything.
TEST_F(Choice, ABroadcastsInputAtItsRootOnly) {
  FakeComm root(1, 2, 0), other(2, 2, 1);
  for (FakeComm* comm : {&root, &other}) {
    call(comm, loss_, "Broadcast");
    call(comm, large_, "Broadcast");
    call(comm, large_);
    comm->finalize();
  }
  std::map<std::uint64_t, std::vector<std::uint64_t>> by_comm;
  for (const std::string& file : folder_.files()) {
    auto opened = RingReader::open(file);
    ASSERT_TRUE(opened.reader);
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;)
      if (r.has_body()) by_comm[opened.reader->header().comm_id].push_back(r.head.op);
  }
  EXPECT_EQ(by_comm[1], (std::vector<std::uint64_t>{0, 2}));
  EXPECT_EQ(by_comm[2], (std::vector<std::uint64_t>{2}));
}

class ChoiceOfReplays : public Choice {
 protected:
  CUgraphExec capture(FakeComm* comm, const Bucket& b) {
    cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    void* api = comm->group_api_start(true);
    void* call = comm->coll_api(api, b.count(), stream_, "AllReduce", "ncclFloat32", true);
    void* launch = comm->launch_start(api, stream_);
    nccl_kernel(b, stream_);
    comm->stop(launch);
    void* group = comm->group_start();
    comm->coll(call, group, b.pointer(), b.pointer(), b.count());
    comm->stop(group);
    comm->stop(api);
    CUgraph graph = nullptr;
    cuStreamEndCapture(stream_, &graph);
    CUgraphExec exec = nullptr;
    cuGraphInstantiate(&exec, graph, 0);
    cuGraphDestroy(graph);
    return exec;
  }
  void replay(CUgraphExec exec, const Bucket& b) {
    b.refill();
    ASSERT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }
};

TEST_F(ChoiceOfReplays, EverySecondAndItsResults) {
  setenv("GRADPROBE_EVERY", "2", 1);
  setenv("GRADPROBE_RESULT_EVERY", "4", 1);
  FakeComm comm;
  CUgraphExec exec = capture(&comm, large_);
  for (int i = 0; i < 10; i++) replay(exec, large_);
  cuGraphExecDestroy(exec);
  comm.finalize();
  std::vector<std::uint32_t> inputs, results;
  for (const Record& r : buffers()) (is_result(r) ? results : inputs).push_back(r.head.replay);
  EXPECT_EQ(inputs, (std::vector<std::uint32_t>{1, 3, 5, 7, 9}));
  EXPECT_EQ(results, (std::vector<std::uint32_t>{1, 5, 9}));
}

TEST_F(ChoiceOfReplays, ControlFile) {
  FakeComm comm;
  CUgraphExec exec = capture(&comm, large_);
  for (int i = 0; i < 3; i++) replay(exec, large_);
  write_control("measure=off\n");
  ASSERT_TRUE(said("not measuring"));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the collector, then the device
  for (int i = 0; i < 3; i++) replay(exec, large_);
  cuGraphExecDestroy(exec);
  comm.finalize();
  EXPECT_EQ(folder_.collectives().size(), 3u);
}

// Far more graphs than there are slots, one after another; several alive at a time.
TEST_F(ChoiceOfReplays, GraphsComeAndGo) {
  constexpr int kGraphs = 1500, kAlive = 3;
  setenv("GRADPROBE_RESULT_EVERY", "1", 1);
  setenv("GRADPROBE_RING_MB", "64", 1);
  FakeComm comm;
  std::array<const Bucket*, 3> buckets = {&loss_, &small_, &middle_};
  std::array<CUgraphExec, kAlive> alive{};
  for (int i = 0; i < kGraphs; i++) {
    CUgraphExec& exec = alive[static_cast<std::size_t>(i % kAlive)];
    if (exec != nullptr) cuGraphExecDestroy(exec);
    const Bucket& b = *buckets[static_cast<std::size_t>(i % kAlive)];
    exec = capture(&comm, b);
    for (int n = 0; n <= i % 2; n++) replay(exec, b);
    // Slots are given back by the collector, which needs its turn.
    if (i % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (CUgraphExec exec : alive) cuGraphExecDestroy(exec);
  comm.finalize();
  EXPECT_EQ(missed(Missed::backlog), 0u);
  std::map<std::uint64_t, std::vector<std::uint32_t>> replays, results;
  for (const Record& r : buffers()) {
    const bool result = is_result(r);
    (result ? results : replays)[r.head.op].push_back(r.head.replay);
    const Bucket& b = *buckets[r.head.op % kAlive];
    EXPECT_EQ(static_cast<Missed>(r.head.missed), Missed::none);
    EXPECT_EQ(r.head.collective.count, b.count());
    if (!result) {
      EXPECT_NEAR(r.head.collective.sum_squares / b.sum_squares(), 1.0, 1e-7) << r.head.op;
    }
  }
  ASSERT_EQ(replays.size(), static_cast<std::size_t>(kGraphs));
  for (const auto& all : {replays, results})
    for (const auto& [op, runs] : all)
      EXPECT_EQ(runs, op % 2 == 0 ? (std::vector<std::uint32_t>{1}) : (std::vector<std::uint32_t>{1, 2})) << op;
}

// Collectives that NCCL launches without a word share a captured batch with others: replays wait for them a few times,
// then no more, and the others are measured.
TEST_F(ChoiceOfReplays, DoNotWaitForEverForWhatIsNeverTold) {
  setenv("GRADPROBE_GATE_TIMEOUT", "200", 1);
  FakeComm comm;
  cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  void* api = comm.group_api_start(true);
  comm.coll_api(api, middle_.count(), stream_, "AllReduce", "ncclFloat32", true);
  void* told = comm.coll_api(api, large_.count(), stream_, "AllReduce", "ncclFloat32", true);
  void* launch = comm.launch_start(api, stream_);
  nccl_kernel(large_, stream_);
  comm.stop(launch);
  comm.stop(api);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  cuStreamEndCapture(stream_, &graph);
  cuGraphInstantiate(&exec, graph, 0);
  cuGraphDestroy(graph);
  for (int i = 0; i < 8; i++) {
    std::thread callback([&] {
      void* group = comm.group_start();
      comm.coll(told, group, large_.pointer(), large_.pointer(), large_.count());
      comm.stop(group);
    });
    callback.join();
    replay(exec, large_);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the collector's turn
  }
  cuGraphExecDestroy(exec);
  comm.finalize();
  auto records = folder_.collectives();
  std::erase_if(records, [](const Record& r) { return static_cast<Missed>(r.head.missed) == Missed::timeout; });
  ASSERT_GE(records.size(), 3u);
  for (const Record& r : records) {
    EXPECT_EQ(r.head.collective.count, large_.count());
    EXPECT_NEAR(r.head.collective.sum_squares / large_.sum_squares(), 1.0, 1e-7);
  }
  EXPECT_GE(missed(Missed::timeout), 3u);
  EXPECT_EQ(missed(Missed::no_events), 1u);
}

}  // namespace
}  // namespace gradprobe::test
