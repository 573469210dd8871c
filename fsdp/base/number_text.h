#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace fsdp {

// The integer that is all of `text`, or nothing. For what other processes wrote: it throws nothing.
template <class Integer>
std::optional<Integer> parse_integer(std::string_view text) {
  Integer value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace fsdp
