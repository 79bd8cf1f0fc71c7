# What `cmake --install` copies: the program, libheadrace.so with its C headers, and what CMake's
# find_package(headrace) and pkg-config need to find them. The engine's own libraries are static and stay
# in the build.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# headrace_install_library(TARGET): a library for other programs, as headrace::NAME of the package.
function(headrace_install_library target)
  install(TARGETS ${target} EXPORT headrace-targets
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/headrace" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The targets file is all there is to say: the library's own dependencies are not its users'.
set(headrace_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)
install(EXPORT headrace-targets NAMESPACE headrace:: FILE headrace-config.cmake
  DESTINATION ${headrace_package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/headrace-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/headrace-config-version.cmake" DESTINATION ${headrace_package_dir})

# From where the file lies, since `cmake --install --prefix` may go anywhere.
file(RELATIVE_PATH headrace_pc_libdir "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/${CMAKE_INSTALL_LIBDIR}")
file(RELATIVE_PATH headrace_pc_includedir "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/${CMAKE_INSTALL_INCLUDEDIR}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/headrace.pc.in" "${PROJECT_BINARY_DIR}/headrace.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/headrace.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
