# Switches the language CUDA on. nvcc is CMAKE_CUDA_COMPILER or $CUDACXX, else the one of PATH, of /usr/local/cuda, or of
# `scripts/setup.sh --cuda`. No GPU is needed.
if(NOT LibTorch_CUDA_FOUND)
  message(FATAL_ERROR "FSDP_CUDA: the LibTorch in '${LIBTORCH_DIR}' was built without CUDA. Use a CUDA build of it, such as "
                      "the one that scripts/setup.sh installs, or -DFSDP_CUDA=OFF.")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(FSDP_NVCC nvcc PATHS /usr/local/cuda/bin ${PROJECT_SOURCE_DIR}/.deps/cuda/nvidia/cu13/bin)
  if(FSDP_NVCC)
    set(CMAKE_CUDA_COMPILER ${FSDP_NVCC})
  endif()
endif()
# Machine code for Ampere and Hopper, and PTX for what comes after.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPUs to compile for")
endif()
enable_language(CUDA)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # targets name CUDA::cudart: the shared one, which LibTorch uses
# CMake 3.25 does not know that nvcc 12 has C++20.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "FSDP_CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old, 12.8 is needed. Run scripts/setup.sh "
                      "--cuda, or name another with -DCMAKE_CUDA_COMPILER=<path>.")
endif()
find_package(CUDAToolkit 12.8 REQUIRED)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
