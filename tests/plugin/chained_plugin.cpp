// CHAINED_PLUGIN_BEHAVIOUR:
//   (unset)         gives a new handle to every event
//   init_fails      init returns an error
//   start_fails     startEvent returns an error and leaves a handle that must not be used
//   unwritten       startEvent leaves the handle as it is
//   odd_handles     handles look like numbers of gradprobe's own
// CHAINED_PLUGIN_V7, when it is compiled: exports a struct of version 7 besides the one of version 5.
#include "chained_plugin.hpp"

#include <cstdlib>
#include <string>

#include "fake_nccl.hpp"

namespace {

using namespace gradprobe::test;

ChainedPlugin g_plugin;
std::uint64_t g_handles = 0;

bool behaves(const char* how) {
  const char* chosen = std::getenv("CHAINED_PLUGIN_BEHAVIOUR");
  return chosen != nullptr && std::string(chosen) == how;
}

template <int version>
int init(void** context, std::uint64_t, int* mask, const char*, int, int, int, Logger) {
  *mask = g_plugin.asked;
  if (behaves("init_fails")) return 3;
  *context = reinterpret_cast<void*>(0x1000 + ++g_handles * 16);
  g_plugin.mask = mask;
  ChainedCall call{ChainedCall::init, *context};
  call.version = version;
  g_plugin.calls.push_back(call);
  return 0;
}

template <int version>
int start_event(void* context, void** handle, Descriptor* d) {
  ChainedCall call{ChainedCall::start, context, nullptr, d->type, d->parent};
  if (d->type == 2) call.parent_group = d->coll.parent_group;
  if (version >= 7 && d->type == 512) call.user_tag = d->coll_api.user_tag;
  if (version >= 7 && d->type == 32768) call.phase = d->kernel_phase.name;
  const std::uint64_t number = 0x100000 + ++g_handles * 16;
  if (!behaves("unwritten"))
    call.handle = *handle = reinterpret_cast<void*>(behaves("odd_handles") ? number | std::uint64_t{7} << 61 : number);
  g_plugin.calls.push_back(call);
  return behaves("start_fails") ? 3 : 0;
}

int stop_event(void* handle) {
  g_plugin.calls.push_back({ChainedCall::stop, handle});
  return 0;
}

int record_event_state(void* handle, int state, void* arguments) {
  ChainedCall call{ChainedCall::record, handle};
  call.state = state;
  call.arguments = arguments;
  g_plugin.calls.push_back(call);
  return 0;
}

int finalize(void* context) {
  g_plugin.calls.push_back({ChainedCall::finalize, context});
  return 0;
}

}  // namespace

extern "C" {
__attribute__((visibility("default")))
ProfilerV5 ncclProfiler_v5 = {"chained", init<5>, start_event<5>, stop_event, record_event_state, finalize};
#ifdef CHAINED_PLUGIN_V7
__attribute__((visibility("default")))
ProfilerV5 ncclProfiler_v7 = {"chained", init<7>, start_event<7>, stop_event, record_event_state, finalize};
#endif
__attribute__((visibility("default"))) ChainedPlugin* chained_plugin() {
  return &g_plugin;
}
}
