// When the system gives the plugin no thread, the communicator is not measured, and nothing of it is left behind.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fake_nccl.hpp"

// The plugin's call comes here, since the executable's symbol goes before libc's; so do the stand-in's, which get
// theirs.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) {
  Dl_info caller{};
  if (dladdr(__builtin_return_address(0), &caller) != 0 &&
      std::strstr(caller.dli_fname, "nccl-profiler-gradprobe") != nullptr)
    return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}

namespace gradprobe::test {
namespace {

TEST(ThreadFailure, NoCollectorThreadMeansNotMeasured) {
  const RingFolder folder;
  const Device device;
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  const Bucket b(3000);
  FakeComm comm;
  EXPECT_EQ(comm.context(), nullptr);
  EXPECT_EQ(comm.mask(), 0);
  const auto log = take_log();
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("WARN"), std::string::npos);
  EXPECT_NE(log[0].find("not measured"), std::string::npos);
  EXPECT_TRUE(folder.files().empty());
  comm.all_reduce(b, stream);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gradprobe::test
