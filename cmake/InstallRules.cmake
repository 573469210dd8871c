# find_package(fsdp) for programs outside this tree: libraries, public headers, and how LibTorch was found.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(FSDP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(TARGETS fsdp fsdp_kernels fsdp_c EXPORT fsdpTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdpTargets NAMESPACE fsdp:: DESTINATION ${FSDP_PACKAGE_DIR})
configure_package_config_file(cmake/fsdpConfig.cmake.in ${CMAKE_BINARY_DIR}/fsdpConfig.cmake
                              INSTALL_DESTINATION ${FSDP_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/fsdpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/fsdpConfig.cmake ${CMAKE_BINARY_DIR}/fsdpConfigVersion.cmake
              cmake/FindLibTorch.cmake
        DESTINATION ${FSDP_PACKAGE_DIR})
set_target_properties(fsdp fsdp_kernels fsdp_c PROPERTIES INSTALL_RPATH "$ORIGIN")
if(TARGET fsdp_app)
  install(TARGETS fsdp_app fsdp_verbs RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(fsdp_app PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(fsdp_verbs PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_DIR}/lib")
endif()
if(TARGET fsdp_parquet)
  install(TARGETS fsdp_parquet LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
endif()
if(TARGET fsdp_cuda)
  install(TARGETS fsdp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
  set_target_properties(fsdp_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${LIBTORCH_DIR}/lib")
endif()
