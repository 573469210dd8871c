#include "train/model/frozen.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "fsdp/base/error.h"
#include "train/base/edit_distance.h"

namespace fsdp::train {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), /*flags=*/0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return matches(pattern, name); });
}

// As many dot-separated parts of `name` as `pattern` has: "model.layers.0.*" is near to "model.layers.0.mlp".
std::string comparable(const std::string& name, const std::string& pattern) {
  auto dots = std::count(pattern.begin(), pattern.end(), '.');
  size_t end = 0;
  while (end < name.size() && (name[end] != '.' || dots-- > 0)) ++end;
  return name.substr(0, end);
}

std::string near_names(const std::string& pattern, std::vector<std::string> names) {
  constexpr size_t kMost = 3;
  constexpr size_t kLongest = 256;  // of a pattern that is compared
  const std::string start = pattern.substr(0, kLongest);
  const auto distance = [&](const std::string& name) { return edit_distance(start, comparable(name, start)); };
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text;
}

// The patterns of one option, each of which matches something.
std::vector<std::string> patterns_of(const char* option, const std::string& text,
                                     const std::vector<std::string>& names) {
  std::vector<std::string> patterns = split_list(text);
  for (const std::string& pattern : patterns) {
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches(pattern, name); })) continue;
    throw Error(ErrorCode::kUsage, std::string("[tune] ") + option + ": got '" + pattern +
                                       "', which matches no parameter; near names: " + near_names(pattern, names) +
                                       ". Patterns have *, ? and [0-3]; names are those of Hugging Face.");
  }
  return patterns;
}

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t begin = part.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    parts.push_back(part.substr(begin, part.find_last_not_of(" \t") - begin + 1));
  }
  return parts;
}

std::vector<std::string> choose_frozen(const TuneConfig& config, const std::vector<std::string>& names) {
  const std::vector<std::string> trained = patterns_of("tune.trained", config.trained, names);
  const std::vector<std::string> frozen = patterns_of("tune.frozen", config.frozen, names);
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    if ((!trained.empty() && !matches_any(trained, name)) || matches_any(frozen, name)) chosen.push_back(name);
  }
  if (chosen.size() == names.size()) {
    throw Error(ErrorCode::kUsage, "[tune] tune.frozen and tune.trained leave none of " + std::to_string(names.size()) +
                                       " parameters to train, expected at least one. Narrow tune.frozen.");
  }
  return chosen;
}

}  // namespace fsdp::train
