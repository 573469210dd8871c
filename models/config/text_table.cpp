#include "models/config/text_table.h"

#include <algorithm>

namespace fsdp::models {

std::string text_table(const std::vector<std::array<std::string, 3>>& rows) {
  size_t first = 0, second = 0;
  for (const auto& row : rows) {
    first = std::max(first, row[0].size());
    second = std::max(second, row[1].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += "\n  " + row[0] + std::string(first - row[0].size() + 2, ' ');
    text += row[1] + std::string(second - row[1].size() + 2, ' ') + row[2];
  }
  return text;
}

}  // namespace fsdp::models
