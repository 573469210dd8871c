#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::train {

// Passes text on up to the first of some strings: the one that is complete first. What may be the beginning of one is
// held back until more is known.
class StopStrings {
 public:
  // Throws Error(kUsage) for an empty string.
  explicit StopStrings(std::vector<std::string> strings);

  // The text that is certain after these characters; may be empty.
  std::string push(std::string_view text);
  // What was held back: the text has ended.
  std::string finish();
  // A stop string was found; it and what followed are dropped.
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace fsdp::train
