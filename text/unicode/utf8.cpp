#include "text/unicode/utf8.h"

#include <cstdint>
#include <cstring>

namespace fsdp::tokenizer {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

// Number of bytes of the sequence that starts with `lead`; 0 if none does.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// May `next` be the second byte after `lead`? Excludes overlong forms, surrogates and what lies above U+10FFFF.
bool may_be_second(unsigned char lead, unsigned char next) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return next >= low && next <= high;
}

bool may_be_later(unsigned char next) { return (next & 0xC0) == 0x80; }

// Is the character at `at` complete and valid? Sets its length.
bool is_character(const unsigned char* at, size_t num_left, size_t& length) {
  length = sequence_length(at[0]);
  if (length == 0 || length > num_left) return false;
  if (length > 1 && !may_be_second(at[0], at[1])) return false;
  for (size_t i = 2; i < length; ++i) {
    if (!may_be_later(at[i])) return false;
  }
  return true;
}

}  // namespace

void append_utf8(char32_t value, std::string& text) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (value < 0x80) return add(value);
  if (value < 0x800) {
    add(0xC0 | value >> 6);
  } else if (value < 0x10000) {
    add(0xE0 | value >> 12);
    add(0x80 | (value >> 6 & 0x3F));
  } else {
    add(0xF0 | value >> 18);
    add(0x80 | (value >> 12 & 0x3F));
    add(0x80 | (value >> 6 & 0x3F));
  }
  add(0x80 | (value & 0x3F));
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight;
    if (i + sizeof eight <= text.size()) {
      std::memcpy(&eight, bytes + i, sizeof eight);
      if ((eight & 0x8080808080808080ULL) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    size_t length;
    if (!is_character(bytes + i, text.size() - i, length)) return i;
    i += length;
  }
  return std::nullopt;
}

void Utf8Repair::push(std::string_view bytes, std::string& text) {
  while (!bytes.empty()) {
    if (held_.empty()) {
      const size_t valid = find_invalid_utf8(bytes).value_or(bytes.size());
      text.append(bytes.substr(0, valid));
      bytes.remove_prefix(valid);
      if (bytes.empty()) return;
    }
    push_slowly(bytes[0], text);
    bytes.remove_prefix(1);
  }
}

void Utf8Repair::push_slowly(char byte, std::string& text) {
  const auto next = static_cast<unsigned char>(byte);
  if (!held_.empty()) {
    const auto lead = static_cast<unsigned char>(held_[0]);
    if (held_.size() == 1 ? !may_be_second(lead, next) : !may_be_later(next)) {
      text += kReplacement;
      held_.clear();
    }
  }
  held_ += byte;
  const size_t length = sequence_length(static_cast<unsigned char>(held_[0]));
  if (length != 0 && held_.size() < length) return;
  text += length == 0 ? std::string_view(kReplacement) : std::string_view(held_);
  held_.clear();
}

void Utf8Repair::finish(std::string& text) {
  if (!held_.empty()) text += kReplacement;
  held_.clear();
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  Utf8Repair repair;
  repair.push(bytes, text);
  repair.finish(text);
  return text;
}

}  // namespace fsdp::tokenizer
