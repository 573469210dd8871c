// Reads settings from a JSON object and collects every objection instead of stopping at the first.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::models {

class ConfigReader {
 public:
  // Keeps references to `object`; `prefix` ("rope_scaling.") stands before the keys in messages.
  explicit ConfigReader(const nlohmann::json& object, std::string prefix = "");

  // The value, or null if the key is absent or null.
  const nlohmann::json* find(std::string_view key) const;
  // The key is there and its value is null, which for some keys is not the same as no key.
  bool is_null(std::string_view key) const { return object_.contains(key) && find(key) == nullptr; }

  // Typed values. Absent or null: `fallback`, or an objection if there is none. Wrong type or range: an objection, and
  // some value inside the range.
  int64_t integer(std::string_view key, int64_t lowest, int64_t highest, std::optional<int64_t> fallback = {});
  double number(std::string_view key, double lowest, double highest, std::optional<double> fallback = {});
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string fallback);
  std::optional<int64_t> token_id(std::string_view key, int64_t vocab_size);

  // Adds a row to the table: `supported` says what would have been accepted.
  void object_to(std::string_view key, const std::string& supported);
  // The objections of a nested object become objections of this one.
  void absorb(const ConfigReader& nested);

  // Throws io::Error(kModel) with the table, unless there is nothing to object to.
  void finish(const std::string& origin) const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;
  std::vector<std::array<std::string, 3>> objections_;  // key, found, supported
};

}  // namespace fsdp::models
