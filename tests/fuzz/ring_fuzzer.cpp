// libFuzzer target: GRADPROBE_BUILD_FUZZERS=ON with clang, then bin/gradprobe_ring_fuzzer CORPUS tests/data/golden.
#include <vector>

#include "ring_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  // The last byte chooses whether the header is repaired.
  if (size == 0) return 0;
  std::vector<unsigned char> bytes(data, data + size - 1);
  if ((data[size - 1] & 1) == 0) gradprobe::test::repair_header(bytes.data(), bytes.size());
  gradprobe::test::read_everything(bytes.data(), bytes.size());
  return 0;
}
