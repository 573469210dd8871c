#include "train/stop_strings.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

// Length of the longest end of `text` that `string` begins with, and that is not all of it.
size_t overlap(std::string_view text, std::string_view string) {
  for (size_t length = std::min(text.size(), string.size() - 1); length > 0; --length)
    if (text.substr(text.size() - length) == string.substr(0, length)) return length;
  return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  if (std::find(strings_.begin(), strings_.end(), "") != strings_.end())
    throw Error(ErrorCode::kUsage, "[generate] stop: got an empty string, expected at least one character.");
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return "";
  held_ += text;
  size_t first = std::string::npos, held = 0;
  for (const std::string& string : strings_) {
    first = std::min(first, held_.find(string));
    held = std::max(held, overlap(held_, string));
  }
  found_ = first != std::string::npos;
  std::string certain = held_.substr(0, found_ ? first : held_.size() - held);
  held_ = found_ ? "" : held_.substr(certain.size());
  return certain;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace fsdp::train
