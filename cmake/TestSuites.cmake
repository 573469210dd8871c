# A test that hardly uses a processor: such begin first, one at a time beside others, which then find a processor free.
function(fsdp_test_waits name)
  set_tests_properties(${name} PROPERTIES COST 200 RESOURCE_LOCK waiting)
endfunction()

# The entry of these suites of `target`; of what fsdp_add_test_suites() has read, its caller.
function(fsdp_add_test_entry label suites)
  list(JOIN suites "," names)
  set(name ${target}.${names}${suffix})
  list(TRANSFORM suites REPLACE "(.+)" "\\1.*:*/\\1.*" OUTPUT_VARIABLE filters)
  list(JOIN filters ":" filter)
  add_test(NAME ${name} COMMAND ${target} --gtest_brief=1 --gtest_filter=${filter})
  # One thread each: ranks are threads or processes already, and ctest runs several tests at once.
  if(arg_NO_KERNELS)
    list(APPEND label no-kernels)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${environment}"
                       FAIL_REGULAR_EXPRESSION "0 tests from 0 test suites ran")
  if(suites IN_LIST arg_WAITING_SUITES)
    fsdp_test_waits(${name})
  elseif(suites IN_LIST arg_LONG_SUITES)
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
  if(arg_SKIPPED_WHERE)
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "${arg_SKIPPED_WHERE}")
  endif()
endfunction()

# One ctest entry per test suite rather than per test: a process that links LibTorch takes 0.17 s of a processor to start,
# most tests a few milliseconds. The suites are read from the sources, so nothing is run at build time.
#
#   fsdp_add_test_suites(target LABEL label [FAST_SUITES suite...] [TOGETHER count] [NO_KERNELS] [TIMEOUT seconds]
#                       [TRANSPORT name] [SUITES suite...] [LONG_SUITES suite...] [SKIPPED_WHERE regex...]
#                       [WAITING_SUITES suite...] [ENVIRONMENT name=value...])
#
# FAST_SUITES get the label `fast` instead. TOGETHER: so many fast suites share an entry, whose name has all of theirs.
# NO_KERNELS: the program has none, so that the processor's instruction set is nothing to it (a label tells so).
# TRANSPORT: what ranks of these entries talk over, see tests/support/ranks.h. SUITES: only these. LONG_SUITES take ten
# seconds and more; they have an entry each and start first, so that none of them ends alone. WAITING_SUITES: see
# fsdp_test_waits(). SKIPPED_WHERE: output that tells that the tests cannot run here; ctest says "Skipped" then.
function(fsdp_add_test_suites target)
  cmake_parse_arguments(arg "NO_KERNELS" "LABEL;TOGETHER;TIMEOUT;TRANSPORT"
                        "FAST_SUITES;LONG_SUITES;WAITING_SUITES;SUITES;SKIPPED_WHERE;ENVIRONMENT" ${ARGN})
  # Against a hang only: a machine that others use has taken three times what is usual, and the ranks have deadlines.
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  if(NOT arg_TOGETHER)
    set(arg_TOGETHER 1)
  endif()
  get_target_property(sources ${target} SOURCES)
  set(suites "")
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(STRINGS ${path} lines REGEX "^(TEST|TEST_F|TEST_P|RC_GTEST_PROP)\\([A-Za-z0-9_]+,")
    foreach(line ${lines})
      string(REGEX REPLACE "^[A-Z_]+\\(([A-Za-z0-9_]+),.*" "\\1" suite "${line}")
      list(APPEND suites ${suite})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  if(arg_SUITES)
    set(suites ${arg_SUITES})
  endif()
  set(suffix "")
  if(arg_TRANSPORT)
    set(suffix "@${arg_TRANSPORT}")
  endif()
  # LibTorch keeps what its static objects own until the process ends.
  set(environment OMP_NUM_THREADS=1 TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp
      ASAN_OPTIONS=detect_leaks=0 ${arg_ENVIRONMENT})
  # Sanitizers load libraries themselves: the paths in `fsdp`, by which it finds its verbs, do not count then.
  if(FSDP_SANITIZE)
    list(APPEND environment LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/bin)
  endif()
  if(arg_TRANSPORT)
    list(APPEND environment FSDP_TEST_TRANSPORT=${arg_TRANSPORT})
  endif()
  set(together "")
  foreach(suite ${suites})
    set(label ${arg_LABEL})
    if(suite IN_LIST arg_FAST_SUITES)
      set(label fast)
    endif()
    if(NOT label STREQUAL "fast" OR suite IN_LIST arg_LONG_SUITES OR suite IN_LIST arg_WAITING_SUITES)
      fsdp_add_test_entry(${label} ${suite})
      continue()
    endif()
    list(APPEND together ${suite})
    list(LENGTH together count)
    if(count EQUAL arg_TOGETHER)
      fsdp_add_test_entry(fast "${together}")
      set(together "")
    endif()
  endforeach()
  if(together)
    fsdp_add_test_entry(fast "${together}")
  endif()
endfunction()
