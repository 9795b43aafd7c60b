// main() of tests that must run under libgradprobe-preload.so: starts itself again with LD_PRELOAD.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (std::getenv("LD_PRELOAD") == nullptr) {
    setenv("LD_PRELOAD", GRADPROBE_PRELOAD_FILE, 1);
    // The library needs its sanitizer's runtime, and so comes before it.
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 0);
    execv("/proc/self/exe", argv);
    std::perror("execv");
    return 1;
  }
  // With a plugin as well, nothing may be measured twice: so in every test here.
  setenv("NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN_FILE, 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
