#include "scenarios.h"

#include <native.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <thread>

#include "ranks.h"

namespace scenarios {
namespace {

constexpr size_t kCount = 1024;
constexpr int kRanks = 2;

// Notes the call and its result in the trace, with the thread that makes it.
ncclResult_t traced(const char* name, const std::function<ncclResult_t()>& call) {
  std::string text = std::string("\"text\":\"") + name + "\"";
  standin_cuda_trace(("\"src\":\"app\",\"ev\":\"call\"," + text).c_str());
  ncclResult_t r = call();
  standin_cuda_trace(("\"src\":\"app\",\"ev\":\"return\"," + text + ",\"result\":" + std::to_string(r)).c_str());
  return r;
}
#define TRACED(name, ...) traced(#name, [&] { return name(__VA_ARGS__); })
#define CALL(name, ...) ASSERT_NCCL(TRACED(name, __VA_ARGS__))

// One rank's stream and buffers.
struct Rank {
  ncclComm_t comm = nullptr;
  ranks::StreamHandle stream;
  ranks::Buffer<float> a{1 << 17}, b{1 << 17}, c{1 << 17};
  float* in_place(int i) { return (i == 0 ? a : i == 1 ? b : c).data(); }

  void init(int rank, const ncclUniqueId& id) { CALL(ncclCommInitRank, &comm, kRanks, id, rank); }
  void all_reduce(float* from, float* to, size_t count = kCount) {
    CALL(ncclAllReduce, from, to, count, ncclFloat, ncclSum, comm, stream);
  }
  void destroy() { CALL(ncclCommDestroy, comm); }
};

// A communicator's life around some calls; the stream is idle before the end.
template <typename Calls>
ranks::Body around(Calls calls) {
  return [calls](int rank, int, const ncclUniqueId& id) {
    Rank r;
    r.init(rank, id);
    calls(r);
    r.stream.synchronize();
    r.destroy();
  };
}

void grouped(Rank& r, const size_t (&counts)[3]) {
  CALL(ncclGroupStart);
  for (int i = 0; i < 3; i++) r.all_reduce(r.in_place(i), r.in_place(i), counts[i]);
  CALL(ncclGroupEnd);
}

void captured_and_replayed(Rank& r) {
  r.all_reduce(r.a.data(), r.b.data());
  r.stream.synchronize();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_CU(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  r.all_reduce(r.a.data(), r.c.data());
  ASSERT_CU(cuStreamEndCapture(r.stream, &graph));
  ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) {
    ASSERT_CU(cuGraphLaunch(exec, r.stream));
    r.stream.synchronize();
  }
  ASSERT_CU(cuGraphExecDestroy(exec));
  ASSERT_CU(cuGraphDestroy(graph));
}

ncclResult_t wait_until_done(ncclComm_t comm) {
  ncclResult_t r = ncclInProgress;
  while (ncclCommGetAsyncError(comm, &r) == ncclSuccess && r == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return r;
}

void non_blocking(int rank, int, const ncclUniqueId& id) {
  Rank r;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ASSERT_EQ(TRACED(ncclCommInitRankConfig, &r.comm, kRanks, id, rank, &config), ncclInProgress);
  ASSERT_NCCL(wait_until_done(r.comm));
  ASSERT_EQ(TRACED(ncclAllReduce, r.a.data(), r.a.data(), kCount, ncclFloat, ncclSum, r.comm, r.stream),
            ncclInProgress);
  ASSERT_NCCL(wait_until_done(r.comm));
  r.stream.synchronize();
  ncclResult_t finalize = TRACED(ncclCommFinalize, r.comm);
  ASSERT_TRUE(finalize == ncclSuccess || finalize == ncclInProgress);
  ASSERT_NCCL(wait_until_done(r.comm));
  r.destroy();
}

// One thread drives all devices.
void multi_device(int calls_each) {
  ncclComm_t comms[kRanks];
  const int devices[kRanks] = {0, 1};
  CALL(ncclCommInitAll, comms, kRanks, devices);
  std::vector<std::unique_ptr<Rank>> all;
  for (int i = 0; i < kRanks; i++) {
    ranks::use_device(i);
    all.push_back(std::make_unique<Rank>());
    all.back()->comm = comms[i];
  }
  CALL(ncclGroupStart);
  for (auto& r : all)
    for (int i = 0; i < calls_each; i++) r->all_reduce(r->in_place(i), r->in_place(i));
  CALL(ncclGroupEnd);
  for (auto& r : all) r->stream.synchronize();
  for (auto& r : all) r->destroy();
}

}  // namespace

void run(const std::string& name, const Settings& settings) {
  auto setup = [&](int) {
    setenv("STANDIN_NCCL_VERSION", settings.nccl_version.c_str(), 1);
    setenv("NCCL_PROFILER_PLUGIN", settings.plugin.c_str(), 1);
    setenv("STANDIN_CUDA_TRACE", settings.trace_file.c_str(), 1);
    setenv("CALL_LOG_MASK", std::to_string(settings.mask).c_str(), 1);
    if (name.ends_with("-net")) setenv("STANDIN_NCCL_NODES", "2", 1);
    if (name == "single-blocking") setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  };
  auto single = around([](Rank& r) { r.all_reduce(r.a.data(), r.a.data()); });
  if (name == "threads") return ranks::run_threads(kRanks, single, setup);
  if (name.starts_with("multidev"))
    return ranks::run(
        1, [&](int, int, const ncclUniqueId&) { multi_device(name == "multidev" ? 1 : 2); }, setup);
  if (name.starts_with("single")) return ranks::run(kRanks, single, setup);
  if (name == "nonblocking") return ranks::run(kRanks, non_blocking, setup);
  if (name.starts_with("graph")) return ranks::run(kRanks, around(captured_and_replayed), setup);
  if (name == "outofplace")
    return ranks::run(kRanks, around([](Rank& r) { r.all_reduce(r.a.data(), r.b.data()); }), setup);
  if (name == "group3") return ranks::run(kRanks, around([](Rank& r) { grouped(r, {kCount, kCount, kCount}); }), setup);
  if (name == "group3sizes")
    return ranks::run(kRanks, around([](Rank& r) { grouped(r, {4096, 65536, 16384}); }), setup);
  if (name == "allgather")
    return ranks::run(kRanks, around([](Rank& r) {
                        CALL(ncclAllGather, r.a.data(), r.b.data(), kCount, ncclFloat, r.comm, r.stream);
                      }),
                      setup);
  if (name == "reducescatter")
    return ranks::run(kRanks, around([](Rank& r) {
                        CALL(ncclReduceScatter, r.a.data(), r.b.data(), kCount, ncclFloat, ncclSum, r.comm, r.stream);
                      }),
                      setup);
  FAIL() << "no scenario named " << name;
}

}  // namespace scenarios
