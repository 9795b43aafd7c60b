// Files that look like NCCL, like what uses it and like its plugins: built several times, with other definitions.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

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
namespace {
volatile std::sig_atomic_t g_interrupts = 0;

void say(const char* text) {
  if (::write(STDOUT_FILENO, text, std::strlen(text)) < 0) ::_exit(1);
}
}  // namespace

int main(int argc, char** argv) {
#if defined(CALLS)
  user_of_nccl();
#endif
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "stay") {
    say("ready\n");
    ::sleep(60);
  }
  if (what == "count") {
    // Counts interrupts until SIGTERM; ends with their number.
    static volatile std::sig_atomic_t go_on = 1;
    std::signal(SIGINT, [](int) { g_interrupts = g_interrupts + 1; });
    std::signal(SIGTERM, [](int) { go_on = 0; });
    say("ready\n");
    // Awake, so that two interrupts in a row are not taken for one.
    while (go_on != 0) continue;
    return g_interrupts;
  }
}
#endif
