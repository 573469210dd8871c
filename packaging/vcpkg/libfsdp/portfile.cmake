# The library and fsdp_c of the checkout that this port lies in (docs/install.md). LibTorch, nlohmann_json and nettle are
# those of the machine, as scripts/setup.sh installs them.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)
if(NOT EXISTS "${SOURCE_PATH}/fsdp/fsdp.h")
  message(FATAL_ERROR "libfsdp: got the port in '${CURRENT_PORT_DIR}', expected it in packaging/vcpkg of a checkout. Name it "
                      "there with --overlay-ports, and do not copy it.")
endif()
if(NOT EXISTS "$ENV{LIBTORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "libfsdp: got LIBTORCH_DIR='$ENV{LIBTORCH_DIR}', expected a LibTorch: a folder with include/ and lib/. Set "
                      "the environment variable; scripts/setup.sh puts one into .deps/site-packages/torch.")
endif()
set(VCPKG_BUILD_TYPE release) # LibTorch comes in one build, whose structs a debug build would see otherwise
set(VCPKG_POLICY_MISMATCHED_NUMBER_OF_BINARIES enabled)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    "-DLIBTORCH_DIR=$ENV{LIBTORCH_DIR}"
    -DFSDP_BUILD_APP=OFF
    -DFSDP_BUILD_TESTS=OFF
    -DFSDP_BUILD_BENCHMARKS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME fsdp CONFIG_PATH lib/cmake/fsdp)

file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
set(VCPKG_POLICY_SKIP_COPYRIGHT_CHECK enabled) # the checkout has no license file
