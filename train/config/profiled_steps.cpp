#include "train/config/profiled_steps.h"

#include <charconv>

namespace fsdp::train {
namespace {

std::optional<int64_t> parse_step(std::string_view text) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < 1) return std::nullopt;
  return step;
}

}  // namespace

std::optional<ProfiledSteps> parse_profiled_steps(const std::string& text) {
  const size_t dash = text.find('-');
  const std::string_view whole(text);
  const auto first = parse_step(whole.substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse_step(whole.substr(dash + 1));
  if (!first || !last || *last < *first || *last - *first >= kMostProfiledSteps) return std::nullopt;
  return ProfiledSteps{*first, *last};
}

}  // namespace fsdp::train
