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

}  // namespace fsdp::train
