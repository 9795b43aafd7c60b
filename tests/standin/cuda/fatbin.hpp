// Fat binaries: the PTX of a container.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace standin::cuda {

// One PTX text as a fat binary stores it: packed, and unpacked only when somebody asks for one of its functions.
struct PackedText {
  std::vector<char> bytes;
  size_t size = 0;     // unpacked
  uint64_t flags = 0;  // of the entry: how it is packed
};

// Appends the PTX texts for the newest architecture that is not newer than `cc` (80 for 8.0). Returns an empty string,
// or what is wrong.
std::string find_texts(const void* fatbin, int cc, std::vector<PackedText>* texts);

// Returns an empty string, or what is wrong.
std::string unpack(const PackedText& packed, std::string* text);

}  // namespace standin::cuda
