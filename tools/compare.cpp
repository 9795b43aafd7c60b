#include "commands.hpp"
namespace gradprobe::tool {
int compare(const CompareOptions&) {
  return kExitOk;
}
}  // namespace gradprobe::tool
