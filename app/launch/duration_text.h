#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace fsdp::app {

// "30 s", "0.25 s".
inline std::string in_seconds(std::chrono::milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g s", static_cast<double>(duration.count()) / 1000);
  return text;
}

}  // namespace fsdp::app
