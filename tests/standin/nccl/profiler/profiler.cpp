#include "profiler.h"

#include <dlfcn.h>
#include <link.h>
#include <strings.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "../comm.h"
#include "../log.h"

namespace standin::profiler {
namespace {

constexpr int kCopyEngine = kCeColl | kCeSync | kCeBatch;
constexpr int kNeedTask = kColl | kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
constexpr int kNeedP2p = kP2p | kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
constexpr int kNeedGroup = kGroup | kNeedTask | kNeedP2p;
constexpr int kNeedGroupApi = kGroupApi | kCollApi | kP2pApi | kKernelLaunch | kNeedGroup | kCopyEngine;

struct Loaded {
  std::mutex mutex;
  enum { kReady, kDone, kFailed } state = kReady;
  int users = 0;
  void* library = nullptr;
};
Loaded& loaded() {
  static Loaded& l = *new Loaded;
  return l;
}
// What calls use without a lock: set while a communicator that could make a call exists.
std::atomic<const ProfilerStruct*> active{nullptr};
// One for the process: the last init's.
std::atomic<int> event_mask{0};

bool is_missing_file(const char* why, const std::string& name) {
  return strstr(why, name.c_str()) && strstr(why, "No such file or directory");
}

void* open_library(const char* setting) {
  bool named = setting && *setting;
  std::string first = named ? setting : "libnccl-profiler.so", missing;
  std::string candidates[2] = {first, ""};
  bool is_path = named && strchr(setting, '/');
  bool is_library_name = named && !strncmp(setting, "lib", 3) && first.size() >= 3 && first.ends_with(".so");
  if (named && !is_path && !is_library_name) candidates[1] = "libnccl-profiler-" + first + ".so";
  for (const std::string& name : candidates) {
    if (name.empty()) continue;
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* why = dlerror();
    if (is_missing_file(why, name))
      missing += " " + name;
    else
      STANDIN_INFO(kLogInit, "PROFILER/Plugin: %s: %s", name.c_str(), why);
  }
  if (!missing.empty()) STANDIN_INFO(kLogInit, "PROFILER/Plugin: Could not find:%s", missing.c_str());
  return nullptr;
}

void load(const Settings& settings) {
  Loaded& l = loaded();
  std::lock_guard lock(l.mutex);
  if (l.state == Loaded::kFailed) return;
  if (l.state == Loaded::kDone) {
    l.users++;
    return;
  }
  l.state = Loaded::kFailed;
  if (settings.newest_profiler_abi() == 0) return;
  const char* setting = getenv("NCCL_PROFILER_PLUGIN");
  if (setting) STANDIN_INFO(kLogEnv, "NCCL_PROFILER_PLUGIN set by environment to %s", setting);
  if (setting && !strcasecmp(setting, "none")) return;
  void* library = open_library(setting);
  if (!library) return;
  const ProfilerStruct* plugin = nullptr;
  int version = settings.newest_profiler_abi();
  for (version++; !plugin && version > 5;)
    plugin = static_cast<const ProfilerStruct*>(dlsym(library, ("ncclProfiler_v" + std::to_string(--version)).c_str()));
  if (!plugin) {
    STANDIN_INFO(kLogInit, "External profiler plugin %s has no struct that this release knows",
                 setting ? setting : "libnccl-profiler.so");
    dlclose(library);
    return;
  }
  link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  STANDIN_INFO(kLogInit, "PROFILER/Plugin: Loaded %s (v%d) from %s", plugin->name, version, map ? map->l_name : "?");
  l.library = library;
  l.state = Loaded::kDone;
  l.users = 1;
  active = plugin;
}

void unload() {
  Loaded& l = loaded();
  std::lock_guard lock(l.mutex);
  if (l.state != Loaded::kDone || --l.users) return;
  STANDIN_INFO(kLogInit, "PROFILER/Plugin: Closing profiler plugin %s", active.load()->name);
  active = nullptr;
  dlclose(l.library);
  l.library = nullptr;
  l.state = Loaded::kReady;
}

// The first task of the plan that asked for events decides for the launch.
const Task* deciding_task(const Plan& plan) {
  for (const auto* tasks : {&plan.colls, &plan.p2ps})
    for (const Task& t : *tasks)
      if (t.mask) return &t;
  return nullptr;
}

EventDescr event_of(EventType type, void* parent, int rank) {
  EventDescr e = {};
  e.type = type;
  e.parentObj = parent;
  e.rank = rank;
  return e;
}

EventDescr describe(const Plan& plan, const Task& t) {
  EventDescr e = event_of(t.is_p2p() ? kP2p : kColl, t.task_api, plan.comm->rank);
  if (t.is_p2p()) {
    e.p2p.func = func_name(t.what.func);
    e.p2p.buff = t.what.func == Func::Send ? const_cast<void*>(t.what.send) : t.what.recv;
    e.p2p.datatype = type_name(t.event_type);
    e.p2p.count = t.event_count;
    e.p2p.peer = t.what.root;
    e.p2p.nChannels = 1;
    e.p2p.parentGroup = plan.group_event;
    return e;
  }
  e.coll.seqNumber = plan.comm->sequence[static_cast<size_t>(t.what.func)];
  e.coll.func = func_name(t.what.func);
  e.coll.sendBuff = t.what.send;
  e.coll.recvBuff = t.what.recv;
  e.coll.count = t.event_count;
  e.coll.root = t.what.root;
  e.coll.datatype = type_name(t.event_type);
  e.coll.nChannels = 1;
  e.coll.nWarps = 8;
  e.coll.algo = "RING";
  e.coll.proto = t.traffic_bytes <= (256u << 10) ? "LL" : "SIMPLE";
  e.coll.parentGroup = plan.group_event;
  return e;
}

}  // namespace

void init(ncclComm* comm) {
  load(comm->settings);
  const ProfilerStruct* plugin = active;
  if (!plugin) return;
  comm->profiler_initialised = true;
  int mask = event_mask;
  int error = plugin->init(&comm->profiler_context, comm->hash, &mask, comm->profiler_name(), comm->settings.nodes,
                           comm->ranks, comm->rank, standin_nccl_log);
  event_mask = mask;
  if (!error) return;
  STANDIN_INFO(kLogInit, "Profiler init failed with error '%d'. Continue without profiler.", error);
  if (comm->settings.minor >= 30) {
    comm->profiler_initialised = false;
    unload();
  }
}

void finalize(ncclComm* comm) {
  if (!comm->profiler_initialised) return;
  const ProfilerStruct* plugin = active;
  if (plugin && comm->profiler_context) plugin->finalize(comm->profiler_context);
  unload();
}

ApiState& api_state() {
  static thread_local ApiState state;
  return state;
}

void start_group_api(ncclComm* comm, bool captured, int depth) {
  ApiState& s = api_state();
  s.mask = event_mask;
  const ProfilerStruct* plugin = active;
  if (!plugin || !(s.mask & kNeedGroupApi) || s.group_depth) return;
  EventDescr e = event_of(kGroupApi, nullptr, comm->rank_in_api_events());
  e.groupApi.graphCaptured = captured;
  e.groupApi.groupDepth = depth;
  plugin->startEvent(comm->profiler_context, &s.group_api, &e);
  s.group_depth = depth;
  s.phase = ApiState::kStarted;
}

void stop_group_api() {
  ApiState& s = api_state();
  const ProfilerStruct* plugin = active;
  if (!plugin || !s.group_api || s.group_depth) return;
  plugin->stopEvent(s.group_api);
  s.group_api = nullptr;
}

void record_group_api(EventState state) {
  ApiState& s = api_state();
  auto expected = state == kGroupStartApiStop ? ApiState::kStarted : ApiState::kStartStopped;
  if (s.phase != expected) return;
  s.phase = state == kGroupStartApiStop ? ApiState::kStartStopped : ApiState::kReset;
  const ProfilerStruct* plugin = active;
  if (plugin && s.group_api) plugin->recordEventState(s.group_api, state, nullptr);
}

void start_task_api(ncclComm* comm, Task* t, bool captured) {
  ApiState& s = api_state();
  bool p2p = t->is_p2p();
  const ProfilerStruct* plugin = active;
  if (plugin && (s.mask & (p2p ? kP2pApi | kNeedP2p : kCollApi | kNeedTask | kCopyEngine))) {
    EventDescr e = event_of(p2p ? kP2pApi : kCollApi, s.group_api, comm->rank_in_api_events());
    auto fill = [&](auto& api) {
      api.func = func_name(t->what.func);
      api.count = t->what.count;
      api.datatype = type_name(t->what.type);
      api.stream = t->stream;
      api.graphCaptured = captured;
    };
    if (p2p) {
      fill(e.p2pApi);
    } else {
      fill(e.collApi);
      e.collApi.root = t->what.root;
    }
    plugin->startEvent(comm->profiler_context, p2p ? &s.p2p_api : &s.coll_api, &e);
  }
  t->mask = s.mask;
  t->group_api = s.group_api;
  t->task_api = p2p ? s.p2p_api : s.coll_api;
}

void stop_task_api(const Task& t) {
  ApiState& s = api_state();
  const ProfilerStruct* plugin = active;
  if (!plugin || !t.task_api) return;
  plugin->stopEvent(t.task_api);
  // A CollApi handle stays and is passed again when a plugin doesn't write a new one.
  if (t.is_p2p()) s.p2p_api = nullptr;
}

void start_kernel_launch(Plan* plan, CUstream stream) {
  const ProfilerStruct* plugin = active;
  const Task* t = deciding_task(*plan);
  if (!plugin || !t || !(t->mask & kKernelLaunch)) return;
  EventDescr e = event_of(kKernelLaunch, t->group_api, plan->comm->rank_in_api_events());
  e.kernelLaunch.stream = stream;
  plugin->startEvent(plan->comm->profiler_context, &plan->kernel_launch_event, &e);
}

void stop_kernel_launch(Plan* plan) {
  const ProfilerStruct* plugin = active;
  if (plugin && plan->kernel_launch_event) plugin->stopEvent(plan->kernel_launch_event);
}

void start_copy_engine(Plan* plan, CUstream stream) {
  const ProfilerStruct* plugin = active;
  ncclComm* comm = plan->comm;
  if (!plugin || !comm->settings.has_copy_engine_events() || !(event_mask & kCopyEngine)) return;
  const Task& t = plan->colls.front();
  EventDescr e = event_of(kCeColl, t.task_api, comm->rank);
  e.ceColl.seqNumber = e.ceColl.ceSeqNum = comm->copy_engine_sequence++;
  e.ceColl.func = func_name(t.what.func);
  e.ceColl.sendBuff = t.what.send;
  e.ceColl.recvBuff = t.what.recv;
  e.ceColl.count = t.event_count;
  e.ceColl.root = t.what.root;
  e.ceColl.datatype = type_name(t.event_type);
  e.ceColl.syncStrategy = "UC";
  e.ceColl.stream = stream;
  plugin->startEvent(comm->profiler_context, &plan->copy_engine_event, &e);
  if (!plan->copy_engine_event) return;
  auto part = [&](EventDescr p) {
    void* handle = nullptr;
    if (event_mask & static_cast<int>(p.type)) plugin->startEvent(comm->profiler_context, &handle, &p);
    if (handle) plugin->stopEvent(handle);
  };
  EventDescr sync = event_of(kCeSync, plan->copy_engine_event, comm->rank);
  sync.ceCollSync.nRanks = comm->ranks;
  EventDescr batch = event_of(kCeBatch, plan->copy_engine_event, comm->rank);
  batch.ceCollBatch.numOps = comm->ranks;
  batch.ceCollBatch.totalBytes = t.traffic_bytes;
  part(sync);
  part(batch);
  sync.ceCollSync.isComplete = true;
  part(sync);
}

void stop_copy_engine(Plan* plan) {
  const ProfilerStruct* plugin = active;
  if (plugin && plan->copy_engine_event) plugin->stopEvent(plan->copy_engine_event);
}

void start_group(Plan* plan) {
  const ProfilerStruct* plugin = active;
  const Task* t = deciding_task(*plan);
  if (!plugin || !t || !(t->mask & kNeedGroup)) return;
  EventDescr e = event_of(kGroup, nullptr, 0);
  plugin->startEvent(plan->comm->profiler_context, &plan->group_event, &e);
}

void start_tasks(Plan* plan) {
  const ProfilerStruct* plugin = active;
  auto start = [&](Task& t) {
    EventDescr e = describe(*plan, t);
    plugin->startEvent(plan->comm->profiler_context, &t.event, &e);
  };
  for (Task& t : plan->colls) {
    if (t.silent) continue;
    if (plugin && (t.mask & kNeedTask)) start(t);
    if (!plan->persistent) plan->comm->sequence[static_cast<size_t>(t.what.func)]++;
  }
  for (Task& t : plan->p2ps)
    if (plugin && (t.mask & kNeedP2p)) start(t);
}

void stop_tasks(Plan* plan) {
  const ProfilerStruct* plugin = active;
  if (!plugin) return;
  for (auto* tasks : {&plan->colls, &plan->p2ps})
    for (Task& t : *tasks)
      if (t.event) plugin->stopEvent(t.event);
}

void stop_group(Plan* plan) {
  const ProfilerStruct* plugin = active;
  if (plugin && plan->group_event) plugin->stopEvent(plan->group_event);
}

}  // namespace standin::profiler
