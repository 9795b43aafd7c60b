// A program that isn't linked to NCCL:
//   host framework LIBRARY MODE    loads a library that is, for itself only
//   host deep LIBRARY MODE         the same, and the library prefers its own dependencies to preloaded libraries
//   host call FUNCTION [LIBRARY]   calls ncclGroupStart or ncclCommRevoke by name
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  const bool deep = argc == 4 && std::strcmp(argv[1], "deep") == 0;
  if (deep || (argc == 4 && std::strcmp(argv[1], "framework") == 0)) {
    void* library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0));
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 2;
    }
    auto* train = reinterpret_cast<int (*)(const char*)>(dlsym(library, "framework_train"));
    return train != nullptr ? train(argv[3]) : 2;
  }
  if (argc >= 3 && std::strcmp(argv[1], "call") == 0) {
    if (argc > 3 && dlopen(argv[3], RTLD_NOW | RTLD_LOCAL) == nullptr) return 2;
    void* function = dlsym(RTLD_DEFAULT, argv[2]);
    if (function == nullptr) return 3;
    const bool revoke = std::strcmp(argv[2], "ncclCommRevoke") == 0;
    const int result =
        revoke ? reinterpret_cast<int (*)(void*, int)>(function)(nullptr, 0) : reinterpret_cast<int (*)()>(function)();
    std::printf("returned %d\n", result);
    return 0;
  }
  return 2;
}
