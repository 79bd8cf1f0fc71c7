message(STATUS "headrace ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}")
message(STATUS "  tests ${HEADRACE_TESTS}, benchmarks ${HEADRACE_BENCH}, sanitizers '${HEADRACE_SANITIZE}'")
message(STATUS "  CUDA toolkit: ${HEADRACE_CUDA_FOUND} (asked: ${HEADRACE_CUDA}; this version has no CUDA tier)")
