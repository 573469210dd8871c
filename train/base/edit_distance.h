#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp::train {

// How many characters must be inserted, deleted or replaced to make `b` of `a` (Levenshtein); the case of
// letters does not count.
size_t edit_distance(std::string_view a, std::string_view b);

// Was `name` probably meant to be `known`? At most every second character differs.
bool is_near(std::string_view name, std::string_view known);

}  // namespace fsdp::train
