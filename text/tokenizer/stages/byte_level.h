#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::tokenizer {

// The printable alphabet of GPT-2 for bytes: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves, the
// other bytes in order for U+0100, U+0101, ...
namespace byte_level {

// The character of each byte, in UTF-8.
const std::array<std::string, 256>& characters();

// Back to bytes; nullopt if a character is none of the alphabet. `text` is valid UTF-8.
std::optional<std::string> to_bytes(std::string_view text);

}  // namespace byte_level
}  // namespace fsdp::tokenizer
