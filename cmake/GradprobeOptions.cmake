# Compiler settings shared by every target, as two interface libraries:
#   gradprobe_options   C++20, warnings as errors, sanitizers of the preset
#   gradprobe_standin   the same without sanitizers that the stand-ins can't carry (tsan: the interpreter's memory is
#                       the simulated device's, whose races are the kernels' own)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Everything a test or the demo loads by name lies in one of these folders, whatever directory built it.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(GRADPROBE_STANDIN_DIR "${PROJECT_BINARY_DIR}/standin")

add_library(gradprobe_warnings INTERFACE)
target_compile_features(gradprobe_warnings INTERFACE cxx_std_20)
target_compile_options(gradprobe_warnings INTERFACE -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
   AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 at -O3 sees overlapping copies in "text" + std::string (GCC bug 105651, mended in 13).
  target_compile_options(gradprobe_warnings INTERFACE -Wno-restrict)
endif()

add_library(gradprobe_options INTERFACE)
target_link_libraries(gradprobe_options INTERFACE gradprobe_warnings)
target_compile_options(gradprobe_options INTERFACE -Wpedantic -Wshadow -Wconversion -Wsign-conversion)

add_library(gradprobe_standin INTERFACE)
target_link_libraries(gradprobe_standin INTERFACE gradprobe_warnings)

if(GRADPROBE_SANITIZE)
  set(_flags -fsanitize=${GRADPROBE_SANITIZE} -fno-omit-frame-pointer)
  if(GRADPROBE_SANITIZE MATCHES undefined)
    list(APPEND _flags -fno-sanitize-recover=all)
  endif()
  if(GRADPROBE_SANITIZE MATCHES thread)
    # ThreadSanitizer doesn't see fences; those of the ring order stores for readers in other processes.
    list(APPEND _flags -Wno-tsan)
  endif()
  # What a sanitizer adds makes GCC 12 see uninitialised values in std::regex.
  list(APPEND _flags -Wno-maybe-uninitialized)
  target_compile_options(gradprobe_options INTERFACE ${_flags})
  target_link_options(gradprobe_options INTERFACE ${_flags})
endif()
