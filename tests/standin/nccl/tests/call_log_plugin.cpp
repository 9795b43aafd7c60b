// A profiler plugin that writes down each call it gets, as a line of the common trace (STANDIN_CUDA_TRACE), so in one
// order with the kernel launches. It has the structs 5 to CALL_LOG_NEWEST, which differ in their last fields only.
//   CALL_LOG_MASK    event mask (default Group, Coll, P2p, GroupApi, CollApi, P2pApi, KernelLaunch)
//   CALL_LOG_IGNORE  event types whose handle is left unwritten
//   CALL_LOG_FAIL    init returns this error
#include <dlfcn.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "profiler/descriptor.h"

using standin::EventDescr;
using standin::Logger;
using standin::StateArgs;

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

// Types that gradprobe has no use for are named by their number.
std::string type_name(uint64_t type) {
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
      return "Type" + std::to_string(type);
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

void describe(Line* line, const EventDescr& d) {
  switch (d.type) {
    case standin::kColl:
      line->text("func", d.coll.func).text("datatype", d.coll.datatype);
      line->number("seqNumber", d.coll.seqNumber).number("count", d.coll.count).add(",\"root\":%d", d.coll.root);
      line->add(",\"sendBuff\":\"%p\",\"recvBuff\":\"%p\"", d.coll.sendBuff, d.coll.recvBuff);
      line->pointer("parentGroup", d.coll.parentGroup);
      break;
    case standin::kP2p:
      line->text("func", d.p2p.func).text("datatype", d.p2p.datatype);
      line->number("count", d.p2p.count).add(",\"peer\":%d", d.p2p.peer).pointer("parentGroup", d.p2p.parentGroup);
      break;
    case standin::kKernelCh:
      line->number("channel", d.kernelCh.channelId);
      break;
    case standin::kGroupApi:
      line->number("graphCaptured", d.groupApi.graphCaptured).add(",\"groupDepth\":%d", d.groupApi.groupDepth);
      break;
    case standin::kCollApi:
      line->text("func", d.collApi.func).text("datatype", d.collApi.datatype);
      line->number("count", d.collApi.count).add(",\"root\":%d", d.collApi.root);
      line->number("graphCaptured", d.collApi.graphCaptured).add(",\"stream\":\"%p\"", d.collApi.stream);
      break;
    case standin::kP2pApi:
      line->text("func", d.p2pApi.func).text("datatype", d.p2pApi.datatype).number("count", d.p2pApi.count);
      line->number("graphCaptured", d.p2pApi.graphCaptured).add(",\"stream\":\"%p\"", d.p2pApi.stream);
      break;
    case standin::kKernelLaunch:
      line->add(",\"stream\":\"%p\"", d.kernelLaunch.stream);
      break;
    case standin::kCeColl:
      line->text("func", d.ceColl.func).text("datatype", d.ceColl.datatype);
      line->number("count", d.ceColl.count).add(",\"stream\":\"%p\"", d.ceColl.stream);
      break;
    case standin::kCeSync:
      line->number("isComplete", d.ceCollSync.isComplete);
      break;
    default:
      break;
  }
}

template <int kVersion>
int init(void** context, uint64_t comm, int* mask, const char* name, int nodes, int ranks, int rank, Logger log) {
  auto* c = new Handle{0};
  give_name(c, "ctx");
  *context = c;
  *mask = static_cast<int>(number_from("CALL_LOG_MASK", 3847));
  put("\"src\":\"plugin\",\"call\":\"init\",\"abi\":\"v%d\",\"ctx\":%s,\"comm\":\"%llx\",\"comm_name\":\"%s\","
      "\"nodes\":%d,\"ranks\":%d,\"rank\":%d,\"mask\":%d",
      kVersion, name_of(c).c_str(), static_cast<unsigned long long>(comm), name ? name : "(null)", nodes, ranks, rank,
      *mask);
  if (log) log(3, 1, __func__, __LINE__, "call log: rank %d of %d", rank, ranks);
  return static_cast<int>(number_from("CALL_LOG_FAIL", 0));
}
int start(void* context, void** handle, EventDescr* d) {
  auto* h = new Handle{d->type};
  const std::string type = type_name(d->type), name = give_name(h, type + "#");
  Line line;
  line.add("\"src\":\"plugin\",\"call\":\"startEvent\",\"ctx\":%s,\"handle\":\"%s\",\"type\":\"%s\",\"rank\":%d",
           name_of(context).c_str(), name.c_str(), type.c_str(), d->rank);
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
int record(void* handle, int state, StateArgs*) {
  put("\"src\":\"plugin\",\"call\":\"recordEventState\",\"handle\":%s,\"stateId\":%d", name_of(handle).c_str(), state);
  return 0;
}
int finalize(void* context) {
  put("\"src\":\"plugin\",\"call\":\"finalize\",\"ctx\":%s", name_of(context).c_str());
  return 0;
}

}  // namespace

#define CALL_LOG_STRUCT(v)               \
  __attribute__((visibility("default"))) \
  standin::ProfilerStruct ncclProfiler_v##v = {"call-log", init<v>, start, stop, record, finalize}

extern "C" {
CALL_LOG_STRUCT(5);
#if CALL_LOG_NEWEST >= 7
CALL_LOG_STRUCT(6);
CALL_LOG_STRUCT(7);
#endif
}
