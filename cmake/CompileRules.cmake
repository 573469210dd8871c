# Compile rules shared by every target. All objects are position independent so that one precompiled header
# serves libraries and programs alike.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# The LibTorch wheel has another struct layout without NDEBUG (ATen/record_function.h), so every build type defines it.
add_compile_definitions(NDEBUG)
# These and all others are of the C++ compiler: nvcc knows none of them.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-Wall;-Wextra;-Wno-unknown-pragmas>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # lets ccache serve objects that use the precompiled header
  # A gigabyte before GCC collects its garbage: 6 % faster for a tenth more memory.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1048576 --param ggc-min-expand=100>")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")  # the same for clang
endif()
if(FSDP_SANITIZE)
  # LibTorch's objects have no checks, and hide the types that checks of virtual calls look for. Checks of every `this` and
  # reference take a quarter of the time of compilation (of kernels three quarters); scripts/fuzz.sh has them for readers.
  # std::regex has what GCC then takes for uninitialized, LibTorch a fence that ThreadSanitizer knows nothing of.
  set(unchecked -fno-sanitize=vptr,null,alignment,object-size)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FSDP_SANITIZE};${unchecked};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-g1>"
    "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized;-Wno-tsan>")
  add_link_options(-fsanitize=${FSDP_SANITIZE})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_DEPEND=1  # the compiler's own list of headers: none is preprocessed twice
      ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM NAMES ld.mold)
if(MOLD_PROGRAM AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

# Many sources at a time are compiled as one: their headers' templates, LibTorch's above all, cost most of the time, and
# are the same for all of them. So names of unnamed namespaces differ within a folder; sources for which they had better
# not (tests, mostly) set SKIP_UNITY_BUILD_INCLUSION.
option(FSDP_UNITY "Compile several sources at a time" ON)
function(fsdp_compile_together target batch_size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${FSDP_UNITY} UNITY_BUILD_BATCH_SIZE ${batch_size})
  if(FSDP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)  # the sources look like headers to it
  endif()
endfunction()

# Sources of a target whose UNITY_BUILD_MODE is GROUP: these are compiled as one.
function(fsdp_compile_as_one target group)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()

# A target whose sources include headers of LibTorch that need none of its libraries: programs that link it are free of them.
function(fsdp_read_torch_headers target)
  target_include_directories(${target} SYSTEM PRIVATE $<TARGET_PROPERTY:LibTorch::LibTorch,INTERFACE_INCLUDE_DIRECTORIES>)
endfunction()

# A target that decides what is computed and calls what computes it: loops over numbers are in kernels/raw, text and io.
# The passes left out take GCC a quarter of its time and make no step measurably faster; small functions are inlined all
# the same, of which LibTorch's headers are full.
function(fsdp_optimize_lightly target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE
      "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1;-finline-small-functions;-findirect-inlining;-fpartial-inlining>")
  endif()
endfunction()

# A target that is not optimized, unless it is slow anyway.
function(fsdp_leave_as_written target)
  if(NOT FSDP_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()

# A target whose sources include torch: links LibTorch and uses a shared precompiled header, that of the first such target,
# which has what most of our own sources need. It is not torch/torch.h, whose templates take each compilation 2 s more,
# used or not; tests, which are about torch::nn models and torch::optim, say WHOLE: 6 s each of a processor, for which
# BATCH_SIZE may be larger. They are not optimized: what they test is.
function(fsdp_use_torch target)
  cmake_parse_arguments(arg "WHOLE" "BATCH_SIZE" "" ${ARGN})
  if(NOT arg_BATCH_SIZE)
    set(arg_BATCH_SIZE 12)
  endif()
  target_link_libraries(${target} PUBLIC LibTorch::LibTorch)
  if(arg_WHOLE)
    fsdp_leave_as_written(${target})
    fsdp_precompile_whole_torch()
    target_precompile_headers(${target} REUSE_FROM fsdp_whole_pch)
  else()
    fsdp_optimize_lightly(${target})
    fsdp_reuse_headers(${target})
  endif()
  set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "")
  fsdp_compile_together(${target} ${arg_BATCH_SIZE})
endfunction()

function(fsdp_reuse_headers target)
  if(target STREQUAL fsdp_kernels)
    target_precompile_headers(${target} PRIVATE
      <torch/nn/module.h> <torch/csrc/autograd/custom_function.h> <torch/csrc/distributed/c10d/Store.hpp>)
  else()
    target_precompile_headers(${target} REUSE_FROM fsdp_kernels)
  endif()
endfunction()

# Tests have definitions of their own, so that none of them can lend its header to another.
function(fsdp_precompile_whole_torch)
  if(NOT TARGET fsdp_whole_pch)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch/empty.cpp CONTENT "")  # written where it is not there yet
    add_library(fsdp_whole_pch OBJECT ${CMAKE_BINARY_DIR}/pch/empty.cpp)
    target_link_libraries(fsdp_whole_pch PRIVATE LibTorch::LibTorch)
    target_precompile_headers(fsdp_whole_pch PRIVATE <torch/torch.h> <torch/script.h> <torch/csrc/distributed/c10d/Store.hpp>)
    fsdp_leave_as_written(fsdp_whole_pch)
  endif()
endfunction()
