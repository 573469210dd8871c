#include "train/generate/stop_strings.h"

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
  // The one that is complete first, so that pieces of text may be cut anywhere.
  size_t first = held_.size(), first_end = std::string::npos, held = 0;
  for (const std::string& string : strings_) {
    const size_t begin = held_.find(string);
    held = std::max(held, overlap(held_, string));
    if (begin == std::string::npos) continue;
    const size_t end = begin + string.size();
    if (end < first_end || (end == first_end && begin < first)) first = begin;
    first_end = std::min(end, first_end);
  }
  found_ = first_end != std::string::npos;
  std::string certain = held_.substr(0, found_ ? first : held_.size() - held);
  held_ = found_ ? "" : held_.substr(certain.size());
  return certain;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace fsdp::train
