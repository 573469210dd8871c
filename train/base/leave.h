#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace fsdp::train {

// Sanitizers report from static destructors.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kRunsStaticDestructors = true;
#elif defined(__has_feature)
inline constexpr bool kRunsStaticDestructors =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer);
#else
inline constexpr bool kRunsStaticDestructors = false;
#endif

// For failures that nobody can catch: LibTorch's threads of the backward pass, its destructors and its loading let no
// exception out, so that lack of memory there ends the process (std::terminate). From this call on, such an end has the
// exit code and the advice of every other lack of memory; all other ends of this kind stay SIGABRT. Local to the
// process; allocates nothing when it comes to that.
void advise_where_memory_ends();

// Ends the process with `exit_code` once standard output and error are written. Local to the process. What LibTorch's
// static objects hold is left to the system: to take it apart takes 80 ms, a third of a short command, and nobody sees
// the result.
[[noreturn]] inline void leave(int exit_code) {
  if (kRunsStaticDestructors) std::exit(exit_code);
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace fsdp::train
