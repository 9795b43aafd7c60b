#include "preload/real_nccl.hpp"

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstring>

#include "log.hpp"
#include "preload/nccl_abi.hpp"

namespace gradprobe::preload {
namespace {

// A handle by which the object at `path` stays loaded; null when it isn't loaded.
void* keep(const char* path) {
  return dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
}

// The first loaded object whose file name starts with "libnccl.so": loaded by its path, perhaps without a soname. It is
// opened after the walk, which holds a lock that dlopen takes second.
void* keep_by_file_name() {
  char path[PATH_MAX] = {};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const char* file = slash != nullptr ? slash + 1 : info->dlpi_name;
        if (std::strncmp(file, "libnccl.so", 10) != 0 || std::strlen(info->dlpi_name) >= PATH_MAX) return 0;
        std::strcpy(static_cast<char*>(out), info->dlpi_name);
        return 1;
      },
      path);
  return path[0] != '\0' ? keep(path) : nullptr;
}

std::atomic<void*> g_library{nullptr};

}  // namespace

void* find_in_nccl(const char* name) {
  // Linked to the program, or loaded for all to see: the next definition in the usual order. The object must stay, as
  // its addresses are kept.
  if (void* next = dlsym(RTLD_NEXT, name); next != nullptr) {
    Dl_info info{};
    if (dladdr(next, &info) != 0 && info.dli_fname != nullptr) keep(info.dli_fname);
    return next;
  }
  // Loaded for one library only, as frameworks under Python do.
  void* library = g_library.load(std::memory_order_acquire);
  if (library == nullptr) {
    library = keep("libnccl.so.2");
    if (library == nullptr) library = keep_by_file_name();
    g_library.store(library, std::memory_order_release);
  }
  return library != nullptr ? dlsym(library, name) : nullptr;
}

void say_missing(const char* name) {
  const bool any = find_in_nccl("ncclGetVersion") != nullptr;
  Log(nullptr, LogTarget::stderr_only)
      .warn(any ? "%s was called, but this process's NCCL has no such function"
                : "%s was called, but no NCCL is loaded in this process (unset LD_PRELOAD if none should be)",
            name);
}

int missing_result() {
  return find_in_nccl("ncclGetVersion") != nullptr ? nccl::kInvalidUsage : nccl::kInternalError;
}

}  // namespace gradprobe::preload
