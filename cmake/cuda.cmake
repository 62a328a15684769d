cmake_minimum_required(VERSION 3.20) # DEPFILE
# GATEMIX_CUDA: compiles csrc/cuda as build.rs does. Sets cuda_objects, cuda_libraries (what they need, for the linker) and
# pc_cuda_libs (the same for pkg-config).
# Our own rules, not CMake's language CUDA: it would link the C++ runtime, which the objects don't need.
find_program(GATEMIX_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT GATEMIX_NVCC)
  message(FATAL_ERROR "GATEMIX_CUDA needs nvcc: set CUDA_HOME or GATEMIX_NVCC; scripts/cuda-toolkit.sh installs one")
endif()
get_filename_component(nvcc "${GATEMIX_NVCC}" REALPATH)
get_filename_component(toolkit "${nvcc}/../.." ABSOLUTE)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(cuda_target sbsa-linux)
else()
  set(cuda_target x86_64-linux)
endif()
find_library(GATEMIX_CUDART libcudart_static.a PATHS "${toolkit}/targets/${cuda_target}/lib" "${toolkit}/lib64"
                                                     "${toolkit}/lib" NO_DEFAULT_PATH REQUIRED)

set(nvcc_flags
    -std=c++17
    -O3
    -I${CMAKE_CURRENT_SOURCE_DIR}/include
    -I${CMAKE_CURRENT_SOURCE_DIR}/csrc
    # So that the host side needs no C++ runtime.
    -Xcompiler=-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden,-fno-lto)
if(GATEMIX_WERROR)
  list(APPEND nvcc_flags -Werror=all-warnings)
endif()
if(GATEMIX_CUDA_ARCHS)
  list(TRANSFORM GATEMIX_CUDA_ARCHS PREPEND sm_ OUTPUT_VARIABLE cuda_code)
  list(TRANSFORM cuda_code REPLACE "^sm_90$" sm_90a)
  list(REMOVE_DUPLICATES cuda_code)
else()
  set(cuda_code sm_80 sm_86 sm_89 sm_90a sm_100f sm_120 compute_80)
endif()
foreach(code ${cuda_code})
  string(REPLACE sm_ compute_ arch ${code})
  list(APPEND nvcc_flags -gencode=arch=${arch},code=${code})
endforeach()
list(JOIN cuda_code ":" cuda_code)
list(APPEND nvcc_flags -DGM_CUDA_CODE=${cuda_code})

set(cuda_objects "")
set(object_dir "${CMAKE_CURRENT_BINARY_DIR}/cuda")
file(MAKE_DIRECTORY "${object_dir}")
file(GLOB cuda_sources CONFIGURE_DEPENDS csrc/cuda/*.cu)
foreach(source ${cuda_sources})
  get_filename_component(name "${source}" NAME)
  set(object "${object_dir}/${name}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${GATEMIX_NVCC}" ${nvcc_flags} -MD -MF "${object}.d" -c "${source}" -o "${object}"
    MAIN_DEPENDENCY "${source}"
    DEPENDS "${GATEMIX_NVCC}"
    DEPFILE "${object}.d"
    COMMENT "Compiling ${name}"
    VERBATIM)
  list(APPEND cuda_objects "${object}")
endforeach()
set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
# The two libraries would otherwise each run the commands, at the same time.
add_custom_target(gatemix_cuda_objects DEPENDS ${cuda_objects})

set(cuda_libraries "${GATEMIX_CUDART}" dl rt pthread)
get_filename_component(cudart_dir "${GATEMIX_CUDART}" DIRECTORY)
set(pc_cuda_libs " -L${cudart_dir} -lcudart_static -ldl -lrt -lpthread")
