#pragma once

#include <charconv>
#include <string>

namespace fsdp::checkpoint {

// Text that reads back as the same number, to the bit.
template <class Number>
std::string exact_text(Number number) {
  char digits[64];
  return {digits, std::to_chars(digits, digits + sizeof(digits), number).ptr};
}

}  // namespace fsdp::checkpoint
