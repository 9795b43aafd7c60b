#include "kernels/fatbin.hpp"

// The assembler reads the file that nvcc wrote; GRADPROBE_FATBIN_FILE is its path.
asm(R"(
  .pushsection .rodata
  .balign 64
  .local gradprobe_fatbin_begin
  .local gradprobe_fatbin_end
gradprobe_fatbin_begin:
  .incbin ")" GRADPROBE_FATBIN_FILE R"("
gradprobe_fatbin_end:
  .byte 0
  .popsection
)");

extern "C" {
extern const std::byte gradprobe_fatbin_begin __attribute__((visibility("hidden")));
extern const std::byte gradprobe_fatbin_end __attribute__((visibility("hidden")));
}

namespace gradprobe::gate {

std::span<const std::byte> fatbin() noexcept {
  return {&gradprobe_fatbin_begin, &gradprobe_fatbin_end};
}

}  // namespace gradprobe::gate
