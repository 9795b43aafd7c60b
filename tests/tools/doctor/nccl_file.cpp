// Files that look like NCCL, like what uses it and like its plugins: built several times, with other definitions.
#include <unistd.h>

#include <cstdlib>

#if defined(BANNER)
extern "C" const char g_banner[];
[[gnu::used]] const char g_banner[] = "NCCL version " BANNER;
#endif

#if defined(EXPORTS)
extern "C" int ncclAllReduce() {
  return 0;
}
extern "C" int ncclGetVersion(int* version) {
  *version = 0;
  return 1;
}
#endif

#if defined(CALLS)
extern "C" int ncclAllReduce();
extern "C" int user_of_nccl() {
  return ncclAllReduce();
}
#endif

#if defined(OPENS)
extern "C" const char g_opened[];
[[gnu::used]] const char g_opened[] = "libnccl.so.2";
#endif

#if defined(PLUGIN)
extern "C" const char* ncclProfiler_v3[8];
[[gnu::used]] const char* ncclProfiler_v3[8] = {"other"};
#endif

#if defined(DRIVER)
extern "C" {
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuInit(unsigned) {
  std::abort();
}
int cuDeviceGetCount(int*) {
  return 0;
}
int cuDeviceGet(int*, int) {
  return 0;
}
int cuDeviceGetName(char*, int, int) {
  return 0;
}
int cuDeviceGetAttribute(int*, int, int) {
  return 0;
}
}
#endif

#if defined(PROGRAM)
int main(int argc, char**) {
#if defined(CALLS)
  user_of_nccl();
#endif
  // With an argument: stays, for doctor --pid.
  if (argc > 1 && ::write(STDOUT_FILENO, "ready\n", 6) == 6) ::sleep(60);
}
#endif
