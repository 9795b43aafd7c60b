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
  std::unique_ptr<ProfilerAbi> plugin;
};
Loaded& loaded() {
  static Loaded& l = *new Loaded;
  return l;
}
// What calls use without a lock: set while a communicator that could make a call exists.
std::atomic<ProfilerAbi*> active{nullptr};
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
  int version = 0;
  l.plugin = find_profiler_struct(library, settings.newest_profiler_abi(), settings.minor < 27, &version);
  if (!l.plugin) {
    STANDIN_INFO(kLogInit, "External profiler plugin %s has no struct that this release knows",
                 setting ? setting : "libnccl-profiler.so");
    dlclose(library);
    return;
  }
  link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  STANDIN_INFO(kLogInit, "PROFILER/Plugin: Loaded %s (v%d) from %s", l.plugin->name(), version,
               map ? map->l_name : "?");
  l.library = library;
  l.state = Loaded::kDone;
  l.users = 1;
  active = l.plugin.get();
}

void unload() {
  Loaded& l = loaded();
  std::lock_guard lock(l.mutex);
  if (l.state != Loaded::kDone || --l.users) return;
  STANDIN_INFO(kLogInit, "PROFILER/Plugin: Closing profiler plugin %s", l.plugin->name());
  active = nullptr;
  l.plugin.reset();
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

Event describe(const Plan& plan, const Task& t) {
  Event e;
  e.type = t.is_p2p() ? kP2p : kColl;
  e.rank = plan.comm->rank;
  e.parent = t.task_api;
  e.parent_group = plan.group_event;
  e.comm_name = plan.comm->profiler_name();
  e.comm_hash = plan.comm->hash;
  e.sequence = plan.comm->sequence[static_cast<size_t>(t.what.func)];
  e.func = func_name(t.what.func);
  e.func_number = static_cast<int>(t.what.func);
  e.datatype = type_name(t.event_type);
  e.datatype_number = t.event_type;
  e.op_number = t.what.op.kind;
  e.send = t.what.send;
  e.recv = t.what.func == Func::Send ? const_cast<void*>(t.what.send) : t.what.recv;
  e.count = t.event_count;
  e.traffic_bytes = t.traffic_bytes;
  e.root_or_peer = t.what.root;
  e.channels = 1;
  e.warps = 8;
  e.algo = "RING";
  e.algo_number = 1;
  bool small = t.traffic_bytes <= (256u << 10);
  e.proto = small ? "LL" : "SIMPLE";
  e.proto_number = small ? 0 : 2;
  return e;
}

}  // namespace

void init(ncclComm* comm) {
  load(comm->settings);
  ProfilerAbi* plugin = active;
  if (!plugin) return;
  comm->profiler_initialised = true;
  int mask = event_mask;
  int error = plugin->init(&comm->profiler_context, &mask,
                           {comm->hash, comm->profiler_name(), comm->settings.nodes, comm->ranks, comm->rank});
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
  ProfilerAbi* plugin = active;
  bool always = !comm->settings.has_api_events();
  if (plugin && (always || comm->profiler_context)) plugin->finalize(comm->profiler_context);
  unload();
}

ApiState& api_state() {
  static thread_local ApiState state;
  return state;
}

void start_group_api(ncclComm* comm, bool captured, int depth) {
  ApiState& s = api_state();
  s.mask = event_mask;
  ProfilerAbi* plugin = active;
  if (!plugin || !comm->settings.has_api_events() || !(s.mask & kNeedGroupApi) || s.group_depth) return;
  Event e;
  e.type = kGroupApi;
  e.graph_captured = captured;
  e.group_depth = depth;
  plugin->start(comm->profiler_context, &s.group_api, e);
  s.group_depth = depth;
  s.phase = ApiState::kStarted;
}

void stop_group_api() {
  ApiState& s = api_state();
  ProfilerAbi* plugin = active;
  if (!plugin || !s.group_api || s.group_depth) return;
  plugin->stop(s.group_api);
  s.group_api = nullptr;
}

void record_group_api(EventState state) {
  ApiState& s = api_state();
  auto expected = state == kGroupStartApiStop ? ApiState::kStarted : ApiState::kStartStopped;
  if (s.phase != expected) return;
  s.phase = state == kGroupStartApiStop ? ApiState::kStartStopped : ApiState::kReset;
  ProfilerAbi* plugin = active;
  if (plugin && s.group_api) plugin->record(s.group_api, state, 0);
}

void start_task_api(ncclComm* comm, Task* t, bool captured) {
  ApiState& s = api_state();
  bool p2p = t->is_p2p();
  ProfilerAbi* plugin = active;
  if (plugin && comm->settings.has_api_events() &&
      (s.mask & (p2p ? kP2pApi | kNeedP2p : kCollApi | kNeedTask | kCopyEngine))) {
    Event e;
    e.type = p2p ? kP2pApi : kCollApi;
    e.parent = s.group_api;
    e.func = func_name(t->what.func);
    e.count = t->what.count;
    e.datatype = type_name(t->what.type);
    e.root_or_peer = t->what.root;
    e.stream = t->stream;
    e.graph_captured = captured;
    plugin->start(comm->profiler_context, p2p ? &s.p2p_api : &s.coll_api, e);
  }
  t->mask = s.mask;
  t->group_api = s.group_api;
  t->task_api = p2p ? s.p2p_api : s.coll_api;
}

void stop_task_api(const Task& t) {
  ApiState& s = api_state();
  ProfilerAbi* plugin = active;
  if (!plugin || !t.task_api) return;
  plugin->stop(t.task_api);
  // A CollApi handle stays and is passed again when a plugin doesn't write a new one.
  if (t.is_p2p()) s.p2p_api = nullptr;
}

void start_kernel_launch(Plan* plan, CUstream stream) {
  ProfilerAbi* plugin = active;
  const Task* t = deciding_task(*plan);
  if (!plugin || !plan->comm->settings.has_api_events() || !t || !(t->mask & kKernelLaunch)) return;
  Event e;
  e.type = kKernelLaunch;
  e.parent = t->group_api;
  e.stream = stream;
  plugin->start(plan->comm->profiler_context, &plan->kernel_launch_event, e);
}

void stop_kernel_launch(Plan* plan) {
  ProfilerAbi* plugin = active;
  if (plugin && plan->kernel_launch_event) plugin->stop(plan->kernel_launch_event);
}

void start_copy_engine(Plan* plan, CUstream stream) {
  ProfilerAbi* plugin = active;
  ncclComm* comm = plan->comm;
  if (!plugin || !comm->settings.has_copy_engine_events() || !(event_mask & kCopyEngine)) return;
  const Task& t = plan->colls.front();
  Event e;
  e.type = kCeColl;
  e.parent = t.task_api;
  e.rank = comm->rank;
  e.sequence = comm->copy_engine_sequence++;
  e.func = func_name(t.what.func);
  e.send = t.what.send;
  e.recv = t.what.recv;
  e.count = t.event_count;
  e.root_or_peer = t.what.root;
  e.datatype = type_name(t.event_type);
  e.stream = stream;
  plugin->start(comm->profiler_context, &plan->copy_engine_event, e);
  if (!plan->copy_engine_event) return;
  auto part = [&](EventType type, bool complete) {
    if (!(event_mask & type)) return;
    Event p;
    p.type = type;
    p.parent = plan->copy_engine_event;
    p.rank = comm->rank;
    p.complete = complete;
    p.ranks = p.copies = comm->ranks;
    p.traffic_bytes = t.traffic_bytes;
    void* handle = nullptr;
    plugin->start(comm->profiler_context, &handle, p);
    if (handle) plugin->stop(handle);
  };
  part(kCeSync, false);
  part(kCeBatch, false);
  part(kCeSync, true);
}

void stop_copy_engine(Plan* plan) {
  ProfilerAbi* plugin = active;
  if (plugin && plan->copy_engine_event) plugin->stop(plan->copy_engine_event);
}

void start_group(Plan* plan) {
  ProfilerAbi* plugin = active;
  const Task* t = deciding_task(*plan);
  // Up to 2.25 the bit for groups alone brings no events.
  const int need = plan->comm->settings.minor < 26 ? kNeedGroup & ~kGroup : kNeedGroup;
  if (!plugin || !t || !(t->mask & need)) return;
  Event e;
  e.type = kGroup;
  plugin->start(plan->comm->profiler_context, &plan->group_event, e);
}

void start_tasks(Plan* plan) {
  ProfilerAbi* plugin = active;
  // Releases without API events nest the tasks in the group and have none without it.
  bool allowed = plugin && (plan->comm->settings.has_api_events() || plan->group_event);
  for (Task& t : plan->colls) {
    if (t.silent) continue;
    if (allowed && (t.mask & kNeedTask)) plugin->start(plan->comm->profiler_context, &t.event, describe(*plan, t));
    bool counts = !plan->persistent || (plugin && (plan->group_event || t.task_api) && (t.mask & kKernelCh));
    if (counts) plan->comm->sequence[static_cast<size_t>(t.what.func)]++;
  }
  for (Task& t : plan->p2ps)
    if (allowed && (t.mask & kNeedP2p)) plugin->start(plan->comm->profiler_context, &t.event, describe(*plan, t));
}

void stop_tasks(Plan* plan) {
  ProfilerAbi* plugin = active;
  if (!plugin) return;
  for (auto* tasks : {&plan->colls, &plan->p2ps})
    for (Task& t : *tasks)
      if (t.event) plugin->stop(t.event);
}

void stop_group(Plan* plan) {
  ProfilerAbi* plugin = active;
  if (plugin && plan->group_event) plugin->stop(plan->group_event);
}

void kernel_channel(ncclComm* comm, void* coll, uint8_t channel, uint64_t begin_ns, uint64_t end_ns) {
  ProfilerAbi* plugin = active;
  if (!plugin) return;
  Event e;
  e.type = kKernelCh;
  e.parent = coll;
  e.channel = channel;
  e.timer = begin_ns;
  void* handle = nullptr;
  plugin->start(comm->profiler_context, &handle, e);
  if (!handle) return;
  plugin->record(handle, kKernelChStop, end_ns);
  plugin->stop(handle);
}

}  // namespace standin::profiler
