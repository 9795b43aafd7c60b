// A profiler plugin of every struct version up to CALL_LOG_NEWEST (1, 4 or 6) that writes down each call it gets, as a
// line of the common trace (STANDIN_CUDA_TRACE), so in one order with the kernel launches.
//   CALL_LOG_MASK    event mask (default Group, Coll, P2p, GroupApi, CollApi, P2pApi, KernelLaunch)
//   CALL_LOG_IGNORE  event types whose handle is left unwritten
//   CALL_LOG_FAIL    init returns this error
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "profiler/abi.h"
#include "profiler/v1.h"
#include "profiler/v2.h"
#include "profiler/v3.h"
#include "profiler/v4.h"
#include "profiler/v5.h"
#include "profiler/v6.h"

using standin::Logger;

namespace {

struct Handle {
  uint64_t type;
};

std::mutex mutex;
std::map<const void*, std::string> names;
std::atomic<unsigned> next_id{1};

unsigned long long number_from(const char* variable, unsigned long long fallback) {
  const char* v = getenv(variable);
  return v && *v ? strtoull(v, nullptr, 0) : fallback;
}

__attribute__((format(printf, 1, 2))) void put(const char* format, ...) {
  using Trace = unsigned long long (*)(const char*);
  static auto trace = reinterpret_cast<Trace>(dlsym(RTLD_DEFAULT, "standin_cuda_trace"));
  char line[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (trace) trace(line);
}

std::string give_name(const void* p, const std::string& kind) {
  std::lock_guard lock(mutex);
  return names[p] = kind + std::to_string(next_id++);
}
std::string name_of(const void* p) {
  if (!p) return "null";
  std::lock_guard lock(mutex);
  auto it = names.find(p);
  return it == names.end() ? "\"unknown\"" : "\"" + it->second + "\"";
}

const char* type_name(uint64_t type) {
  switch (type) {
    case standin::kGroup:
      return "Group";
    case standin::kColl:
      return "Coll";
    case standin::kP2p:
      return "P2p";
    case standin::kKernelCh:
      return "KernelCh";
    case standin::kGroupApi:
      return "GroupApi";
    case standin::kCollApi:
      return "CollApi";
    case standin::kP2pApi:
      return "P2pApi";
    case standin::kKernelLaunch:
      return "KernelLaunch";
    case standin::kCeColl:
      return "CeColl";
    case standin::kCeSync:
      return "CeSync";
    case standin::kCeBatch:
      return "CeBatch";
    default:
      return "other";
  }
}

// Grows by pieces of a JSON object's inside.
class Line {
 public:
  __attribute__((format(printf, 2, 3))) Line& add(const char* format, ...) {
    char piece[512];
    va_list args;
    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    text_ += piece;
    return *this;
  }
  Line& pointer(const char* key, const void* p) { return add(",\"%s\":%s", key, name_of(p).c_str()); }
  Line& text(const char* key, const char* v) { return add(",\"%s\":\"%s\"", key, v ? v : "(null)"); }
  Line& number(const char* key, unsigned long long v) { return add(",\"%s\":%llu", key, v); }
  const char* get() const { return text_.c_str(); }

 private:
  std::string text_;
};

template <typename Task>
void describe_function(Line* line, const Task& t) {
  if constexpr (std::is_same_v<decltype(t.func), const char*>)
    line->text("func", t.func).text("datatype", t.datatype);
  else
    line->number("func", t.func).number("datatype", t.datatype);
}

template <typename Descr>
void describe(Line* line, const Descr& d) {
  constexpr bool has_api = requires {
    d.collApi;
  };
  switch (d.type) {
    case standin::kColl:
      describe_function(line, d.coll);
      line->number("seqNumber", d.coll.seqNumber).number("count", d.coll.count).add(",\"root\":%d", d.coll.root);
      line->add(",\"sendBuff\":\"%p\",\"recvBuff\":\"%p\"", d.coll.sendBuff, d.coll.recvBuff);
      if constexpr (has_api) line->pointer("parentGroup", d.coll.parentGroup);
      if constexpr (requires { d.coll.commHash; }) line->number("commHash", d.coll.commHash).text("name", d.coll.name);
      break;
    case standin::kP2p:
      describe_function(line, d.p2p);
      line->number("count", d.p2p.count).add(",\"peer\":%d", d.p2p.peer);
      if constexpr (has_api) line->pointer("parentGroup", d.p2p.parentGroup);
      break;
    case standin::kKernelCh:
      if constexpr (requires { d.kernelCh; }) line->number("channel", d.kernelCh.channelId);
      break;
    default:
      break;
  }
  if constexpr (has_api) {
    switch (d.type) {
      case standin::kGroupApi:
        line->number("graphCaptured", d.groupApi.graphCaptured).add(",\"groupDepth\":%d", d.groupApi.groupDepth);
        break;
      case standin::kCollApi:
        describe_function(line, d.collApi);
        line->number("count", d.collApi.count).add(",\"root\":%d", d.collApi.root);
        line->number("graphCaptured", d.collApi.graphCaptured).add(",\"stream\":\"%p\"", d.collApi.stream);
        break;
      case standin::kP2pApi:
        describe_function(line, d.p2pApi);
        line->number("count", d.p2pApi.count).number("graphCaptured", d.p2pApi.graphCaptured);
        line->add(",\"stream\":\"%p\"", d.p2pApi.stream);
        break;
      case standin::kKernelLaunch:
        line->add(",\"stream\":\"%p\"", d.kernelLaunch.stream);
        break;
      case standin::kCeColl:
        if constexpr (requires { d.ceColl; }) {
          describe_function(line, d.ceColl);
          line->number("count", d.ceColl.count).add(",\"stream\":\"%p\"", d.ceColl.stream);
        }
        break;
      case standin::kCeSync:
        if constexpr (requires { d.ceColl; }) line->number("isComplete", d.ceCollSync.isComplete);
        break;
      default:
        break;
    }
  }
}

int initialise(const char* abi, void** context, int* mask, uint64_t comm, const char* name, int nodes, int ranks,
               int rank, Logger log) {
  auto* c = new Handle{0};
  give_name(c, "ctx");
  *context = c;
  bool has_api = abi[1] >= '5';
  *mask = static_cast<int>(number_from("CALL_LOG_MASK", has_api ? 3847 : 7));
  put("\"src\":\"plugin\",\"call\":\"init\",\"abi\":\"%s\",\"ctx\":%s,\"comm\":\"%llx\",\"comm_name\":\"%s\",\"nodes\":"
      "%d,"
      "\"ranks\":%d,\"rank\":%d,\"mask\":%d",
      abi, name_of(c).c_str(), static_cast<unsigned long long>(comm), name ? name : "(null)", nodes, ranks, rank,
      *mask);
  if (log) log(3, 1, __func__, __LINE__, "call log: rank %d of %d", rank, ranks);
  return static_cast<int>(number_from("CALL_LOG_FAIL", 0));
}
int init1(void** context, int* mask) {
  return initialise("v1", context, mask, 0, nullptr, -1, -1, -1, nullptr);
}
[[maybe_unused]] int init2(void** context, int* mask) {
  return initialise("v2", context, mask, 0, nullptr, -1, -1, -1, nullptr);
}
[[maybe_unused]] int init3(void** context, int* mask) {
  return initialise("v3", context, mask, 0, nullptr, -1, -1, -1, nullptr);
}
[[maybe_unused]] int init4(void** context, int* mask, const char* name, uint64_t comm, int nodes, int ranks, int rank,
                           Logger log) {
  return initialise("v4", context, mask, comm, name, nodes, ranks, rank, log);
}
[[maybe_unused]] int init5(void** context, uint64_t comm, int* mask, const char* name, int nodes, int ranks, int rank,
                           Logger log) {
  return initialise("v5", context, mask, comm, name, nodes, ranks, rank, log);
}
[[maybe_unused]] int init6(void** context, uint64_t comm, int* mask, const char* name, int nodes, int ranks, int rank,
                           Logger log) {
  return initialise("v6", context, mask, comm, name, nodes, ranks, rank, log);
}

template <typename Descr>
int start(void* context, void** handle, Descr* d) {
  auto* h = new Handle{d->type};
  std::string name = give_name(h, std::string(type_name(d->type)) + "#");
  Line line;
  line.add("\"src\":\"plugin\",\"call\":\"startEvent\",\"ctx\":%s,\"handle\":\"%s\",\"type\":\"%s\",\"rank\":%d",
           name_of(context).c_str(), name.c_str(), type_name(d->type), d->rank);
  line.pointer("parentObj", d->parentObj);
  describe(&line, *d);
  put("%s", line.get());
  if (!(number_from("CALL_LOG_IGNORE", 0) & d->type)) *handle = h;
  return 0;
}
int stop(void* handle) {
  put("\"src\":\"plugin\",\"call\":\"stopEvent\",\"handle\":%s", name_of(handle).c_str());
  return 0;
}
template <typename Args>
int record(void* handle, int state, Args*) {
  put("\"src\":\"plugin\",\"call\":\"recordEventState\",\"handle\":%s,\"stateId\":%d", name_of(handle).c_str(), state);
  return 0;
}
int finalize(void* context) {
  put("\"src\":\"plugin\",\"call\":\"finalize\",\"ctx\":%s", name_of(context).c_str());
  return 0;
}

}  // namespace

#define CALL_LOG_STRUCT(v)                                                                                             \
  __attribute__((visibility("default"))) standin::profiler_v##v::Profiler ncclProfiler_v##v = {                        \
      "call-log", init##v, start<standin::profiler_v##v::EventDescr>, stop, record<standin::profiler_v##v::StateArgs>, \
      finalize}

extern "C" {
CALL_LOG_STRUCT(1);
#if CALL_LOG_NEWEST >= 4
CALL_LOG_STRUCT(2);
CALL_LOG_STRUCT(3);
CALL_LOG_STRUCT(4);
#endif
#if CALL_LOG_NEWEST >= 6
CALL_LOG_STRUCT(5);
CALL_LOG_STRUCT(6);
#endif
}
