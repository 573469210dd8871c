#include "text/tokenizer/stages/byte_level.h"

#include "text/unicode/utf8.h"

namespace fsdp::tokenizer::byte_level {
namespace {

constexpr char32_t kEnd = 0x144;  // one past the last character of the alphabet

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, kEnd> bytes;

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t character = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      append_utf8(character, characters[static_cast<size_t>(byte)]);
      bytes[character] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet only;
  return only;
}

}  // namespace

const std::array<std::string, 256>& characters() { return alphabet().characters; }

std::optional<std::string> to_bytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_at(text.data() + i);
    const int byte = point.value < kEnd ? alphabet().bytes[point.value] : -1;
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    i += point.length;
  }
  return bytes;
}

}  // namespace fsdp::tokenizer::byte_level
