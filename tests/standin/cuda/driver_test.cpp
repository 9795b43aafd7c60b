// Devices, contexts, memory, modules, kernels.
#include <cstring>
#include <numeric>
#include <set>

#include "test_support.hpp"

namespace standin::cuda::test {
namespace {

TEST_F(Driver, DevicesAreDistinct) {
  int count = 0;
  CU_OK(cuDeviceGetCount(&count));
  ASSERT_EQ(count, 4);
  std::set<std::string> uuids, buses;
  for (int i = 0; i < count; i++) {
    CUdevice d;
    CUuuid uuid;
    char bus[32], name[64];
    CU_OK(cuDeviceGet(&d, i));
    CU_OK(cuDeviceGetUuid(&uuid, d));
    CU_OK(cuDeviceGetPCIBusId(bus, sizeof bus, d));
    CU_OK(cuDeviceGetName(name, sizeof name, d));
    EXPECT_NE(std::string(name), "");
    uuids.emplace(uuid.bytes, sizeof uuid.bytes);
    buses.insert(bus);
    CUdevice back = -1;
    CU_OK(cuDeviceGetByPCIBusId(&back, bus));
    EXPECT_EQ(back, d);
    int bus_number = -1;
    CU_OK(cuDeviceGetAttribute(&bus_number, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d));
    unsigned domain, number;
    ASSERT_EQ(sscanf(bus, "%x:%x", &domain, &number), 2);
    EXPECT_EQ(static_cast<unsigned>(bus_number), number);
  }
  EXPECT_EQ(uuids.size(), 4u);
  EXPECT_EQ(buses.size(), 4u);
  CUdevice d;
  EXPECT_EQ(cuDeviceGet(&d, count), CUDA_ERROR_INVALID_DEVICE);
  int warp = 0, major = 0;
  CU_OK(cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  CU_OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(warp, 32);
  EXPECT_EQ(major, 8);
}

TEST_F(Driver, ContextsFormAStackForEachThread) {
  CUcontext second, now = nullptr;
  CU_OK(cuDevicePrimaryCtxRetain(&second, 1));
  CU_OK(cuCtxPushCurrent(second));
  CUdevice d = -1;
  CU_OK(cuCtxGetDevice(&d));
  EXPECT_EQ(d, 1);
  std::thread([&] {
    CUcontext other = second;
    EXPECT_EQ(cuCtxGetCurrent(&other), CUDA_SUCCESS);
    EXPECT_EQ(other, nullptr);
    CUdeviceptr p;
    EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  CU_OK(cuCtxPopCurrent(&now));
  EXPECT_EQ(now, second);
  CU_OK(cuCtxGetCurrent(&now));
  EXPECT_EQ(now, context);
  CU_OK(cuDevicePrimaryCtxRelease(1));
  EXPECT_EQ(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Driver, MemoryIsSeparateAndAccounted) {
  size_t before, free_bytes, total;
  CU_OK(cuMemGetInfo(&before, &total));
  CUdeviceptr a, b;
  CU_OK(cuMemAlloc(&a, 1000));
  CU_OK(cuMemAlloc(&b, 1000));
  CU_OK(cuMemsetD32(a, 0x01020304, 250));
  CU_OK(cuMemsetD8(b, 0x55, 1000));
  EXPECT_EQ(read<uint32_t>(a + 996), 0x01020304u);
  CU_OK(cuMemcpyDtoD(a + 500, b, 100));
  EXPECT_EQ(read<uint32_t>(a + 500), 0x55555555u);
  EXPECT_EQ(read<uint32_t>(a + 600), 0x01020304u);
  CUdeviceptr base;
  size_t size;
  CU_OK(cuMemGetAddressRange(&base, &size, a + 999));
  EXPECT_EQ(base, a);
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(cuMemGetAddressRange(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuMemFree(a + 4), CUDA_ERROR_INVALID_VALUE);
  CU_OK(cuMemFree(a));
  EXPECT_EQ(cuMemFree(a), CUDA_ERROR_INVALID_VALUE);
  CU_OK(cuMemFree(b));
  CU_OK(cuMemGetInfo(&free_bytes, &total));
  EXPECT_EQ(free_bytes, before);
  EXPECT_EQ(cuMemAlloc(&a, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&a, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Driver, PointerAttributes) {
  CUdeviceptr p = device_zeros(64);
  void* pinned;
  CU_OK(cuMemHostAlloc(&pinned, 64, CU_MEMHOSTALLOC_DEVICEMAP));
  std::vector<char> own(4096);
  CU_OK(cuMemHostRegister(own.data(), own.size(), 0));
  EXPECT_EQ(cuMemHostRegister(own.data(), own.size(), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  auto type = [](const void* x) {
    unsigned t = 99;
    CUresult r = cuPointerGetAttribute(&t, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(x));
    return r == CUDA_SUCCESS ? static_cast<int>(t) : -static_cast<int>(r);
  };
  EXPECT_EQ(type(reinterpret_cast<void*>(p + 63)), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(type(reinterpret_cast<void*>(p + 64)), -CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(type(pinned), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(type(own.data() + 4095), CU_MEMORYTYPE_HOST);
  CU_OK(cuMemHostUnregister(own.data()));
  EXPECT_EQ(type(own.data()), -CUDA_ERROR_INVALID_VALUE);
  int ordinal = -1;
  CU_OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  EXPECT_EQ(ordinal, 0);
  CUcontext owner = nullptr;
  CU_OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
  EXPECT_EQ(owner, context);
  unsigned unknown_type = 7;
  void* values[] = {&unknown_type, &ordinal};
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  CU_OK(cuPointerGetAttributes(2, wanted, values, reinterpret_cast<CUdeviceptr>(own.data())));
  EXPECT_EQ(unknown_type, 0u);
  EXPECT_EQ(ordinal, -2);
  CU_OK(cuMemFree(p));
  CU_OK(cuMemFreeHost(pinned));
}

TEST_F(Driver, KernelsTakeParametersBothWays) {
  const int n = 1000;
  CUdeviceptr p = device_zeros(n * sizeof(float));
  CUdeviceptr sum = device_zeros(sizeof(float));
  float first = 2;
  int count = n;
  void* params[] = {&p, &first, &count};
  CU_OK(cuLaunchKernel(kernel("fill"), 8, 1, 1, 128, 1, 1, 0, stream, params, nullptr));
  struct {
    CUdeviceptr x, out;
    int n;
  } packed = {p, sum, n};
  size_t packed_bytes = 20;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                   CU_LAUNCH_PARAM_END};
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 256;
  config.sharedMemBytes = 256 * sizeof(float);
  config.hStream = stream;
  CU_OK(cuLaunchKernelEx(&config, kernel("block_sum"), nullptr, extra));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<float>(p + 999 * sizeof(float)), 1001.0f);
  EXPECT_EQ(read<float>(sum), 999.0f * 1000 / 2 + 2 * 1000);
  EXPECT_EQ(cuLaunchKernel(kernel("fill"), 1, 1, 1, 1025, 1, 1, 0, stream, params, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(kernel("fill"), 0, 1, 1, 1, 1, 1, 0, stream, params, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(kernel("fill"), 1, 1, 1, 1, 1, 1, 49 * 1024, stream, params, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  CU_OK(cuFuncSetAttribute(kernel("fill"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
  CU_OK(cuLaunchKernel(kernel("fill"), 1, 1, 1, 1, 1, 1, 49 * 1024, stream, params, nullptr));
  size_t offset, size;
  CU_OK(cuFuncGetParamInfo(kernel("fill"), 2, &offset, &size));
  EXPECT_EQ(offset, 12u);
  EXPECT_EQ(size, 4u);
  const char* name = nullptr;
  CU_OK(cuFuncGetName(&name, kernel("fill")));
  EXPECT_STREQ(name, "fill");
  CU_OK(cuStreamSynchronize(stream));
  CU_OK(cuMemFree(p));
  CU_OK(cuMemFree(sum));
}

TEST_F(Driver, ModulesHaveVariablesPerDevice) {
  CUdeviceptr knob;
  size_t size = 0;
  CU_OK(cuModuleGetGlobal(&knob, &size, module, "knob"));
  EXPECT_EQ(size, 4u);
  float eight = 8;
  CU_OK(cuMemcpyHtoD(knob, &eight, 4));
  CUdeviceptr out = device_zeros(16);
  CU_OK(launch("read_knob", stream, 1, out));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<float>(out), 8.0f);
  CUcontext second;
  CU_OK(cuDevicePrimaryCtxRetain(&second, 1));
  CU_OK(cuCtxPushCurrent(second));
  CUdeviceptr other;
  CU_OK(cuModuleGetGlobal(&other, &size, module, "knob"));
  EXPECT_NE(other, knob);
  EXPECT_EQ(read<float>(other), 3.0f);
  CU_OK(cuCtxPopCurrent(nullptr));
  CU_OK(cuDevicePrimaryCtxRelease(1));
  CU_OK(launch("read_table", stream, 4, out));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<int>(out + 12), 40);
  CUfunction f;
  EXPECT_EQ(cuModuleGetFunction(&f, module, "absent"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetGlobal(&other, &size, module, "absent"), CUDA_ERROR_NOT_FOUND);
  CUmodule m;
  EXPECT_EQ(cuModuleLoadData(&m, "this is no PTX"), CUDA_ERROR_INVALID_PTX);
  CU_OK(cuMemFree(out));
}

TEST_F(Driver, LibrariesLoadToo) {
  std::string image = test_fatbin();
  CUlibrary library;
  CUkernel k;
  CUfunction f;
  CU_OK(cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU_OK(cuLibraryGetKernel(&k, library, "add"));
  CU_OK(cuKernelGetFunction(&f, k));
  CUdeviceptr p = device_zeros(4);
  int five = 5;
  void* params[] = {&p, &five};
  CU_OK(cuLaunchKernel(f, 2, 1, 1, 64, 1, 1, 0, stream, params, nullptr));
  // The work keeps what it needs of a library that goes.
  CU_OK(cuLibraryUnload(library));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<int>(p), 640);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr), CUDA_ERROR_INVALID_HANDLE);
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, OccupancyFollowsThreadsAndSharedMemory) {
  int blocks = 0;
  CU_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel("fill"), 1024, 0));
  EXPECT_EQ(blocks, 2);
  CU_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel("block_sum"), 32, 40 * 1024));
  EXPECT_EQ(blocks, 4);
}

TEST_F(Driver, EntryPointsByNameAndVersion) {
  void *old_one = nullptr, *new_one = nullptr;
  CUdriverProcAddressQueryResult status;
  CU_OK(cuGetProcAddress("cuStreamGetCaptureInfo", &old_one, 11030, 0, &status));
  CU_OK(cuGetProcAddress("cuStreamGetCaptureInfo", &new_one, 12030, 0, &status));
  EXPECT_NE(old_one, new_one);
  CU_OK(cuGetProcAddress("cuMemAlloc", &new_one, 12000, 0, &status));
  EXPECT_EQ(new_one, reinterpret_cast<void*>(&cuMemAlloc));
  CU_OK(cuGetProcAddress("cuNoSuchThing", &new_one, 12000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(new_one, nullptr);
  const char* name = nullptr;
  CU_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
  EXPECT_STREQ(name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &name), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace standin::cuda::test
