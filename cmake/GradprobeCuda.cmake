# Finds a CUDA Toolkit for two things only: cuda.h (declarations) and nvcc (device code to fat binaries). Nothing links
# against a CUDA library. Searched in this order: CUDA_HOME, PATH, /usr/local/cuda, then .venv (filled by ./run, which
# searches in the same order and passes what it found as GRADPROBE_NVCC).
#   GRADPROBE_NVCC          the compiler
#   GRADPROBE_CUDA_INCLUDE  the folder with cuda.h
#   gradprobe_fatbin(OUT <file> SOURCE <file.cu> [SASS 75 80 ...] [PTX 75 80 ...] [DEPENDS ...] [FLAGS ...])
set(_nvcc_oldest 12.8)  # the first that knows sm_120

function(_gradprobe_nvcc_version nvcc out)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE _text ERROR_QUIET RESULT_VARIABLE _rc)
  if(_rc EQUAL 0 AND _text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${out} 0 PARENT_SCOPE)
  endif()
endfunction()

function(_gradprobe_nvcc_usable result nvcc)
  _gradprobe_nvcc_version("${nvcc}" _version)
  if(_version VERSION_LESS _nvcc_oldest)
    message(STATUS "${nvcc} is release ${_version}, older than ${_nvcc_oldest}: not used")
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

file(GLOB _wheel_homes "${PROJECT_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/cu13")
find_program(GRADPROBE_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda ${_wheel_homes} PATH_SUFFIXES bin
             VALIDATOR _gradprobe_nvcc_usable)
if(NOT GRADPROBE_NVCC)
  message(FATAL_ERROR "no nvcc ${_nvcc_oldest} or newer: set CUDA_HOME to a CUDA Toolkit, or start the build with ./run")
endif()
_gradprobe_nvcc_version("${GRADPROBE_NVCC}" GRADPROBE_NVCC_VERSION)
if(GRADPROBE_NVCC_VERSION VERSION_LESS _nvcc_oldest)
  message(FATAL_ERROR "GRADPROBE_NVCC=${GRADPROBE_NVCC} is release ${GRADPROBE_NVCC_VERSION}: "
                      "${_nvcc_oldest} or newer is needed")
endif()

# nvcc on PATH may be a link or a wrapper script; the compiler itself knows where its toolkit is.
execute_process(COMMAND "${GRADPROBE_NVCC}" --dryrun -fatbin -x cu /dev/null ERROR_VARIABLE _dryrun OUTPUT_QUIET)
if(NOT _dryrun MATCHES "#\\$ TOP=([^\n]+)")
  message(FATAL_ERROR "${GRADPROBE_NVCC} --dryrun doesn't say where its toolkit is: set CUDA_HOME to a CUDA Toolkit")
endif()
file(REAL_PATH "${CMAKE_MATCH_1}" GRADPROBE_CUDA_HOME)
find_path(GRADPROBE_CUDA_INCLUDE cuda.h PATHS "${GRADPROBE_CUDA_HOME}/include"
          "${GRADPROBE_CUDA_HOME}/targets/x86_64-linux/include" NO_DEFAULT_PATH NO_CACHE REQUIRED)
message(STATUS "CUDA Toolkit ${GRADPROBE_NVCC_VERSION}: ${GRADPROBE_CUDA_HOME}")

set(GRADPROBE_FATBIN_CACHE "" CACHE PATH "Folder through which build trees share compiled device code (empty: none)")

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
  set(_script "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/CompileFatbin.cmake")
  add_custom_command(
    OUTPUT "${ARG_OUT}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${ARG_OUT}" "-DCACHE=${GRADPROBE_FATBIN_CACHE}"
            "-DVERSION=${GRADPROBE_NVCC_VERSION}" -P "${_script}" --
            "${GRADPROBE_NVCC}" -fatbin -std=c++20 -O3 --threads 2 -Werror all-warnings
            -I "${PROJECT_SOURCE_DIR}/include" -I "${PROJECT_SOURCE_DIR}" ${ARG_FLAGS} ${_codes} "${_source}"
    DEPENDS "${_source}" "${_script}" ${ARG_DEPENDS}
    DEPFILE "${ARG_OUT}.d"
    COMMENT "Compiling device code ${_name}"
    VERBATIM)
endfunction()
