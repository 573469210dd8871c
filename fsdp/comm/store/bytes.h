#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::comm {

// Numbers of fixed size in messages between hosts, little end first.

template <class Integer>
void append_number(std::string& bytes, Integer number) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    bytes += static_cast<char>(static_cast<uint64_t>(number) >> (8 * i));
  }
}

// Of the first bytes, which it takes away. REQUIRES: they are there.
template <class Integer>
Integer take_number(std::string_view& bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) number |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  bytes.remove_prefix(sizeof(Integer));
  return static_cast<Integer>(number);
}

}  // namespace fsdp::comm
