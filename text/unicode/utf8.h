#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::tokenizer {

struct CodePoint {
  char32_t value;
  size_t length;  // bytes
};

// The code point that starts at `at`, which must be valid UTF-8.
inline CodePoint decode_at(const char* at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(at[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {static_cast<char32_t>((lead & 0x1F) << 6 | (byte(1) & 0x3F)), 2};
  if (lead < 0xF0) {
    return {static_cast<char32_t>((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)), 3};
  }
  return {
      static_cast<char32_t>((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F)),
      4};
}

// Bytes of the character that starts with `lead` in valid UTF-8.
inline size_t length_of(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Start of the character before `at`; `at` is a boundary behind `first` in valid UTF-8.
inline const char* previous_character(const char* first, const char* at) {
  do {
    --at;
  } while (at > first && (static_cast<unsigned char>(*at) & 0xC0) == 0x80);
  return at;
}

void append_utf8(char32_t value, std::string& text);

// Where `text` stops being valid UTF-8 (Unicode standard, table 3-7), if it does.
std::optional<size_t> find_invalid_utf8(std::string_view text);

// Bytes that arrive in pieces to valid UTF-8: holds an incomplete character back, and replaces each maximal part of
// what can never become one by U+FFFD, as Rust's from_utf8_lossy does.
class Utf8Repair {
 public:
  // Appends what is certain now.
  void push(std::string_view bytes, std::string& text);
  // Appends what was held back, replaced.
  void finish(std::string& text);

 private:
  void push_slowly(char byte, std::string& text);

  std::string held_;
};

// All of `bytes` at once.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace fsdp::tokenizer
