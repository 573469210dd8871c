# Finds LibTorch without asking for a CUDA toolkit (Torch's own config file does, for CUDA wheels).
#
#   LIBTORCH_DIR   folder that holds include/ and lib/: site-packages/torch of a wheel, or an unpacked LibTorch zip.
#                  Default: .deps/site-packages/torch under the checkout, where scripts/setup.sh puts it.
#
# Defines the imported target LibTorch::LibTorch (c10, torch_cpu, and c10d with Gloo), LibTorch_VERSION, and where the
# folder holds a CUDA build, LibTorch::CUDA and LibTorch_CUDA_FOUND. Who uses LibTorch::CUDA also finds a CUDA toolkit
# (find_package(CUDAToolkit)), whose runtime and headers then come along.
if(NOT LIBTORCH_DIR)
  set(LIBTORCH_DIR "${CMAKE_CURRENT_LIST_DIR}/../.deps/site-packages/torch")
endif()
get_filename_component(_libtorch_dir "${LIBTORCH_DIR}" ABSOLUTE)
set(LIBTORCH_DIR "${_libtorch_dir}" CACHE PATH "LibTorch: folder with include/ and lib/")

find_library(LIBTORCH_CPU_LIBRARY torch_cpu PATHS "${LIBTORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_LIBRARY c10 PATHS "${LIBTORCH_DIR}/lib" NO_DEFAULT_PATH)
find_path(LIBTORCH_INCLUDE_DIR ATen/ATen.h PATHS "${LIBTORCH_DIR}/include" NO_DEFAULT_PATH)

set(LibTorch_VERSION "")
if(EXISTS "${LIBTORCH_DIR}/include/torch/headeronly/version.h")
  set(_version_header "${LIBTORCH_DIR}/include/torch/headeronly/version.h")
elseif(EXISTS "${LIBTORCH_DIR}/include/torch/version.h")
  set(_version_header "${LIBTORCH_DIR}/include/torch/version.h")
endif()
if(_version_header)
  file(STRINGS "${_version_header}" _version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" _version_list "${_version_lines}")
  string(REPLACE ";" "." LibTorch_VERSION "${_version_list}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Run scripts/setup.sh, or pass -DLIBTORCH_DIR=<folder with include/ and lib/>.")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LIBTORCH_INCLUDE_DIR}" "${LIBTORCH_INCLUDE_DIR}/torch/csrc/api/include")
  target_compile_definitions(LibTorch::LibTorch INTERFACE NDEBUG USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(LibTorch::LibTorch INTERFACE "${LIBTORCH_CPU_LIBRARY}" "${LIBTORCH_C10_LIBRARY}")
  target_link_options(LibTorch::LibTorch INTERFACE "-Wl,-rpath,${LIBTORCH_DIR}/lib" "-Wl,--allow-shlib-undefined")
endif()
find_library(LIBTORCH_CUDA_LIBRARY torch_cuda PATHS "${LIBTORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_CUDA_LIBRARY c10_cuda PATHS "${LIBTORCH_DIR}/lib" NO_DEFAULT_PATH)
set(LibTorch_CUDA_FOUND OFF)
if(LibTorch_FOUND AND LIBTORCH_CUDA_LIBRARY AND LIBTORCH_C10_CUDA_LIBRARY)
  set(LibTorch_CUDA_FOUND ON)
  if(NOT TARGET LibTorch::CUDA)
    add_library(LibTorch::CUDA INTERFACE IMPORTED)
    # torch_cuda registers its operators when it is loaded, also where no symbol of it is used.
    target_link_libraries(LibTorch::CUDA INTERFACE LibTorch::LibTorch
      "-Wl,--push-state,--no-as-needed,${LIBTORCH_CUDA_LIBRARY},${LIBTORCH_C10_CUDA_LIBRARY},--pop-state"
      $<TARGET_NAME_IF_EXISTS:CUDA::cudart>)
  endif()
endif()
mark_as_advanced(LIBTORCH_CUDA_LIBRARY LIBTORCH_C10_CUDA_LIBRARY)
mark_as_advanced(LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR)
