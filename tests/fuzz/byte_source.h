#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace fsdp::fuzz {

// Turns the bytes of an input into choices, from front to back. Once they are used up, every choice is 0.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  std::string_view take(size_t n) {
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  uint8_t byte() { return number<uint8_t>(); }
  template <class Number>
  Number number() {
    Number value = 0;
    const std::string_view bytes = take(sizeof(value));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // Up to `longest` bytes, the length in front.
  std::string text(size_t longest) { return std::string(take(byte() % (longest + 1))); }

 private:
  std::string_view rest_;
};

}  // namespace fsdp::fuzz
