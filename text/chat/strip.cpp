#include <algorithm>
#include <array>

#include "text/chat/family.h"

namespace fsdp::chat {
namespace {

// Every character that Python's str.isspace() is true for, in UTF-8.
constexpr std::array<std::string_view, 29> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

size_t space_at_start(std::string_view text) {
  const auto space = std::find_if(kSpaces.begin(), kSpaces.end(), [&](auto s) { return text.starts_with(s); });
  return space == kSpaces.end() ? 0 : space->size();
}

size_t space_at_end(std::string_view text) {
  const auto space = std::find_if(kSpaces.begin(), kSpaces.end(), [&](auto s) { return text.ends_with(s); });
  return space == kSpaces.end() ? 0 : space->size();
}

}  // namespace

std::string_view strip_end(std::string_view text) {
  while (const size_t length = space_at_end(text)) {
    text.remove_suffix(length);
  }
  return text;
}

std::string_view strip(std::string_view text) {
  while (const size_t length = space_at_start(text)) {
    text.remove_prefix(length);
  }
  return strip_end(text);
}

std::string_view strip_leading_newlines(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_trailing_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace fsdp::chat
