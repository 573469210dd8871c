#pragma once

#include <c10/util/StringUtil.h>

#include "fsdp/base/error.h"

// The caller's mistake. Text: `[operation] what: got X, expected Y. Fix.`, with the parameter's name where there is
// one.
#define FSDP_CHECK(condition, ...)                                             \
  do {                                                                         \
    if (!(condition)) {                                                        \
      throw ::fsdp::Error(::fsdp::ErrorCode::kUsage, ::c10::str(__VA_ARGS__)); \
    }                                                                          \
  } while (false)

// Our mistake; stays in release builds.
#define FSDP_ASSERT(condition, ...)                                                                             \
  do {                                                                                                          \
    if (!(condition)) {                                                                                         \
      throw ::fsdp::Error(::fsdp::ErrorCode::kInternal, ::c10::str("[internal] ", __FILE__, ":", __LINE__, " ", \
                                                                   #condition, " failed. ", __VA_ARGS__));      \
    }                                                                                                           \
  } while (false)

// An error of another kind than the two above.
#define FSDP_THROW(code, ...) throw ::fsdp::Error(::fsdp::ErrorCode::code, ::c10::str(__VA_ARGS__))
