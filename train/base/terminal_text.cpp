#include "train/base/terminal_text.h"

#include <algorithm>

namespace fsdp::train {
namespace {

unsigned char byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

// Bytes of the UTF-8 character at the front; 0: there is none. Characters of too many bytes count as none, as a
// terminal may read them as what they stand for.
size_t utf8_length(std::string_view text) {
  const unsigned char first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte_at(text, 1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  return is_overlong || (first == 0xf4 && second >= 0x90) ? 0 : length;
}

bool is_control(std::string_view character) {
  const unsigned char first = byte_at(character, 0);
  if (character.size() == 1) return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
  return character.size() == 2 && first == 0xc2 && byte_at(character, 1) < 0xa0;
}

}  // namespace

std::string for_terminal(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    if (length > 0 && !is_control(character)) {
      out += character;
    } else {
      const unsigned char code = byte_at(character, character.size() - 1);  // of U+0080 to U+009F too
      out += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace fsdp::train
