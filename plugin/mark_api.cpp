// The functions of gradprobe.h that the library exports.
#define GRADPROBE_DECLARE_ONLY
#pragma GCC visibility push(default)
#include <gradprobe/gradprobe.h>
#pragma GCC visibility pop

#include "process.hpp"
#include "version.hpp"

extern "C" {

void gradprobe_step(uint64_t step) {
  gradprobe::Process::mark(gradprobe::MarkKind::step, step, 0, nullptr);
}

void gradprobe_scalar(const char* name, double value) {
  if (name != nullptr) gradprobe::Process::mark(gradprobe::MarkKind::scalar, gradprobe::kNone, value, name);
}

void gradprobe_phase(const char* name) {
  if (name != nullptr) gradprobe::Process::mark(gradprobe::MarkKind::phase, gradprobe::kNone, 0, name);
}

const char* gradprobe_version(void) {
  return gradprobe::kVersion;
}
}
