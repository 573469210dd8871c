#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "train/base/terminal_text.h"

namespace fsdp::app {

// The line with which a program ends that failed: "fsdp: MESSAGE", in red on a terminal (unless NO_COLOR is set).
inline void print_failure(const std::string& message) {
  const bool color = isatty(STDERR_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  std::fprintf(stderr, "%sfsdp: %s%s\n", color ? "\x1b[31m" : "", train::for_terminal(message).c_str(),
               color ? "\x1b[0m" : "");
}

}  // namespace fsdp::app
