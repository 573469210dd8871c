#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace fsdp::report {

// Numbers as printf writes them; at most 199 characters.
template <class... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace fsdp::report
