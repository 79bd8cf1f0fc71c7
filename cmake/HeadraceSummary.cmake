message(STATUS "headrace ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}")
message(STATUS "  tests ${HEADRACE_TESTS}, benchmarks ${HEADRACE_BENCH}, sanitizers '${HEADRACE_SANITIZE}'")
message(STATUS "  CUDA (asked: ${HEADRACE_CUDA}): headers ${HEADRACE_CUDA_HEADERS}, libraries ${HEADRACE_CUDA_FOUND}")
