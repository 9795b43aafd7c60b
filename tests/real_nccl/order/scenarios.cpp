// Short programs of two ranks, run on whatever libnccl.so.2 and libcuda.so.1 the loader finds, whose calls go into the
// common trace (STANDIN_CUDA_TRACE): nccl_scenarios NAME... In-place all-reduces of 1024 floats on one stream unless
// the name says otherwise. Scenarios that need the same surroundings share one start of the processes; starts run at
// the same time.
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kRanks = 2;
constexpr size_t kCount = 1024, kBufferBytes = 1 << 19;
constexpr auto kLimit = std::chrono::seconds(120);  // for all scenarios

void note(const std::string& json) {
  using Trace = unsigned long long (*)(const char*);
  static const auto trace = reinterpret_cast<Trace>(dlsym(RTLD_DEFAULT, "standin_cuda_trace"));
  if (trace) trace(("\"src\":\"app\"," + json).c_str());
}

[[noreturn]] void fail(const std::string& what, int result) {
  fprintf(stderr, "nccl_scenarios: %s returned %d\n", what.c_str(), result);
  _exit(1);
}

#define CU(name, ...)                                                             \
  do {                                                                            \
    if (const CUresult r_ = name(__VA_ARGS__)) fail(#name, static_cast<int>(r_)); \
  } while (false)

// Notes the call and its result in the trace, with the thread that makes it.
ncclResult_t traced(const char* name, const std::function<ncclResult_t()>& call) {
  const std::string text = std::string("\"text\":\"") + name + "\"";
  note("\"ev\":\"call\"," + text);
  const ncclResult_t r = call();
  note("\"ev\":\"return\"," + text + ",\"result\":" + std::to_string(r));
  return r;
}
#define TRACED(name, ...) traced(#name, [&] { return name(__VA_ARGS__); })
#define CALL(name, ...)                                                     \
  do {                                                                      \
    if (const ncclResult_t r_ = TRACED(name, __VA_ARGS__)) fail(#name, r_); \
  } while (false)

// Shared by the processes of a start, which fork before CUDA or NCCL is touched.
struct Shared {
  std::atomic<int> ids;  // made so far
  ncclUniqueId id;
  std::atomic<int> arrived;
};

void use_device(int device) {
  CU(cuInit, 0);
  CUdevice d = 0;
  CUcontext context = nullptr;
  CU(cuDeviceGet, &d, device);
  CU(cuDevicePrimaryCtxRetain, &context, d);
  CU(cuCtxSetCurrent, context);
}

// One rank's stream and buffers.
class Rank {
 public:
  explicit Rank(int number) : rank(number) {
    CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    for (CUdeviceptr& b : buffers_) CU(cuMemAlloc, &b, kBufferBytes);
  }
  ~Rank() {
    for (CUdeviceptr b : buffers_) cuMemFree(b);
    cuStreamDestroy(stream);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  float* buffer(int i) const { return reinterpret_cast<float*>(buffers_[i]); }
  void init(const ncclUniqueId& id) { CALL(ncclCommInitRank, &comm, kRanks, id, rank); }
  void all_reduce(int from, int to, size_t count = kCount) {
    CALL(ncclAllReduce, buffer(from), buffer(to), count, ncclFloat, ncclSum, comm, stream);
  }
  void synchronize() const { CU(cuStreamSynchronize, stream); }
  void destroy() { CALL(ncclCommDestroy, comm); }

  const int rank;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;

 private:
  CUdeviceptr buffers_[3] = {};
};

using Body = std::function<void(int rank, const ncclUniqueId& id)>;

// A communicator's life around some calls; the stream is idle before the end.
Body around(const std::function<void(Rank&)>& calls) {
  return [calls](int rank, const ncclUniqueId& id) {
    Rank r(rank);
    r.init(id);
    calls(r);
    r.synchronize();
    r.destroy();
  };
}

Body grouped(const std::vector<size_t>& counts) {
  return around([counts](Rank& r) {
    CALL(ncclGroupStart);
    for (size_t i = 0; i < counts.size(); i++) r.all_reduce(static_cast<int>(i), static_cast<int>(i), counts[i]);
    CALL(ncclGroupEnd);
  });
}

void captured_and_replayed(Rank& r) {
  r.all_reduce(0, 1);
  r.synchronize();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CU(cuStreamBeginCapture, r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  r.all_reduce(0, 2);
  CU(cuStreamEndCapture, r.stream, &graph);
  CU(cuGraphInstantiate, &exec, graph, 0);
  for (int i = 0; i < 3; i++) {
    CU(cuGraphLaunch, exec, r.stream);
    r.synchronize();
  }
  CU(cuGraphExecDestroy, exec);
  CU(cuGraphDestroy, graph);
}

void send_and_receive(Rank& r) {
  CALL(ncclGroupStart);
  CALL(ncclSend, r.buffer(0), kCount, ncclFloat, 1 - r.rank, r.comm, r.stream);
  CALL(ncclRecv, r.buffer(1), kCount, ncclFloat, 1 - r.rank, r.comm, r.stream);
  CALL(ncclGroupEnd);
}

void nested_groups(Rank& r) {
  CALL(ncclGroupStart);
  for (int i = 0; i < 2; i++) {
    CALL(ncclGroupStart);
    r.all_reduce(i, i);
    CALL(ncclGroupEnd);
  }
  CALL(ncclGroupEnd);
}

// A communicator of the same ranks, split off and used.
void split(Rank& r) {
  ncclComm_t child = nullptr;
  CALL(ncclCommSplit, r.comm, 0, r.rank, &child, nullptr);
  CALL(ncclAllReduce, r.buffer(0), r.buffer(0), kCount, ncclFloat, ncclSum, child, r.stream);
  r.synchronize();
  CALL(ncclCommDestroy, child);
}

// NCCL chooses symmetric kernels for buffers that all ranks registered; the stand-in, which has no such call, by a
// setting.
void symmetric(Rank& r) {
  using Register = ncclResult_t (*)(ncclComm_t, void*, size_t, void** window, int flags);
  using Deregister = ncclResult_t (*)(ncclComm_t, void* window);
  constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
  const auto enter = reinterpret_cast<Register>(dlsym(RTLD_DEFAULT, "ncclCommWindowRegister"));
  const auto leave = reinterpret_cast<Deregister>(dlsym(RTLD_DEFAULT, "ncclCommWindowDeregister"));
  void *memory = nullptr, *window = nullptr;
  const auto check = [](const char* call, ncclResult_t result) {
    if (result != ncclSuccess) fail(call, result);
  };
  check("ncclMemAlloc", ncclMemAlloc(&memory, kBufferBytes));
  if (enter) check("ncclCommWindowRegister", enter(r.comm, memory, kBufferBytes, &window, kSymmetric));
  CALL(ncclAllReduce, memory, memory, kCount, ncclFloat, ncclSum, r.comm, r.stream);
  r.synchronize();
  if (leave) check("ncclCommWindowDeregister", leave(r.comm, window));
  check("ncclMemFree", ncclMemFree(memory));
}

ncclResult_t wait_until_done(ncclComm_t comm) {
  ncclResult_t r = ncclInProgress;
  while (ncclCommGetAsyncError(comm, &r) == ncclSuccess && r == ncclInProgress)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return r;
}

void expect_in_progress(ncclComm_t comm, const char* call, ncclResult_t returned) {
  if (returned != ncclInProgress && returned != ncclSuccess) fail(call, returned);
  if (const ncclResult_t r = wait_until_done(comm)) fail(call, r);
}

void non_blocking(int rank, const ncclUniqueId& id) {
  Rank r(rank);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  expect_in_progress(r.comm, "ncclCommInitRankConfig",
                     TRACED(ncclCommInitRankConfig, &r.comm, kRanks, id, rank, &config));
  expect_in_progress(r.comm, "ncclAllReduce",
                     TRACED(ncclAllReduce, r.buffer(0), r.buffer(0), kCount, ncclFloat, ncclSum, r.comm, r.stream));
  r.synchronize();
  expect_in_progress(r.comm, "ncclCommFinalize", TRACED(ncclCommFinalize, r.comm));
  r.destroy();
}

// One thread drives all devices.
void multi_device(int calls_each) {
  ncclComm_t comms[kRanks];
  const int devices[kRanks] = {0, 1};
  CALL(ncclCommInitAll, comms, kRanks, devices);
  std::vector<std::unique_ptr<Rank>> all;
  for (int i = 0; i < kRanks; i++) {
    use_device(i);
    all.push_back(std::make_unique<Rank>(i));
    all.back()->comm = comms[i];
  }
  CALL(ncclGroupStart);
  for (auto& r : all)
    for (int i = 0; i < calls_each; i++) r->all_reduce(i, i);
  CALL(ncclGroupEnd);
  for (auto& r : all) r->synchronize();
  for (auto& r : all) r->destroy();
}

void ranks_as_threads(const Body& body, const ncclUniqueId& id) {
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; r++)
    threads.emplace_back([&, r] {
      use_device(r);
      body(r, id);
    });
  for (std::thread& t : threads) t.join();
}

// All bits of the event mask, known or not, but those that give NCCL more to do: events of the proxy, the network, and
// of what happens in a kernel.
constexpr int kWithoutExtraWork = 0x7fffffff & ~(8 | 16 | 32 | 64 | 128 | 32768);

// What a start of the processes is like.
enum class Start { kPlain, kNetwork, kBlocking, kOneProcess };

struct Scenario {
  Start start;
  Body body;     // with kOneProcess called once, for all ranks
  int mask = 0;  // profiler events; 0: the logging plugin's default
};

const std::map<std::string, Scenario>& scenarios() {
  static const Body single = around([](Rank& r) { r.all_reduce(0, 0); });
  static const Body graph = around(captured_and_replayed);
  static const std::map<std::string, Scenario> all = {
      {"single", {Start::kPlain, single}},
      {"channels", {Start::kPlain, single, 2883}},
      {"outofplace", {Start::kPlain, around([](Rank& r) { r.all_reduce(0, 1); })}},
      {"allgather", {Start::kPlain, around([](Rank& r) {
                       CALL(ncclAllGather, r.buffer(0), r.buffer(1), kCount, ncclFloat, r.comm, r.stream);
                     })}},
      {"broadcast", {Start::kPlain, around([](Rank& r) {
                       CALL(ncclBroadcast, r.buffer(0), r.buffer(1), kCount, ncclFloat, 0, r.comm, r.stream);
                     })}},
      {"reduce", {Start::kPlain, around([](Rank& r) {
                    CALL(ncclReduce, r.buffer(0), r.buffer(1), kCount, ncclFloat, ncclSum, 0, r.comm, r.stream);
                  })}},
      {"reducescatter", {Start::kPlain, around([](Rank& r) {
                           CALL(ncclReduceScatter, r.buffer(0), r.buffer(1), kCount, ncclFloat, ncclSum, r.comm,
                                r.stream);
                         })}},
      {"sendrecv", {Start::kPlain, around(send_and_receive)}},
      {"group3", {Start::kPlain, grouped({kCount, kCount, kCount})}},
      {"group3sizes", {Start::kPlain, grouped({4096, 65536, 16384})}},
      {"nested", {Start::kPlain, around(nested_groups)}},
      {"split", {Start::kPlain, around(split)}},
      {"graph", {Start::kPlain, graph}},
      {"nonblocking", {Start::kPlain, non_blocking}},
      {"every-event",
       {Start::kPlain, around([](Rank& r) {
          r.all_reduce(0, 0);
          send_and_receive(r);
        }),
        kWithoutExtraWork}},
      {"symmetric", {Start::kPlain, around(symmetric)}},
      {"single-net", {Start::kNetwork, single}},
      {"graph-net", {Start::kNetwork, graph}},
      {"single-blocking", {Start::kBlocking, single}},
      {"threads", {Start::kOneProcess, [](int, const ncclUniqueId& id) { ranks_as_threads(single, id); }}},
      {"multidev", {Start::kOneProcess, [](int, const ncclUniqueId&) { multi_device(1); }}},
      {"multidev-group2", {Start::kOneProcess, [](int, const ncclUniqueId&) { multi_device(2); }}},
  };
  return all;
}

void set_surroundings(Start start, int rank) {
  if (start == Start::kNetwork) {
    setenv("NCCL_HOSTID", ("host-" + std::to_string(rank)).c_str(), 1);
    setenv("STANDIN_NCCL_NODES", "2", 1);
  }
  if (start == Start::kBlocking) setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
}

// Rank 0 makes the id of the number-th scenario, the others wait for it.
ncclUniqueId agree_on_id(Shared* shared, int rank, int number) {
  if (rank == 0) {
    ncclUniqueId id;
    if (const ncclResult_t r = ncclGetUniqueId(&id)) fail("ncclGetUniqueId", r);
    shared->id = id;
    shared->ids = number + 1;
  }
  while (shared->ids.load() != number + 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return shared->id;
}

void rank_main(const std::vector<std::string>& names, Start start, int rank, int processes, Shared* shared) {
  set_surroundings(start, rank);
  use_device(rank);
  for (size_t i = 0; i < names.size(); i++) {
    const Scenario& s = scenarios().at(names[i]);
    const char* usual = getenv("CALL_LOG_MASK");
    const std::string usual_mask = usual ? usual : "";
    if (s.mask != 0) setenv("CALL_LOG_MASK", std::to_string(s.mask).c_str(), 1);
    const ncclUniqueId id = agree_on_id(shared, rank, static_cast<int>(i));
    note("\"ev\":\"scenario\",\"name\":\"" + names[i] + "\"");
    s.body(rank, id);
    note("\"ev\":\"scenario\",\"name\":\"\"");
    setenv("CALL_LOG_MASK", usual_mask.c_str(), 1);
    // The id's place is free again when all have done with it.
    shared->arrived++;
    while (shared->arrived.load() < processes * static_cast<int>(i + 1))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Whether all end well in time. When one doesn't the others, which may wait for it for ever, are killed.
bool wait_for_all(std::vector<pid_t> pids) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  bool well = true;
  while (!pids.empty()) {
    if (well && std::chrono::steady_clock::now() > deadline) {
      fprintf(stderr, "nccl_scenarios: not done after %ld s\n", static_cast<long>(kLimit.count()));
      well = false;
    }
    if (!well)
      for (pid_t pid : pids) kill(pid, SIGKILL);
    std::erase_if(pids, [&](pid_t pid) {
      int status = 0;
      const bool ended = waitpid(pid, &status, WNOHANG) == pid;
      if (ended && status != 0 && well) {
        fprintf(stderr, "nccl_scenarios: process %d ended with status 0x%x\n", pid, static_cast<unsigned>(status));
        well = false;
      }
      return ended;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return well;
}

// The processes of one start.
std::vector<pid_t> begin(const std::vector<std::string>& names, Start start) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("nccl_scenarios: mmap");
    exit(1);
  }
  auto* shared = new (memory) Shared{};
  const int processes = start == Start::kOneProcess ? 1 : kRanks;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < processes; rank++) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody waits for the others then
      rank_main(names, start, rank, processes, shared);
      exit(0);
    }
    if (pid < 0) {
      perror("nccl_scenarios: fork");
      exit(1);
    }
    pids.push_back(pid);
  }
  return pids;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: nccl_scenarios NAME... | --list\n");
    return 2;
  }
  if (std::string(argv[1]) == "--list") {
    for (const auto& [name, scenario] : scenarios()) printf("%s\n", name.c_str());
    return 0;
  }
  std::map<Start, std::vector<std::string>> starts;
  for (int i = 1; i < argc; i++) {
    const auto known = scenarios().find(argv[i]);
    if (known == scenarios().end()) {
      fprintf(stderr, "nccl_scenarios: no scenario '%s'; --list names them\n", argv[i]);
      return 2;
    }
    starts[known->second.start].push_back(argv[i]);
  }
  std::vector<pid_t> pids;
  for (const auto& [start, names] : starts)
    for (pid_t pid : begin(names, start)) pids.push_back(pid);
  return wait_for_all(pids) ? 0 : 1;
}
