#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::train {

// First and last step of train.profile_steps, from 1.
struct ProfiledSteps {
  int64_t first = 0;
  int64_t last = 0;
};

inline constexpr int64_t kMostProfiledSteps = 20;

// "20-22", or "20" for one step. Nothing for "none", and for what is neither or more than kMostProfiledSteps.
std::optional<ProfiledSteps> parse_profiled_steps(const std::string& text);

}  // namespace fsdp::train
