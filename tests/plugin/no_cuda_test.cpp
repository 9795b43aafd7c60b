// Without libcuda.so.1 on the machine the plugin loads, says in one line why it measures nothing, and NCCL goes on.
// Linked against no CUDA library at all.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::vector<std::string> g_log;

void logger(int level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (level == 2) g_log.emplace_back(text);
}

struct Profiler {
  const char* name;
  int (*init)(void**, std::uint64_t, int*, const char*, int, int, int, decltype(&logger));
  int (*start_event)(void*, void**, void*);
  int (*stop_event)(void*);
  int (*record_event_state)(void*, int, void*);
  int (*finalize)(void*);
};

TEST(NoCuda, OneClearLineAndNcclGoesOn) {
  ASSERT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a libcuda.so.1";
  void* library = dlopen(std::getenv("GRADPROBE_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto* profiler = static_cast<const Profiler*>(dlsym(library, "ncclProfiler_v6"));
  ASSERT_NE(profiler, nullptr);
  void* context = nullptr;
  int mask = -1;
  EXPECT_EQ(profiler->init(&context, 1, &mask, "", 1, 2, 0, logger), 0);
  EXPECT_EQ(mask, 0);
  EXPECT_EQ(context, nullptr);
  ASSERT_EQ(g_log.size(), 1u);
  EXPECT_NE(g_log[0].find("libcuda.so.1"), std::string::npos) << g_log[0];
  EXPECT_EQ(g_log[0].find('\n'), std::string::npos);
  void* handle = reinterpret_cast<void*>(8);
  EXPECT_EQ(profiler->start_event(context, &handle, nullptr), 0);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(profiler->finalize(context), 0);
}

}  // namespace
