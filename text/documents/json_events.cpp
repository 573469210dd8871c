#include "text/documents/json_events.h"

#include <algorithm>
#include <utility>

#include "io/base/error.h"

namespace fsdp::io {

bool JsonPathEvents::string(string_t& value) {
  if (is_wanted_ && level_ + 1 == names_.size()) text_ = std::move(value);
  return take("a string");
}

bool JsonPathEvents::key(string_t& name) {
  is_wanted_ = depth_ == level_ + 1 && level_ < names_.size() && name == names_[level_];
  if (is_wanted_) ++num_seen_[level_];
  if (depth_ == 1) list(name);
  return true;
}

// The first names of the root object.
void JsonPathEvents::list(const std::string& name) {
  constexpr size_t kMaxListed = 12;
  constexpr size_t kMaxBytes = 120;
  if (num_root_names_++ >= kMaxListed || root_names_.size() + name.size() > kMaxBytes) return;
  root_names_ += (root_names_.empty() ? "" : ", ") + name;
}

bool JsonPathEvents::start_object(size_t) {
  const bool enters = is_wanted_ && level_ + 1 < names_.size();
  if (enters) {
    is_wanted_ = false;
    ++level_;
  }
  take("an object");
  ++depth_;
  return true;
}

bool JsonPathEvents::start_array(size_t) {
  take("an array");
  ++depth_;
  return true;
}

bool JsonPathEvents::take(std::string_view type) {
  if (depth_ == 0) root_type_ = type;
  if (is_wanted_) {
    found_type_ = type;
    found_level_ = level_;
  }
  is_wanted_ = false;
  return true;
}

bool JsonPathEvents::close() {
  if (level_ > 0 && depth_ == level_ + 1) --level_;
  --depth_;
  return true;
}

bool JsonPathEvents::parse_error(size_t position, const std::string&, const nlohmann::detail::exception& reason) {
  std::string text = reason.what();
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": the end is what helps.
  const size_t colon = text.find(": ");
  if (colon != std::string::npos) text.erase(0, colon + 2);
  error_ = "got " + in_quotes(text) + ", expected JSON in UTF-8. Repair the line.";
  error_at_ = position > 0 ? position - 1 : 0;
  return false;
}

std::string JsonPathEvents::problem() const {
  if (!error_.empty()) return error_;
  if (root_type_ != "an object") {
    return "got " + std::string(root_type_) + ", expected an object on a line of its own. Write one object a line.";
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::string name = in_quotes(names_[i]);
    if (num_seen_[i] == 0) {
      const std::string there_are =
          i == 0 && !root_names_.empty() ? " (there are: " + in_quotes(root_names_) + ")" : "";
      return "got no field " + name + there_are +
             ", expected a string there. Choose another text field (--text-field).";
    }
    if (num_seen_[i] > 1) return "got the field " + name + " a second time, expected it once. Repair the line.";
    const std::string_view wanted = i + 1 == names_.size() ? "a string" : "an object";
    if (found_level_ == i && found_type_ != wanted && !found_type_.empty()) {
      return "got " + std::string(found_type_) + " in field " + name + ", expected " + std::string(wanted) +
             ". Choose another text field (--text-field).";
    }
  }
  return {};
}

}  // namespace fsdp::io
