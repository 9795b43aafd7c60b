#include "fake_nccl.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace gradprobe::test {
namespace {

// Where older versions have nothing.
constexpr std::uint64_t kUntold = 0xBADBADBADull;

std::mutex g_log_mutex;
std::vector<std::string> g_log;

void logger(int level, unsigned long, const char*, int, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_log_mutex);
  g_log.push_back((level == 2 ? "WARN " : "INFO ") + std::string(text));
}

void check(CUresult r, const char* what) {
  if (r != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + " failed: " + std::to_string(static_cast<int>(r)));
}

}  // namespace

std::vector<std::string> take_log() {
  const std::lock_guard lock(g_log_mutex);
  return std::exchange(g_log, {});
}

void* plugin_library() {
  static void* library = [] {
    void* l = dlopen(GRADPROBE_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    if (l == nullptr) throw std::runtime_error(dlerror());
    return l;
  }();
  return library;
}

const ProfilerV5& profiler(int version) {
  const void* p = dlsym(plugin_library(), ("ncclProfiler_v" + std::to_string(version)).c_str());
  if (p == nullptr) throw std::runtime_error("the plugin doesn't export this version");
  return *static_cast<const ProfilerV5*>(p);
}

RingFolder::RingFolder() {
  std::string name = std::filesystem::temp_directory_path() / "gradprobe-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
  setenv("GRADPROBE_DIR", path_.c_str(), 1);
  setenv("GRADPROBE_RING_MB", "4", 1);
  // The stand-in's device is never behind the host, so on a loaded machine a gate can wait for a host thread's turn.
  setenv("GRADPROBE_GATE_TIMEOUT", "5000", 1);
  setenv("NCCL_DEBUG", "WARN", 1);  // else warnings go to stderr as well
}

RingFolder::~RingFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> RingFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    if (entry.path().extension() == ".ring") names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Record> RingFolder::records() const {
  std::vector<Record> all;
  for (const std::string& file : files()) {
    auto opened = RingReader::open(file);
    if (!opened.reader) throw std::runtime_error(opened.error);
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;) all.push_back(r);
    if (cursor.losses().torn_count + cursor.losses().corrupt_count != 0) throw std::runtime_error("torn records");
  }
  return all;
}

std::vector<Record> RingFolder::records(RecordKind kind) const {
  std::vector<Record> all = records();
  std::erase_if(all, [kind](const Record& r) { return r.kind() != kind; });
  return all;
}

std::vector<Record> RingFolder::collectives() const {
  std::vector<Record> all = records();
  std::erase_if(all, [](const Record& r) { return !r.has_body(); });
  return all;
}

LiveCounters RingFolder::counters() const {
  auto opened = RingReader::open(files().at(0));
  if (!opened.reader) throw std::runtime_error(opened.error);
  return opened.reader->counters();
}

Device::Device() {
  check(cuInit(0), "cuInit");
  CUdevice device = 0;
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

Device::~Device() {
  cuCtxSynchronize();
  cuCtxSetCurrent(nullptr);
}

Bucket::Bucket(std::size_t count, unsigned seed) : host_(count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.01f);
  for (float& x : host_) x = normal(random);
  check(cuMemAlloc(&address_, count * sizeof(float)), "cuMemAlloc");
  refill();
}

Bucket::~Bucket() {
  cuCtxSynchronize();
  cuMemFree(address_);
}

void Bucket::refill() const {
  check(cuMemcpyHtoD(address_, host_.data(), host_.size() * sizeof(float)), "cuMemcpyHtoD");
}

double Bucket::sum_squares() const {
  double sum = 0;
  for (const float x : host_) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

FakeComm::FakeComm(std::uint64_t id, int nranks, int rank, int version, const char* name)
    : version_(version), profiler_(profiler(version)) {
  if (profiler_.init(&context_, id, &mask_, name, 1, nranks, rank, logger) != 0)
    throw std::runtime_error("the plugin's init failed");
}

FakeComm::~FakeComm() {
  finalize();
}

void FakeComm::finalize() {
  if (!finalized_) profiler_.finalize(context_);
  finalized_ = true;
}

void* FakeComm::start(Descriptor* d) {
  // NCCL's handle holds whatever the last call left there.
  void* handle = reinterpret_cast<void*>(0xdeadbeefull);
  if (profiler_.start_event(context_, &handle, d) != 0) throw std::runtime_error("startEvent failed");
  if (handle == reinterpret_cast<void*>(0xdeadbeefull)) throw std::runtime_error("startEvent left a stale handle");
  return handle;
}

void* FakeComm::group_api_start(bool captured) {
  Descriptor d;
  d.type = 256;
  d.group_api = {captured, 1};
  return start(&d);
}

void* FakeComm::coll_api(void* group_api, std::size_t count, CUstream stream, const char* func, const char* datatype,
                         bool captured) {
  Descriptor d;
  d.type = 512;
  d.parent = group_api;
  d.coll_api = {func, count, datatype, 0, stream, captured, version_ >= 7 ? user_tag : kUntold};
  void* handle = start(&d);
  stop(handle);
  return handle;
}

void* FakeComm::launch_start(void* group_api, CUstream stream) {
  Descriptor d;
  d.type = 2048;
  d.parent = group_api;
  d.kernel_launch = {stream};
  return start(&d);
}

void* FakeComm::group_start() {
  Descriptor d;
  d.type = 1;
  return start(&d);
}

void FakeComm::coll(void* coll_api, void* group, const void* send, void* recv, std::size_t count) {
  Descriptor d;
  d.type = 2;
  d.parent = coll_api;
  const bool told = version_ >= 7;
  d.coll = {.seq_number = 0,
            .func = "AllReduce",
            .send = send,
            .recv = recv,
            .count = count,
            .root = 0,
            .datatype = "ncclFloat32",
            .channels = 1,
            .warps = 8,
            .algo = "RING",
            .proto = "LL",
            .parent_group = group,
            .kernel_variant = told && symmetric ? "AllReduce_AGxLL_R" : nullptr,
            .symmetric = !told || symmetric,
            .user_tag = told ? user_tag : kUntold};
  stop(start(&d));
}

void* FakeComm::copy_engine(void* coll_api, const Bucket& buffer) {
  Descriptor d;
  d.type = 4096;
  d.parent = coll_api;
  d.ce_coll = {
      0, "AllGather", buffer.pointer(), buffer.pointer(), buffer.count() * sizeof(float), 0, "ncclInt8", "UC", false, 0,
      0, 0,           nullptr};
  return start(&d);
}

void FakeComm::stop(void* handle) {
  if (profiler_.stop_event(handle) != 0) throw std::runtime_error("stopEvent failed");
}

void FakeComm::launch(void* group_api, CUstream stream, const Parts& parts) {
  void* handle = launch_start(group_api, stream);
  for (const Part& p : parts) {
    if (p.reduced == nullptr)
      nccl_kernel(p.result(), stream);
    else
      check(cuMemcpyDtoDAsync(p.result().address(), p.reduced->address(), p.told() * sizeof(float), stream),
            "cuMemcpyDtoDAsync");
  }
  stop(handle);
}

void FakeComm::tell(const Parts& parts) {
  void* group = group_start();
  for (const Part& p : parts) coll(p.call, group, p.input->pointer(), p.result().pointer(), p.told());
  stop(group);
}

void FakeComm::tell_by_callback(const Parts& parts) {
  std::thread([&] { tell(parts); }).join();
}

void FakeComm::all_reduce(const Bucket& bucket, CUstream stream, const char* datatype, const char* func) {
  collective({.input = &bucket}, stream, func, datatype);
}

void FakeComm::collective(Part part, CUstream stream, const char* func, const char* datatype) {
  void* api = group_api_start();
  part.call = coll_api(api, part.told(), stream, func, datatype);
  launch_inline(api, stream, {part});
  stop(api);
}

void FakeComm::send_receive(CUstream stream) {
  void* api = group_api_start();
  launch_inline(api, stream, {});
  stop(api);
}

void nccl_kernel(const Bucket& bucket, CUstream stream) {
  check(cuMemsetD32Async(bucket.address(), 0, bucket.count(), stream), "cuMemsetD32Async");
}

}  // namespace gradprobe::test
