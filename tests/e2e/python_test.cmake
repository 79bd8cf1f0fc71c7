# headrace_python_test(NAME SCRIPT ARGUMENTS ... [LABELS l ...] [TIMEOUT s] [PROCESSORS n])
# A test that drives the built binary from Python (standard library only). It runs in the build folder, so that what
# it writes lies on a disk; exit code 77 is a skip, with the reason in its output.
include_guard()
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

function(headrace_python_test name script)
  cmake_parse_arguments(arg "" "TIMEOUT;PROCESSORS" "ARGUMENTS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 2)
  endif()
  add_test(NAME ${name}
    COMMAND Python3::Interpreter -B ${script} $<TARGET_FILE:headrace> ${arg_ARGUMENTS}
    WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 PROCESSORS ${arg_PROCESSORS} LABELS "e2e;${arg_LABELS}")
endfunction()
