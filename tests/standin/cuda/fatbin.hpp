// Fat binaries: the PTX of a container.
#pragma once
#include <string>
#include <vector>

namespace standin::cuda {

// Appends the PTX texts for the newest architecture that is not newer than `cc` (80 for 8.0). Returns an empty string,
// or what is wrong.
std::string unpack_fatbin(const void* fatbin, int cc, std::vector<std::string>* texts);

}  // namespace standin::cuda
