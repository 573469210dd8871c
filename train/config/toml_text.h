#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::train {

struct TextPosition {
  int64_t line = 1;
  int64_t column = 1;  // in bytes
};

// The first byte beyond ASCII that stands neither in quotes nor in a comment: TOML has none there. Local.
std::optional<TextPosition> find_unquoted_non_ascii(std::string_view toml);

}  // namespace fsdp::train
