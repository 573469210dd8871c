#pragma once

#include <exception>
#include <string>

namespace fsdp::train {

// An exception as a user meets it: one line, and the exit code of the process (docs/errors.md).
struct Failure {
  int exit_code = 1;
  std::string message;
  bool told_elsewhere = false;  // all ranks fail alike, and another one prints it
};

// Knows fsdp::Error, io::Error, errors of LibTorch, of the file system and of memory. Never throws.
Failure describe_failure(const std::exception_ptr& exception) noexcept;

// For failures that nobody can catch: LibTorch's threads of the backward pass and its destructors let no exception out,
// so that lack of memory there ends the process (std::terminate). From this call on, such an end has the exit code and
// the advice of every other lack of memory; all other ends of this kind stay SIGABRT. Local to the process; allocates
// nothing when it comes to that.
void advise_where_memory_ends();

}  // namespace fsdp::train
