# One interface target carries what every translation unit is compiled with.
add_library(headrace_flags INTERFACE)
target_compile_options(headrace_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # Numbers must not depend on where the compiler fuses a multiply and an add (invariant 1).
  -ffp-contract=off -fno-fast-math
  -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: `"text" + std::string` warns of an overlap that cannot be.
  target_compile_options(headrace_flags INTERFACE -Wno-restrict)
endif()
if(HEADRACE_WARNINGS_AS_ERRORS)
  target_compile_options(headrace_flags INTERFACE -Werror)
endif()
if(HEADRACE_SANITIZE)
  list(JOIN HEADRACE_SANITIZE "," headrace_sanitizers)
  target_compile_options(headrace_flags INTERFACE -fsanitize=${headrace_sanitizers} -fno-sanitize-recover=all)
  target_link_options(headrace_flags INTERFACE -fsanitize=${headrace_sanitizers})
  target_compile_definitions(headrace_flags INTERFACE HEADRACE_SANITIZED=1)
endif()
target_compile_definitions(headrace_flags INTERFACE $<$<CONFIG:Debug>:HEADRACE_DEBUG_CHECKS=1>)

# headrace_library(NAME SOURCES a.cpp ... [PUBLIC lib ...] [PRIVATE lib ...])
# A static library of one folder, with the alias headrace::NAME. Includes are written from the repository's root.
function(headrace_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(headrace_${name} STATIC ${arg_SOURCES})
  add_library(headrace::${name} ALIAS headrace_${name})
  target_include_directories(headrace_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(headrace_${name} PUBLIC ${arg_PUBLIC} PRIVATE headrace_flags ${arg_PRIVATE})
endfunction()

# headrace_test(NAME SOURCES a.cpp ... LINK lib ... [LABELS l ...] [TIMEOUT s] [SKIP_CODE n] [PREFIX p] [OWN_MAIN])
# A GoogleTest binary, registered as one CTest test a case. Tests print their seed and read it from HEADRACE_SEED.
# PREFIX: of the names, where two binaries have the same cases. SKIP_CODE: the exit code with which its main
# says that the machine lacks what it tests.
include(GoogleTest)
function(headrace_test name)
  if(NOT HEADRACE_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "OWN_MAIN" "TIMEOUT;SKIP_CODE;PREFIX" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE headrace_flags ${arg_LINK} GTest::gtest)
  if(NOT arg_OWN_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  # An empty value would make the next property's name the value.
  set(properties)
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  if(arg_SKIP_CODE)
    list(APPEND properties SKIP_RETURN_CODE ${arg_SKIP_CODE})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX "${arg_PREFIX}"
    # Tests run side by side: OpenMP's workers must not spin while they have nothing to do.
    PROPERTIES TIMEOUT ${arg_TIMEOUT} ${properties} ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()
