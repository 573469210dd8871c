#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fsdp::train {

// How many characters must be inserted, deleted or replaced to make `b` of `a` (Levenshtein). The case of letters does
// not count.
size_t edit_distance(std::string_view a, std::string_view b);

// Was `name` probably meant to be `known`? At most every second character differs.
bool is_near(std::string_view name, std::string_view known);

// How a sentence about a name that is none goes on: "; did you mean GUESS?", or "." without a guess.
std::string did_you_mean(const std::string& guess);

}  // namespace fsdp::train
