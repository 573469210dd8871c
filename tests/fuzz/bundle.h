#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::fuzz {

// Several files in one input: a separator stands between them.
inline constexpr std::string_view kNextFile = "\n--next-file--\n";

// Exactly `num_parts` parts; the last keeps further separators, missing ones are empty.
inline std::vector<std::string> split_bundle(std::string_view input, size_t num_parts) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < num_parts) {
    const size_t end = input.find(kNextFile);
    parts.emplace_back(input.substr(0, end));
    input.remove_prefix(end == std::string_view::npos ? input.size() : end + kNextFile.size());
  }
  parts.emplace_back(input);
  return parts;
}

inline std::string join_bundle(const std::vector<std::string>& parts) {
  std::string input;
  for (size_t i = 0; i < parts.size(); ++i) input.append(i == 0 ? "" : kNextFile).append(parts[i]);
  return input;
}

}  // namespace fsdp::fuzz
