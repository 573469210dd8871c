#include "models/config/config_reader.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "io/base/error.h"
#include "models/config/text_table.h"

namespace fsdp::models {
namespace {

// A number as a person would write it: 2147483647, 0.5, 1e-06.
std::string show(double value) {
  std::ostringstream out;
  out.precision(12);
  out << value;
  return out.str();
}

std::string show(const nlohmann::json* value) {
  if (value == nullptr) return "(absent)";
  constexpr size_t kLongest = 60;
  std::string text = value->dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto entry = object_.find(key);
  return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
}

int64_t ConfigReader::integer(std::string_view key, int64_t lowest, int64_t highest, std::optional<int64_t> fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number_integer()) {
    const bool fits = !value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    const int64_t found = value->get<int64_t>();
    if (fits && found >= lowest && found <= highest) return found;
  }
  object_to(key, "an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
  return lowest;
}

double ConfigReader::number(std::string_view key, double lowest, double highest, std::optional<double> fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number()) {
    const double found = value->get<double>();
    if (found >= lowest && found <= highest) return found;
  }
  object_to(key, "a number from " + show(lowest) + " to " + show(highest));
  return lowest;
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  object_to(key, "true or false");
  return fallback;
}

std::string ConfigReader::text(std::string_view key, std::string fallback) {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  object_to(key, "a string");
  return fallback;
}

std::optional<int64_t> ConfigReader::token_id(std::string_view key, int64_t vocab_size) {
  if (find(key) == nullptr) return std::nullopt;
  // -1 stands for "none" in some published files.
  const int64_t id = integer(key, -1, std::max<int64_t>(vocab_size - 1, 0));
  return id < 0 ? std::nullopt : std::optional(id);
}

void ConfigReader::object_to(std::string_view key, const std::string& supported) {
  objections_.push_back({prefix_ + std::string(key), show(find(key)), supported});
}

void ConfigReader::absorb(const ConfigReader& nested) {
  objections_.insert(objections_.end(), nested.objections_.begin(), nested.objections_.end());
}

void ConfigReader::finish(const std::string& origin) const {
  if (objections_.empty()) return;
  std::vector<std::array<std::string, 3>> rows = {{"key", "found", "supported"}};
  rows.insert(rows.end(), objections_.begin(), objections_.end());
  throw io::Error(io::ErrorKind::kModel, "[read_decoder_config] " + origin + ": " + std::to_string(objections_.size()) +
                                             " setting(s) not supported" + text_table(rows));
}

}  // namespace fsdp::models
