#include "group.h"

#include <algorithm>
#include <thread>

#include "log.h"
#include "native.h"
#include "profiler/profiler.h"

namespace standin {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  int blocking = -1;  // of the communicators in it; unknown before the first
  std::vector<ncclComm*> comms;
  std::vector<LifeJob> jobs;
};
Group& group() {
  static thread_local Group g;
  return g;
}

ncclResult_t note_blocking(const ncclComm* comm) {
  Group& g = group();
  if (g.blocking < 0) g.blocking = comm->blocking;
  if (g.blocking == static_cast<int>(comm->blocking)) return ncclSuccess;
  STANDIN_WARN("blocking and non-blocking communicators in one group");
  return ncclInvalidArgument;
}

// Siblings of one communicator stay together, the last to join first; others are ordered by hash.
ncclResult_t join(ncclComm* comm) {
  if (comm->in_group) return ncclSuccess;
  STANDIN_TRY(note_blocking(comm));
  auto& comms = group().comms;
  auto at = std::find_if(comms.begin(), comms.end(), [&](ncclComm* c) { return c->clique == comm->clique; });
  if (at == comms.end())
    at = std::find_if(comms.begin(), comms.end(), [&](ncclComm* c) { return c->hash >= comm->hash; });
  comms.insert(at, comm);
  comm->in_group = true;
  return ncclSuccess;
}

ncclResult_t run_jobs(std::vector<LifeJob>& jobs) {
  if (jobs.empty()) return ncclSuccess;
  if (jobs.size() == 1) return jobs[0].run();
  std::vector<ncclResult_t> results(jobs.size(), ncclSuccess);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < jobs.size(); i++) threads.emplace_back([&, i] { results[i] = jobs[i].run(); });
  for (auto& t : threads) t.join();
  for (ncclResult_t r : results)
    if (r) return r;
  return ncclSuccess;
}

void drop(const std::vector<ncclComm*>& comms) {
  for (ncclComm* c : comms) {
    c->waiting.clear();
    c->plans.clear();
    c->streams.clear();
    c->in_group = false;
  }
}

// Jobs whose communicator must hear of the outcome later. A destroyed one no longer exists then.
std::vector<ncclComm*> to_notify(const std::vector<LifeJob>& jobs, const std::vector<ncclComm*>& comms) {
  std::vector<ncclComm*> all = comms;
  for (const LifeJob& j : jobs)
    if (!j.destroys && std::find(all.begin(), all.end(), j.comm) == all.end()) all.push_back(j.comm);
  return all;
}

void run_in_background(std::vector<LifeJob> jobs, std::vector<ncclComm*> comms) {
  std::vector<ncclComm*> notify = to_notify(jobs, comms);
  for (ncclComm* c : notify) c->async_result = ncclInProgress;
  auto job = std::make_shared<GroupJob>();
  for (ncclComm* c : notify) c->job = job;
  job->start([jobs = std::move(jobs), comms = std::move(comms), notify]() mutable {
    ncclResult_t r = run_jobs(jobs);
    if (!r) r = launch_all(comms);
    drop(comms);
    for (ncclComm* c : notify) {
      int expected = ncclInProgress;
      c->async_result.compare_exchange_strong(expected, r);
    }
  });
}

ncclResult_t take_all(ncclSimInfo_t* simulate) {
  Group& g = group();
  std::vector<LifeJob> jobs = std::move(g.jobs);
  std::vector<ncclComm*> comms = std::move(g.comms);
  ncclResult_t r = g.error;
  bool blocking = g.blocking != 0;
  g = Group{};
  if (r || simulate) {
    drop(comms);
    if (!r) simulate->estimatedTime = 0;
    return r;
  }
  if (jobs.empty() && comms.empty()) return ncclSuccess;
  if (!blocking) {
    run_in_background(std::move(jobs), std::move(comms));
    return ncclInProgress;
  }
  CurrentDevice restore;
  r = run_jobs(jobs);
  if (!r) r = launch_all(comms);
  drop(comms);
  return r;
}

}  // namespace

void group_start() {
  group().depth++;
}

ncclResult_t group_error(ncclResult_t r) {
  Group& g = group();
  if (g.depth > 0 && (g.error == ncclSuccess || g.error == ncclInProgress)) g.error = r == ncclInProgress ? g.error : r;
  return r;
}

ncclResult_t group_end(ncclSimInfo_t* simulate) {
  Group& g = group();
  if (g.depth == 0) {
    STANDIN_WARN("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  profiler::ApiState& api = profiler::api_state();
  if (api.group_depth > 0) api.group_depth--;
  if (api.group_depth == 0) profiler::record_group_api(kGroupEndApiStart);
  ncclResult_t r = ncclSuccess;
  if (--g.depth == 0) r = take_all(simulate);
  profiler::stop_group_api();
  return r;
}

ncclResult_t add_life_job(LifeJob job) {
  Group& g = group();
  group_start();
  ncclResult_t r = job.destroys ? ncclSuccess : note_blocking(job.comm);
  if (!r) g.jobs.push_back(std::move(job));
  group_error(r);
  ncclResult_t end = group_end();
  return r ? r : end;
}

namespace {

ncclResult_t check_transfer(const ncclComm* comm, const char* call, const Transfer& t) {
  if (t.root < 0 || t.root >= comm->ranks) {
    STANDIN_WARN("%s: root or peer %d is not a rank of a communicator of %d", call, t.root, comm->ranks);
    return ncclInvalidArgument;
  }
  if (t.type < 0 || t.type >= ncclNumTypes) {
    STANDIN_WARN("%s: invalid data type %d", call, t.type);
    return ncclInvalidArgument;
  }
  bool reduces = t.func == Func::AllReduce || t.func == Func::Reduce || t.func == Func::ReduceScatter;
  bool fp8 = t.type == ncclFloat8e4m3 || t.type == ncclFloat8e5m2;
  if (reduces && fp8 && !comm->fp8_reductions && t.count) {
    STANDIN_WARN("%s: 8-bit floats are reduced only on devices of compute capability 9.0 or newer", call);
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

// Which capture the stream is in (0: none), and that it is the one of the group's other streams.
ncclResult_t add_stream(ncclComm* comm, CUstream stream, bool* captured) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  STANDIN_CUDA(cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) id = 0;
  auto& streams = comm->streams;
  if (!streams.empty() && id != comm->capture_id) {
    STANDIN_WARN("a communicator's streams in one group must all be captured by one graph, or none");
    return ncclInvalidUsage;
  }
  comm->capture_id = id;
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.insert(streams.begin(), stream);
  *captured = id != 0;
  return ncclSuccess;
}

size_t traffic_per_byte(Func f, int ranks) {
  switch (f) {
    case Func::AllReduce:
      return 2;
    case Func::AllGather:
    case Func::ReduceScatter:
      return static_cast<size_t>(ranks);
    default:
      return 1;
  }
}

ncclResult_t copy_on_stream(const Transfer& t, CUstream stream) {
  if (t.send != t.recv)
    STANDIN_CUDA(cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(t.recv), reinterpret_cast<CUdeviceptr>(t.send),
                                   t.count * type_size(t.type), stream));
  return ncclSuccess;
}

bool at_least(size_t bytes, size_t limit) {
  return limit != 0 && bytes >= limit;
}
bool has_symmetric_kernels(Func f) {
  return f == Func::AllReduce || f == Func::AllGather || f == Func::ReduceScatter;
}

ncclResult_t append(ncclComm* comm, const char* call, const Transfer& t, CUstream stream) {
  STANDIN_TRY(ensure_ready(comm));
  STANDIN_TRY(check_transfer(comm, call, t));
  Task task{.what = t, .event_count = t.count, .event_type = t.type, .stream = stream};
  if (!task.is_p2p() && t.count == 0) return ncclSuccess;
  CurrentDevice device;
  device.set(comm);
  if (!task.is_p2p() && comm->ranks == 1) return copy_on_stream(t, stream);
  STANDIN_TRY(join(comm));
  bool captured = false;
  STANDIN_TRY(add_stream(comm, stream, &captured));
  profiler::start_group_api(comm, captured, group().depth);
  profiler::record_group_api(kGroupStartApiStop);
  profiler::start_task_api(comm, &task, captured);
  if (t.func == Func::AllGather || t.func == Func::Broadcast) {
    task.event_count *= type_size(t.type);
    task.event_type = ncclInt8;
  }
  task.traffic_bytes = task.event_count * type_size(task.event_type) * traffic_per_byte(t.func, comm->ranks);
  if (!task.is_p2p()) task.number = comm->collectives++;
  size_t bytes = t.count * type_size(t.type);
  if (at_least(bytes, comm->settings.copy_engine_bytes) && t.func == Func::AllGather) {
    task.copy_engine = true;
  } else {
    task.symmetric = at_least(bytes, comm->settings.symmetric_bytes) && has_symmetric_kernels(t.func);
    task.silent = (task.symmetric && !comm->settings.tells_symmetric_kernels()) ||
                  (t.func == Func::Broadcast && comm->settings.allgatherv);
  }
  if (task.silent) task.mask = 0;
  comm->waiting.push_back(task);
  profiler::stop_task_api(task);
  return ncclSuccess;
}

}  // namespace

ncclResult_t enqueue(ncclComm* comm, const char* call, const Transfer& t, CUstream stream) {
  if (ncclResult_t r = check_comm(comm, call)) return group_error(r);
  profiler::ApiState& api = profiler::api_state();
  if (api.group_depth > 0) api.group_depth++;
  group_start();
  ncclResult_t r = group_error(append(comm, call, t, stream));
  ncclResult_t end = group_end();
  if (r || end) return r ? r : end;
  if (!comm->blocking) return static_cast<ncclResult_t>(comm->async_result.load());
  return ncclSuccess;
}

}  // namespace standin
