// Memory pools and virtual memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "test_support.hpp"

namespace standin::cuda::test {
namespace {
constexpr size_t kBytes = 2 << 20;

CUmemAllocationProp on_device(int ordinal) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = ordinal;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

class MemoryKinds : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  CUcontext context_ = nullptr;
};

TEST_F(MemoryKinds, OneAllocationMappedTwiceIsTheSameMemory) {
  CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle memory, imported;
  CUdeviceptr first, second;
  int fd = -1;
  ASSERT_EQ(cuMemCreate(&memory, kBytes, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{fd}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(fd);
  ASSERT_EQ(cuMemAddressReserve(&first, kBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressReserve(&second, kBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(first, kBytes, 0, memory, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(second, kBytes, 0, imported, 0), CUDA_SUCCESS);
  // The handles may go while the mappings stay.
  EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(first, 9, kBytes), CUDA_SUCCESS);
  char last = 0;
  EXPECT_EQ(cuMemcpyDtoH(&last, second + kBytes - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(last, 9);
  CUmemGenericAllocationHandle again;
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(first + 100)), CUDA_SUCCESS);
  CUmemAllocationProp found = {};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, again), CUDA_SUCCESS);
  EXPECT_EQ(found.location.id, 0);
  EXPECT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(first, kBytes), CUDA_SUCCESS);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, second), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(second, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(first, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(second, kBytes), CUDA_SUCCESS);
}

TEST_F(MemoryKinds, WhatVirtualMemoryRefuses) {
  CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle memory;
  CUdeviceptr p;
  EXPECT_EQ(cuMemCreate(&memory, 100, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&p, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemCreate(&memory, kBytes, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressReserve(&p, 2 * kBytes, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(p, 2 * kBytes, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(p, 2 * kBytes), CUDA_SUCCESS);
}

TEST_F(MemoryKinds, VirtualMemoryIsAnnouncedOnlyWhenAskedFor) {
  int can = -1;
  EXPECT_EQ(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
}

TEST_F(MemoryKinds, APoolsMemoryIsOfThePoolsDevice) {
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 1;
  CUmemoryPool pool, standard, now;
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUdeviceptr p;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&p, 100, pool, nullptr), CUDA_SUCCESS);
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 1);
  EXPECT_EQ(cuMemFreeAsync(p, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&standard, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceSetMemPool(1, pool), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetMemPool(&now, 1), CUDA_SUCCESS);
  EXPECT_EQ(now, pool);
  EXPECT_EQ(cuMemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGetMemPool(&now, 1), CUDA_SUCCESS);
  EXPECT_EQ(now, standard);
}

}  // namespace
}  // namespace standin::cuda::test
