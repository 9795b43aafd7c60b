// Shared by the struct versions of the profiler interface: each file v1.h to v6.h declares one version's descriptor
// with the members that the stand-in fills, and holds every offset against the documented layout.
#pragma once
#include <cstddef>
#include <cstdint>

namespace standin {
using Logger = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
}

#define PROFILER_FIELD(type, field, offset, size) \
  static_assert(offsetof(type, field) == (offset) && sizeof(static_cast<type*>(nullptr)->field) == (size))
