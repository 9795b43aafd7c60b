// Without libcuda.so.1 on the machine the plugin loads, says in one line why it measures nothing, and NCCL goes on. The
// ring tells which collectives there were.
// Linked against no CUDA library at all.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <gradprobe/ring_reader.hpp>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
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

struct CollApi {
  std::uint64_t type = 512;
  void* parent = nullptr;
  int rank = 0;
  const char* func = "AllReduce";
  std::size_t count = 1000;
  const char* datatype = "ncclBfloat16";
  int root = 0;
  void* stream = nullptr;
  bool captured = false;
  char room[40] = {};
};
static_assert(sizeof(CollApi) == 112);

TEST(NoCuda, OneClearLineAndNcclGoesOn) {
  ASSERT_EQ(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a libcuda.so.1";
  void* library = dlopen(std::getenv("GRADPROBE_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto* profiler = static_cast<const Profiler*>(dlsym(library, "ncclProfiler_v6"));
  ASSERT_NE(profiler, nullptr);
  void* context = nullptr;
  int mask = -1;
  char folder[] = "/tmp/gradprobe-no-cuda-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  setenv("GRADPROBE_DIR", folder, 1);
  setenv("GRADPROBE_RING_MB", "1", 1);
  EXPECT_EQ(profiler->init(&context, 1, &mask, "", 1, 2, 0, logger), 0);
  EXPECT_EQ(mask, 512);
  EXPECT_NE(context, nullptr);
  ASSERT_EQ(g_log.size(), 1u);
  EXPECT_NE(g_log[0].find("libcuda.so.1"), std::string::npos) << g_log[0];
  EXPECT_EQ(g_log[0].find('\n'), std::string::npos);
  void* handle = reinterpret_cast<void*>(8);
  CollApi call;
  EXPECT_EQ(profiler->start_event(context, &handle, &call), 0);
  EXPECT_EQ(handle, nullptr);  // no stop to hear of
  EXPECT_EQ(profiler->finalize(context), 0);
  EXPECT_EQ(g_log.size(), 1u);

  std::size_t rings = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    rings++;
    auto opened = gradprobe::RingReader::open(file.path());
    ASSERT_TRUE(opened.reader) << opened.error;
    gradprobe::RingCursor cursor(*opened.reader);
    gradprobe::Record record;
    ASSERT_EQ(cursor.next(record), gradprobe::Next::record);
    EXPECT_EQ(static_cast<gradprobe::Missed>(record.head.missed), gradprobe::Missed::no_cuda);
    EXPECT_EQ(record.head.collective.count, 1000u);
    EXPECT_EQ(static_cast<gradprobe::Datatype>(record.head.collective.datatype), gradprobe::Datatype::bf16);
  }
  EXPECT_EQ(rings, 1u);
  std::filesystem::remove_all(folder);
}

}  // namespace
