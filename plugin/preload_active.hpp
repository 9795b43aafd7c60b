// Whether the preload library measures this process's NCCL, so that the profiler plugin needn't.
#pragma once

namespace gradprobe {

// True once a call that makes a communicator went through libgradprobe-preload.so. A NCCL that the library can't see
// (linked statically, or found by dlsym on its handle) leaves it false. Thread-safe; takes the dynamic linker's lock
// once.
bool preload_active();

}  // namespace gradprobe
