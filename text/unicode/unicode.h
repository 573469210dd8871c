#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {

// What the split patterns ask about a character; bits of CharacterClasses.
enum CharacterClass : uint8_t {
  kLetter = 1,   // \p{L}
  kNumber = 2,   // \p{N}
  kSpace = 4,    // \s: White_Space
  kNewline = 8,  // \r or \n; they are kSpace too
  kDigit = 16,   // Digits: Rust's char::is_numeric, of a later Unicode version than \p{N}
  kWord = 32,    // \w of Rust's regex crate
};

// The classes of all code points in a table of two stages. Tables: unicode_ranges.h.
class CharacterClasses {
 public:
  static const CharacterClasses& get();

  uint8_t of(char32_t value) const { return blocks_[(size_t{index_[value >> kBits]} << kBits) + (value & kMask)]; }
  // The same for a byte below 0x80.
  uint8_t of_ascii(char byte) const { return blocks_[static_cast<unsigned char>(byte)]; }

  // Of the character at `at`, valid UTF-8; sets its length.
  uint8_t at(const char* at, size_t& length) const {
    if (static_cast<signed char>(*at) >= 0) {
      length = 1;
      return of_ascii(*at);
    }
    const CodePoint point = decode_at(at);
    length = point.length;
    return of(point.value);
  }

 private:
  CharacterClasses();

  static constexpr int kBits = 7;
  static constexpr char32_t kMask = (1 << kBits) - 1;

  std::array<uint16_t, (0x110000 >> kBits)> index_{};
  std::vector<uint8_t> blocks_;  // block 0 is ASCII
};

// Appends the normal form C of `text`, valid UTF-8.
void append_nfc(std::string_view text, std::string& out);
// Certainly in normal form C? A quick look: false says nothing.
bool is_nfc(std::string_view text);

}  // namespace fsdp::tokenizer
