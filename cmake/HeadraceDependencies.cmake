# Every library comes from the distribution (scripts/dependencies.txt lists the packages).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED)
find_package(dnnl REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(tl-expected REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
# libunistring has no pkg-config file.
find_library(HEADRACE_UNISTRING unistring REQUIRED)
find_path(HEADRACE_UNISTRING_INCLUDE_DIR uninorm.h REQUIRED)
add_library(unistring INTERFACE)
target_link_libraries(unistring INTERFACE "${HEADRACE_UNISTRING}")
target_include_directories(unistring SYSTEM INTERFACE "${HEADRACE_UNISTRING_INCLUDE_DIR}")

# libxxhash's plain entry points use SSE2 on x86; those that choose AVX2 or AVX-512 at run time are a build
# option of it.
include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_symbol_exists(XXH3_64bits_dispatch "xxhash.h;xxh_x86dispatch.h" HEADRACE_XXHASH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)

# The CUDA toolkit is optional. Its headers alone (HEADRACE_CUDA_INCLUDE_DIR) build tiers/gpu and its tests on
# the emulated runtime; with its libraries there are tests for a real GPU as well.
set(HEADRACE_CUDA_FOUND OFF)
set(HEADRACE_CUDA_HEADERS OFF)
if(NOT HEADRACE_CUDA STREQUAL "off")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(HEADRACE_CUDA_FOUND ON)
  elseif(HEADRACE_CUDA STREQUAL "on")
    message(FATAL_ERROR
      "HEADRACE_CUDA=on, but no CUDA toolkit was found; set CUDAToolkit_ROOT, or use auto or off")
  endif()
  find_path(HEADRACE_CUDA_INCLUDE_DIR cuda_runtime_api.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS /usr/local/cuda/include
    DOC "Folder of the CUDA toolkit's headers")
  if(HEADRACE_CUDA_INCLUDE_DIR)
    set(HEADRACE_CUDA_HEADERS ON)
  endif()
endif()

# nvcc compiles the kernels that there are (of bench/); everything else is for the C++ compiler.
set(HEADRACE_NVCC OFF)
if(HEADRACE_CUDA_FOUND AND HEADRACE_BENCH AND CUDAToolkit_NVCC_EXECUTABLE)
  if(NOT DEFINED CMAKE_CUDA_COMPILER)
    set(ENV{CUDACXX} "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80;89;90;120" CACHE STRING "GPUs that kernels are compiled for")
  endif()
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # CMake 3.25 does not know that nvcc has it.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(HEADRACE_NVCC ON)
  endif()
endif()
