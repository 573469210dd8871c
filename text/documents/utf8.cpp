#include "text/documents/utf8.h"

#include <simdjson.h>

#include <cstdint>

namespace fsdp::io {

namespace {

// Bytes of the sequence at the start of `text`; 0 if none is valid.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = lead == 0xed && byte(1) > 0x9f;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool overlong = lead == 0xf0 && byte(1) < 0x90;
    const bool too_high = lead == 0xf4 && byte(1) > 0x8f;
    return continues(1) && continues(2) && continues(3) && !overlong && !too_high ? 4 : 0;
  }
  return 0;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return text.size();
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

}  // namespace fsdp::io
