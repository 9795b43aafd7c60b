// Settings, devices and contexts.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.hpp"

namespace standin::cuda {
namespace {
long setting(const char* name, long fallback, long least, long most) {
  const char* v = getenv(name);
  if (!v || !*v) return fallback;
  char* end = nullptr;
  long n = strtol(v, &end, 0);
  if (!*end && n >= least && n <= most) return n;
  fprintf(stderr, "%s: '%s' is not a number from %ld to %ld, %ld is used\n", name, v, least, most, fallback);
  return fallback;
}

struct Registry {
  std::vector<std::unique_ptr<Device>> devices;
  std::atomic<bool> up{false};
  // Streams and allocations name their context, so the objects stay; `valid` tells which handles are good.
  std::vector<std::unique_ptr<Context>> contexts;
  std::set<Context*> valid;
  uint64_t next_context = 1;
};
Registry& registry() {
  static Registry& r = *new Registry;
  return r;
}
thread_local ContextStack t_stack;

struct PciId {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const PciId&) const = default;
};
bool parse_pci(const char* text, PciId* out) {
  unsigned function = 0;
  if (sscanf(text, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function) >= 3) return true;
  out->domain = 0;
  return sscanf(text, "%x:%x.%x", &out->bus, &out->device, &function) >= 2;
}

// CUDA_VISIBLE_DEVICES as the CUDA documentation gives it: the list ends at the first entry that is no device.
std::vector<int> visible_devices() {
  std::vector<int> list;
  const char* v = getenv("CUDA_VISIBLE_DEVICES");
  if (!v) {
    for (int i = 0; i < config().devices; i++) list.push_back(i);
    return list;
  }
  std::string s = v;
  for (size_t pos = 0; pos < s.size();) {
    size_t end = std::min(s.find(',', pos), s.size());
    std::string one = s.substr(pos, end - pos);
    char* stop = nullptr;
    long n = strtol(one.c_str(), &stop, 10);
    if (stop == one.c_str() || n < 0 || n >= config().devices) break;
    list.push_back(static_cast<int>(n));
    pos = end + 1;
  }
  return list;
}
}  // namespace

const Config& config() {
  static const Config c = [] {
    Config x;
    x.devices = static_cast<int>(setting("STANDIN_CUDA_DEVICES", x.devices, 0, 64));
    x.cc = static_cast<int>(setting("STANDIN_CUDA_CC", x.cc, 75, 129));
    x.sms = static_cast<int>(setting("STANDIN_CUDA_SMS", x.sms, 1, 1024));
    x.device_mem = static_cast<size_t>(setting("STANDIN_CUDA_DEVICE_MEM", 8192, 1, 1 << 20)) << 20;
    x.verbose = setting("STANDIN_CUDA_VERBOSE", 0, 0, 1) != 0;
    x.poison = setting("STANDIN_CUDA_POISON", 0, 0, 1) != 0;
    x.p2p = setting("STANDIN_CUDA_P2P", 1, 0, 1) != 0;
    x.vmm = setting("STANDIN_CUDA_VMM", 0, 0, 1) != 0;
    x.driver_version = static_cast<int>(setting("STANDIN_CUDA_DRIVER_VERSION", x.driver_version, 1000, 99990));
    x.launch_blocking = setting("CUDA_LAUNCH_BLOCKING", 0, 0, 1) != 0;
    return x;
  }();
  return c;
}

std::recursive_mutex& big_lock() {
  static std::recursive_mutex& m = *new std::recursive_mutex;
  return m;
}

double now_seconds() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

void init() {
  std::lock_guard lock(big_lock());
  if (registry().up) return;
  // every device's memory is a file, and so is what other processes opened of it
  rlimit files;
  if (!getrlimit(RLIMIT_NOFILE, &files)) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  for (int physical : visible_devices()) {
    auto d = std::make_unique<Device>();
    d->ordinal = static_cast<int>(registry().devices.size());
    d->physical = physical;
    registry().devices.push_back(std::move(d));
  }
  registry().up = true;
  trace("\"src\":\"cuda\",\"ev\":\"init\",\"devices\":%zu", registry().devices.size());
}
bool inited() {
  return registry().up;
}
int device_count() {
  return static_cast<int>(registry().devices.size());
}
Device* device(int ordinal) {
  return ordinal >= 0 && ordinal < device_count() ? registry().devices[static_cast<size_t>(ordinal)].get() : nullptr;
}
CUresult fault_of(Device* d) {
  return static_cast<CUresult>(d->fault.load());
}

std::string pci_bus_id(int physical) {
  char b[32];
  snprintf(b, sizeof b, "0000:%02x:00.0", 0x10 + physical * 0x10);
  return b;
}
int device_by_pci_bus_id(const char* id) {
  PciId want, have;
  if (!parse_pci(id, &want)) return -1;
  for (auto& d : registry().devices)
    if (parse_pci(pci_bus_id(d->physical).c_str(), &have) && have == want) return d->ordinal;
  return -1;
}
void device_uuid(int physical, unsigned char out[16]) {
  memcpy(out, "standin-device-", 15);
  out[15] = static_cast<unsigned char>(physical);
}

ContextStack& context_stack() {
  return t_stack;
}
Context* current() {
  return t_stack.empty() ? nullptr : t_stack.back();
}
void set_current(Context* c) {
  if (!t_stack.empty()) t_stack.pop_back();
  if (c) t_stack.push_back(c);
}
Context* new_context(Device* d, unsigned flags) {
  std::lock_guard lock(big_lock());
  auto& r = registry();
  auto* c = r.contexts.emplace_back(std::make_unique<Context>()).get();
  c->dev = d;
  c->flags = flags;
  c->id = r.next_context++;
  c->limits[CU_LIMIT_STACK_SIZE] = 1024;
  c->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
  c->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  r.valid.insert(c);
  return c;
}
Context* primary(Device* d) {
  std::lock_guard lock(big_lock());
  if (!d->primary) {
    d->primary = new_context(d, d->primary_flags);
    d->primary->primary = true;
  }
  return d->primary;
}
bool valid_context(Context* c) {
  std::lock_guard lock(big_lock());
  return registry().valid.count(c) != 0;
}
void drop_context(Context* c) {
  std::lock_guard lock(big_lock());
  if (!c->primary) registry().valid.erase(c);
}
}  // namespace standin::cuda
