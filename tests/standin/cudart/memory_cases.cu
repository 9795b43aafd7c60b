// Test cases: memory, devices, memory of another process, functions that aren't there.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "case_support.cuh"

namespace standin::cudart::cases {

std::string copies_of_each_kind() {
  constexpr int kCount = 24;
  Array a(kCount), b(kCount);
  std::vector<int> host(kCount);
  for (int i = 0; i < kCount; i++) host[i] = i * i;
  Stream stream;
  NEED_OK(cudaMemcpyAsync(a.data(), host.data(), kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
  NEED_OK(cudaMemcpyAsync(b.data(), a.data(), kCount * sizeof(int), cudaMemcpyDeviceToDevice, stream));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(b.read() == host);
  // The left halves of four rows of six.
  NEED_OK(cudaMemset(b.data(), 0xff, kCount * sizeof(int)));
  NEED_OK(cudaMemcpy2D(b.data(), 6 * sizeof(int), host.data(), 6 * sizeof(int), 3 * sizeof(int), 4,
                       cudaMemcpyHostToDevice));
  std::vector<int> got = b.read();
  for (int i = 0; i < kCount; i++) NEED(got[i] == (i % 6 < 3 ? host[i] : -1));
  // Two copies at once.
  const void* from[] = {a.data(), a.data() + 12};
  void* to[] = {b.data() + 12, b.data()};
  size_t bytes[] = {12 * sizeof(int), 12 * sizeof(int)};
  cudaMemcpyAttributes how = {};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  NEED_OK(cudaMemcpyBatchAsync(to, from, bytes, 2, &how, &first, 1, stream));
  NEED_OK(cudaStreamSynchronize(stream));
  got = b.read();
  for (int i = 0; i < kCount; i++) NEED(got[i] == host[(i + 12) % kCount]);
  return "";
}

std::string pinned_memory_has_a_device_address() {
  int *host = nullptr, *device = nullptr;
  NEED_OK(cudaHostAlloc(&host, 32 * sizeof(int), cudaHostAllocMapped));
  NEED_OK(cudaHostGetDevicePointer(&device, host, 0));
  fill<<<1, 32>>>(device, 5);
  NEED_OK(cudaDeviceSynchronize());
  NEED(host[31] == 36);
  NEED_OK(cudaFreeHost(host));
  // The same with memory of the program's own.
  std::vector<int> own(1024);
  NEED_OK(cudaHostRegister(own.data(), own.size() * sizeof(int), cudaHostRegisterMapped));
  NEED_OK(cudaHostGetDevicePointer(&device, own.data(), 0));
  fill<<<4, 256>>>(device, 1);
  NEED_OK(cudaDeviceSynchronize());
  NEED(own[1023] == 1024);
  NEED_OK(cudaHostUnregister(own.data()));
  return "";
}

std::string pool_memory_follows_its_stream() {
  Stream stream;
  int *p = nullptr, *q = nullptr;
  NEED_OK(cudaMallocAsync(&p, 32 * sizeof(int), stream));
  fill<<<1, 32, 0, stream>>>(p, 2);
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  NEED_OK(cudaMemPoolCreate(&pool, &properties));
  unsigned long long keep = ~0ull;
  NEED_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  NEED_OK(cudaMallocFromPoolAsync(&q, 32 * sizeof(int), pool, stream));
  NEED_OK(cudaMemcpyAsync(q, p, 32 * sizeof(int), cudaMemcpyDeviceToDevice, stream));
  NEED_OK(cudaFreeAsync(p, stream));  // after the copy from it
  int host[32] = {};
  NEED_OK(cudaMemcpyAsync(host, q, sizeof host, cudaMemcpyDeviceToHost, stream));
  NEED_OK(cudaFreeAsync(q, stream));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(host[31] == 33);
  NEED_OK(cudaMemPoolDestroy(pool));
  return "";
}

std::string pointers_tell_where_they_belong() {
  cudaPointerAttributes a;
  NEED_OK(cudaSetDevice(1));
  Array device(4);
  NEED_OK(cudaSetDevice(0));
  NEED_OK(cudaPointerGetAttributes(&a, device.data() + 1));
  NEED(a.type == cudaMemoryTypeDevice && a.device == 1 && a.devicePointer == device.data() + 1 && !a.hostPointer);
  int* host = nullptr;
  NEED_OK(cudaMallocHost(&host, 64));
  NEED_OK(cudaPointerGetAttributes(&a, host));
  NEED(a.type == cudaMemoryTypeHost && a.hostPointer == host && a.devicePointer);
  NEED_OK(cudaFreeHost(host));
  int own = 0;
  NEED_OK(cudaPointerGetAttributes(&a, &own));
  NEED(a.type == cudaMemoryTypeUnregistered && !a.devicePointer);
  NEED_OK(cudaGetLastError());
  return "";
}

std::string too_much_memory_is_an_error_once() {
  void* p = nullptr;
  NEED(cudaMalloc(&p, size_t{1} << 45) == cudaErrorMemoryAllocation);
  NEED(!p);
  NEED(cudaGetLastError() == cudaErrorMemoryAllocation);
  NEED(cudaGetLastError() == cudaSuccess);
  NEED_OK(cudaMalloc(&p, 64));
  NEED_OK(cudaFree(p));
  NEED_OK(cudaFree(nullptr));
  NEED(cudaFree(&p) == cudaErrorInvalidValue);
  return "";
}

std::string each_thread_has_its_device() {
  NEED_OK(cudaSetDevice(1));
  std::string why;
  std::thread([&why] {
    why = [] {
      int device = -1;
      NEED_OK(cudaGetDevice(&device));
      NEED(device == 0);
      NEED_OK(cudaSetDevice(2));
      Array out(1);
      add_to<<<1, 1>>>(out.data(), 9);
      NEED(out.first() == 9);
      cudaPointerAttributes a;
      NEED_OK(cudaPointerGetAttributes(&a, out.data()));
      NEED(a.device == 2);
      return std::string();
    }();
  }).join();
  NEED(why.empty());
  int device = -1;
  NEED_OK(cudaGetDevice(&device));
  NEED(device == 1);
  NEED(cudaSetDevice(1000) == cudaErrorInvalidDevice);
  cudaGetLastError();
  NEED_OK(cudaGetDevice(&device));
  NEED(device == 1);
  return "";
}

std::string devices_have_properties_and_addresses() {
  int count = 0;
  NEED_OK(cudaGetDeviceCount(&count));
  NEED(count == 4);
  for (int d = 0; d < count; d++) {
    cudaDeviceProp p;
    NEED_OK(cudaGetDeviceProperties(&p, d));
    NEED(p.major == 12 && p.minor == 0 && p.warpSize == 32 && p.maxThreadsPerBlock == 1024);
    int value = 0;
    NEED_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, d));
    NEED(value == p.multiProcessorCount);
    char address[32];
    NEED_OK(cudaDeviceGetPCIBusId(address, sizeof address, d));
    NEED_OK(cudaDeviceGetByPCIBusId(&value, address));
    NEED(value == d);
  }
  cudaDeviceProp p;
  NEED(cudaGetDeviceProperties(&p, count) == cudaErrorInvalidDevice);
  cudaGetLastError();
  int version = 0;
  NEED_OK(cudaRuntimeGetVersion(&version));
  NEED(version == CUDART_VERSION);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  NEED_OK(cudaGetDriverEntryPointByVersion("cuMemCreate", &entry, 12000, cudaEnableDefault, &found));
  NEED(entry && found == cudaDriverEntryPointSuccess);
  NEED_OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &entry, 12000, cudaEnableDefault, &found));
  NEED(!entry && found == cudaDriverEntryPointSymbolNotFound);
  return "";
}

std::string what_is_missing_says_so() {
  void* p = nullptr;
  NEED(cudaMallocManaged(&p, 64) == cudaErrorNotSupported);
  NEED(cudaGetLastError() == cudaErrorNotSupported);
  NEED(cudaDeviceReset() == cudaErrorNotSupported);
  // The stand-in has no such function: the audit library's stub returns the error.
  cudaTextureObject_t texture;
  cudaResourceDesc resource = {};
  cudaTextureDesc description = {};
  NEED(cudaCreateTextureObject(&texture, &resource, &description, nullptr) == cudaErrorNotSupported);
  return "";
}

namespace {
std::string other_process(int from) {
  cudaIpcMemHandle_t handle;
  NEED(read(from, &handle, sizeof handle) == sizeof handle);
  int* p = nullptr;
  NEED_OK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&p), handle, cudaIpcMemLazyEnablePeerAccess));
  add_to<<<1, 32>>>(p, 2);
  NEED_OK(cudaDeviceSynchronize());
  NEED_OK(cudaIpcCloseMemHandle(p));
  return "";
}
}  // namespace
std::string another_process_writes_into_our_memory() {
  int pipe_ends[2];
  NEED(pipe(pipe_ends) == 0);
  pid_t child = fork();
  NEED(child >= 0);
  if (child == 0) {
    alarm(30);
    std::string why = other_process(pipe_ends[0]);
    if (!why.empty()) fprintf(stderr, "%s\n", why.c_str());
    _exit(why.empty() ? 0 : 1);
  }
  Array out(1);
  add_to<<<1, 1>>>(out.data(), 100);
  NEED_OK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  NEED_OK(cudaIpcGetMemHandle(&handle, out.data()));
  NEED(write(pipe_ends[1], &handle, sizeof handle) == sizeof handle);
  int status = -1;
  waitpid(child, &status, 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  NEED(status == 0);
  NEED(out.first() == 164);
  return "";
}
}  // namespace standin::cudart::cases
