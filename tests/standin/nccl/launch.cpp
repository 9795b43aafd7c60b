// Turns the calls queued on communicators into kernel launches, in the real library's order.
#include <algorithm>
#include <bit>
#include <tuple>

#include "exchange.h"
#include "group.h"
#include "log.h"
#include "native.h"
#include "profiler/profiler.h"

namespace standin {
namespace {

// Logarithmic size class, four to a power of two from 1 KiB on: within one, calls keep their order.
unsigned size_class(size_t bytes) {
  auto units = static_cast<unsigned>(std::min<size_t>(bytes, size_t{1} << 30) >> 10);
  if (units < 4) return units;
  unsigned log2 = static_cast<unsigned>(std::bit_width(units)) - 1;
  return ((log2 - 1) << 2) | ((units >> (log2 - 2)) & 3);
}

// Collectives of one function, operator and type go together, small ones first; the kind with the largest call leads.
void order_collectives(std::vector<Task>* tasks) {
  std::stable_sort(tasks->begin(), tasks->end(), [](const Task& a, const Task& b) {
    return size_class(a.traffic_bytes) < size_class(b.traffic_bytes);
  });
  auto kind = [](const Task& t) { return std::tuple(t.what.func, t.what.op, t.event_type); };
  std::vector<Task> ordered;
  while (!tasks->empty()) {
    auto leader = kind(tasks->back());
    auto rest = std::stable_partition(tasks->begin(), tasks->end(), [&](const Task& t) { return kind(t) == leader; });
    ordered.insert(ordered.end(), tasks->begin(), rest);
    tasks->erase(tasks->begin(), rest);
  }
  *tasks = std::move(ordered);
}

// Sends and receives by distance, so that both ends of a pair meet in the same round.
void order_point_to_point(const ncclComm* comm, std::vector<Task>* tasks) {
  auto round = [comm](const Task& t) {
    int distance = t.what.func == Func::Send ? t.what.root - comm->rank : comm->rank - t.what.root;
    return (distance + comm->ranks) % comm->ranks * 2 + (t.what.func == Func::Recv);
  };
  std::stable_sort(tasks->begin(), tasks->end(), [&](const Task& a, const Task& b) { return round(a) < round(b); });
}

void make_plans(ncclComm* comm) {
  std::vector<Task> colls, p2ps, ahead, copies;
  for (Task& t : comm->waiting)
    (t.is_p2p() ? p2ps : t.copy_engine ? copies : t.silent || t.symmetric ? ahead : colls).push_back(t);
  comm->waiting.clear();
  order_collectives(&colls);
  order_point_to_point(comm, &p2ps);
  bool captured = comm->capture_id != 0;
  auto add = [&] { return comm->plans.emplace_back(std::make_shared<Plan>(comm, captured)).get(); };
  for (Task& t : copies) {
    Plan* plan = add();
    plan->copy_engine = true;
    plan->colls.push_back(t);
  }
  if (!ahead.empty()) add()->colls = std::move(ahead);
  size_t limit =
      comm->settings.max_colls_per_launch > 0 ? static_cast<size_t>(comm->settings.max_colls_per_launch) : colls.size();
  Plan* last = nullptr;
  for (size_t at = 0; at < colls.size(); at += limit) {
    last = add();
    auto first = colls.begin() + static_cast<long>(at);
    last->colls.assign(first, first + static_cast<long>(std::min(limit, colls.size() - at)));
  }
  if (!p2ps.empty()) (last ? last : add())->p2ps = std::move(p2ps);
}

// The calls about a launch that may be made on a host function's thread.
void report_tasks(Plan* plan) {
  profiler::start_group(plan);
  profiler::start_tasks(plan);
  profiler::stop_tasks(plan);
  profiler::stop_group(plan);
}

ncclResult_t wait_for_stream(CUstream waiting, CUstream on, CUevent event) {
  STANDIN_CUDA(cuEventRecord(event, on));
  STANDIN_CUDA(cuStreamWaitEvent(waiting, event, 0));
  return ncclSuccess;
}

// A captured host function goes into the graph before the kernel; an uncaptured one has a stream of its own, so that it
// runs however busy the launch stream is.
ncclResult_t enqueue_host_function(ncclComm* comm, Plan* plan, CUstream launch_stream) {
  plan->on_host_callback = true;
  if (plan->persistent) {
    STANDIN_CUDA(cuLaunchHostFunc(
        launch_stream, [](void* p) { report_tasks(static_cast<Plan*>(p)); }, plan));
    return ncclSuccess;
  }
  auto holder = std::make_unique<std::shared_ptr<Plan>>(plan->shared_from_this());
  STANDIN_CUDA(cuLaunchHostFunc(
      comm->host_stream,
      [](void* p) {
        std::unique_ptr<std::shared_ptr<Plan>> held(static_cast<std::shared_ptr<Plan>*>(p));
        report_tasks(held->get());
      },
      holder.get()));
  (void)holder.release();
  return ncclSuccess;
}

bool needs_host_functions(ncclComm* comm, bool persistent) {
  if (persistent || comm->settings.launch_blocking || comm->settings.always_host_callback) return true;
  return comm->has_persistent_plans() && comm->host_called && cuEventQuery(comm->host_serial) == CUDA_ERROR_NOT_READY;
}

ncclResult_t prepare(ncclComm* comm) {
  make_plans(comm);
  if (comm->plans.empty()) return ncclSuccess;
  bool persistent = comm->capture_id != 0;
  unsigned external = persistent ? CU_EVENT_WAIT_EXTERNAL : 0;
  CUstream launch = comm->streams.front();
  for (size_t i = 1; i < comm->streams.size(); i++)
    STANDIN_TRY(wait_for_stream(launch, comm->streams[i], comm->scratch));
  // A graph of the communicator may have been launched on any stream since.
  if (persistent || (comm->launched && (comm->last_stream != launch || comm->has_persistent_plans())))
    STANDIN_CUDA(cuStreamWaitEvent(launch, comm->serial, external));
  if (!comm->settings.proxy_work || !needs_host_functions(comm, persistent)) return ncclSuccess;
  bool any = false;
  for (auto& plan : comm->plans) {
    if (plan->copy_engine) continue;
    any = true;
    STANDIN_TRY(enqueue_host_function(comm, plan.get(), launch));
  }
  if (!any) return ncclSuccess;
  comm->host_called = true;
  if (persistent) {
    STANDIN_CUDA(cuEventRecordWithFlags(comm->host_serial, launch, CU_EVENT_RECORD_EXTERNAL));
    return ncclSuccess;
  }
  return wait_for_stream(launch, comm->host_stream, comm->host_serial);
}

ncclResult_t launch(ncclComm* comm, const std::shared_ptr<Plan>& plan) {
  CUstream stream = comm->streams.front();
  if (plan->copy_engine)
    profiler::start_copy_engine(plan.get(), stream);
  else
    profiler::start_kernel_launch(plan.get(), stream);
  auto holder = std::make_unique<std::shared_ptr<Plan>>(plan);
  CUresult r = standin_cuda_launch_native(
      stream, plan->kernel_name().c_str(), [](void* p) { (*static_cast<std::shared_ptr<Plan>*>(p))->run(); },
      holder.get(), [](void* p) { delete static_cast<std::shared_ptr<Plan>*>(p); });
  if (r == CUDA_SUCCESS) (void)holder.release();
  if (plan->copy_engine)
    profiler::stop_copy_engine(plan.get());
  else
    profiler::stop_kernel_launch(plan.get());
  if (r != CUDA_SUCCESS) {
    return cuda_error(r, "the kernel launch");
  }
  if (!plan->on_host_callback && !plan->copy_engine) report_tasks(plan.get());
  return ncclSuccess;
}

// Later launches of the communicator, and later work on the group's other streams, come after these.
ncclResult_t finish(ncclComm* comm) {
  if (comm->streams.empty()) return ncclSuccess;
  CUstream launch = comm->streams.front();
  for (size_t i = 1; i < comm->streams.size(); i++)
    STANDIN_TRY(wait_for_stream(comm->streams[i], launch, comm->scratch));
  STANDIN_CUDA(cuEventRecordWithFlags(comm->serial, launch, comm->capture_id ? CU_EVENT_RECORD_EXTERNAL : 0));
  comm->launched = true;
  comm->last_stream = comm->capture_id ? nullptr : launch;
  return ncclSuccess;
}

// Communicators of one clique take turns, one launch each.
ncclResult_t take_turns(const std::vector<ncclComm*>& comms, CurrentDevice* device) {
  for (bool more = true; more;) {
    more = false;
    for (ncclComm* c : comms) {
      if (c->plans.empty()) continue;
      std::shared_ptr<Plan> plan = c->plans.front();
      c->plans.pop_front();
      more |= !c->plans.empty();
      device->set(c);
      STANDIN_TRY(launch(c, plan));
    }
  }
  return ncclSuccess;
}

ncclResult_t launch_clique(const std::vector<ncclComm*>& comms, CurrentDevice* device) {
  bool captured = false, uncaptured = false;
  for (ncclComm* c : comms) {
    (c->capture_id ? captured : uncaptured) = true;
    device->set(c);
    STANDIN_TRY(prepare(c));
  }
  if (captured && uncaptured) {
    STANDIN_WARN("either all or none of a group's communicators can be captured");
    return ncclInvalidUsage;
  }
  ncclResult_t result = take_turns(comms, device);
  // Also after a failed launch: what was launched before it must be waited for.
  for (ncclComm* c : comms) {
    device->set(c);
    ncclResult_t r = finish(c);
    if (!result) result = r;
  }
  return result;
}

}  // namespace

ncclResult_t launch_all(const std::vector<ncclComm*>& comms) {
  CurrentDevice device;
  for (size_t at = 0; at < comms.size();) {
    std::vector<ncclComm*> clique;
    for (auto& owner = comms[at]->clique; at < comms.size() && comms[at]->clique == owner; at++)
      clique.push_back(comms[at]);
    STANDIN_TRY(launch_clique(clique, &device));
  }
  return ncclSuccess;
}

Plan::Plan(ncclComm* c, bool captured) : comm(c), persistent(captured) {
  if (!persistent) return;
  std::lock_guard lock(comm->persistent_mutex);
  comm->persistent_plans++;
}

Plan::~Plan() {
  if (!persistent) return;
  std::lock_guard lock(comm->persistent_mutex);
  comm->persistent_plans--;
  comm->persistent_cv.notify_all();
}

std::string Plan::kernel_name() const {
  std::string name = "ncclDevKernel_";
  if (colls.empty()) return name + "SendRecv";
  const Transfer& t = colls.front().what;
  if (copy_engine) return std::string("copy engine ") + func_name(t.func);
  name += func_name(t.func);
  if (t.func != Func::AllGather && t.func != Func::Broadcast)
    name += std::string("_") + operator_name(t.op) + "_" + short_type_name(t.type);
  return name + "_RING_LL";
}

// What a faulty memory or link does.
void flip_bit(const ncclComm& comm, const Task& t) {
  const auto& f = comm.settings.flip;
  bool has_result = t.what.func != Func::Reduce || t.what.root == comm.rank;
  size_t size = type_size(t.what.type);
  if (!f || f->rank != comm.rank || f->op != t.number || !has_result || f->element >= t.what.count) return;
  auto* element = static_cast<unsigned char*>(t.what.recv) + f->element * size;
  element[f->bit / 8 % size] ^= static_cast<unsigned char>(1u << f->bit % 8);
}

void Plan::run() {
  ncclResult_t r = ncclSuccess;
  for (size_t i = 0; !r && i < colls.size(); i++) {
    r = run_collective(comm->session.get(), colls[i].what);
    if (!r) flip_bit(*comm, colls[i]);
  }
  if (!r && !p2ps.empty()) {
    std::vector<Transfer> transfers;
    for (const Task& t : p2ps) transfers.push_back(t.what);
    r = run_point_to_point(comm->session.get(), transfers);
  }
  if (r) comm->set_async_error(r);
}

}  // namespace standin
