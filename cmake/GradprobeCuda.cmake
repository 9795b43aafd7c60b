# Finds a CUDA Toolkit for two things only: cuda.h (declarations) and nvcc (device code to fat binaries). Nothing links
# against a CUDA library. Searched in this order: CUDA_HOME, PATH, /usr/local/cuda, then .venv (filled by ./run).
#   GRADPROBE_NVCC          the compiler
#   GRADPROBE_CUDA_INCLUDE  the folder with cuda.h
#   gradprobe_fatbin(OUT <file> SOURCE <file.cu> [SASS 75 80 ...] [PTX 75 80 ...] [DEPENDS ...] [FLAGS ...])
file(GLOB _wheel_homes "${PROJECT_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/cu13")
find_program(GRADPROBE_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda ${_wheel_homes} PATH_SUFFIXES bin)
if(NOT GRADPROBE_NVCC)
  message(FATAL_ERROR "nvcc not found: set CUDA_HOME to a CUDA Toolkit 12.8 or newer, or start the build with ./run")
endif()
file(REAL_PATH "${GRADPROBE_NVCC}" _nvcc_real)
cmake_path(GET _nvcc_real PARENT_PATH _nvcc_bin)
cmake_path(GET _nvcc_bin PARENT_PATH GRADPROBE_CUDA_HOME)
find_path(GRADPROBE_CUDA_INCLUDE cuda.h HINTS "${GRADPROBE_CUDA_HOME}/include"
          "${GRADPROBE_CUDA_HOME}/targets/x86_64-linux/include" REQUIRED)

function(gradprobe_fatbin)
  cmake_parse_arguments(ARG "" "OUT;SOURCE" "SASS;PTX;DEPENDS;FLAGS" ${ARGN})
  set(_codes "")
  foreach(_a IN LISTS ARG_SASS)
    list(APPEND _codes -gencode arch=compute_${_a},code=sm_${_a})
  endforeach()
  foreach(_a IN LISTS ARG_PTX)
    list(APPEND _codes -gencode arch=compute_${_a},code=compute_${_a})
  endforeach()
  cmake_path(GET ARG_SOURCE FILENAME _name)
  cmake_path(ABSOLUTE_PATH ARG_SOURCE NORMALIZE OUTPUT_VARIABLE _source)
  add_custom_command(
    OUTPUT "${ARG_OUT}"
    COMMAND "${GRADPROBE_NVCC}" -fatbin -std=c++20 -O3 --threads 2 -Werror all-warnings
            -I "${PROJECT_SOURCE_DIR}/include" -I "${PROJECT_SOURCE_DIR}" ${ARG_FLAGS} ${_codes}
            -MD -MF "${ARG_OUT}.d" -MT "${ARG_OUT}" -o "${ARG_OUT}" "${_source}"
    DEPENDS "${_source}" ${ARG_DEPENDS}
    DEPFILE "${ARG_OUT}.d"
    COMMENT "Compiling device code ${_name}"
    VERBATIM)
endfunction()
