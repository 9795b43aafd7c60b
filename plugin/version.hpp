#pragma once

namespace gradprobe {
inline constexpr const char* kVersion = GRADPROBE_VERSION;  // set by plugin/CMakeLists.txt from the project's version
}
