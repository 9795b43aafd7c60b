// A profiler plugin for tests of GRADPROBE_CHAIN: notes its calls, and misbehaves as CHAINED_PLUGIN_BEHAVIOUR says.
#pragma once

#include <cstdint>
#include <vector>

namespace gradprobe::test {

struct ChainedCall {
  enum Kind { init, start, stop, record, finalize } kind = init;
  void* subject = nullptr;  // context of init, start and finalize; else handle
  void* handle = nullptr;   // start: what it gave
  std::uint64_t type = 0;
  void* parent = nullptr;
  void* parent_group = nullptr;
  int version = 0;              // init: of the struct
  std::uint64_t user_tag = 0;   // CollApi, version 7
  const char* phase = nullptr;  // KernelPhase
  int state = 0;
  void* arguments = nullptr;
};

// What the library exports besides its profiler struct.
struct ChainedPlugin {
  std::vector<ChainedCall> calls;
  int* mask = nullptr;  // as given to init
  int asked = 0x7fff;   // what init sets it to
};
using GetChainedPlugin = ChainedPlugin* (*)();

}  // namespace gradprobe::test
