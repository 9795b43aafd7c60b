#include "preload_active.hpp"

#include <dlfcn.h>

namespace gradprobe {

bool preload_active() {
  using Ask = int (*)();
  static const auto ask = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "gradprobe_preload_active"));
  return ask != nullptr && ask() != 0;
}

}  // namespace gradprobe
