// Columns of text for error messages.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace fsdp::models {

// Three columns, each as wide as its widest cell; every row starts on a new line, indented by two spaces.
std::string text_table(const std::vector<std::array<std::string, 3>>& rows);

}  // namespace fsdp::models
