#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::train {

// How many characters must be inserted, deleted or replaced to make `b` of `a` (Levenshtein).
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace fsdp::train
