#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "io/base/error.h"

// What every reader of foreign bytes promises, whatever the bytes: it returns or throws the documented error. A broken
// promise ends the process, which is how libFuzzer and the replay notice.
#define FUZZ_REQUIRE(condition) \
  ((condition) ? static_cast<void>(0) : ::fsdp::fuzz::report_broken(#condition, __FILE__, __LINE__))

namespace fsdp::fuzz {

[[noreturn]] inline void report_broken(const char* promise, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken promise: %s\n", file, line, promise);
  std::abort();
}

// Names from an untrusted file must not reach a terminal as they are.
inline bool is_printable(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c >= 0x7f) return false;
  }
  return true;
}

// Prints why something was refused, where FSDP_FUZZ_REASONS is set.
inline void say_reason(std::string_view message) {
  static const bool wanted = std::getenv("FSDP_FUZZ_REASONS") != nullptr;
  if (wanted) std::fprintf(stderr, "  refused: %.*s\n", static_cast<int>(message.size()), message.data());
}

// True if `function` returns, false if it throws io::Error with a message as promised: one printable line that starts
// with `[op]`. Every other exception passes through and ends the process.
template <class Function>
bool accepts(const Function& function) {
  try {
    function();
    return true;
  } catch (const io::Error& error) {
    const std::string_view message = error.what();
    say_reason(message);
    FUZZ_REQUIRE(message.starts_with('['));
    FUZZ_REQUIRE(is_printable(message));
    return false;
  }
}

}  // namespace fsdp::fuzz
