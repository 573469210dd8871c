#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokenizer {

// A value of a JSON file that knows where it stands, so that every error names file and key. The JSON must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  // "'tokenizer.json': model.merges[3]"
  std::string place() const;

  // `[tokenizer] 'file': key: got G, expected E.` as Error(kModel).
  [[noreturn]] void fail(const std::string& got, const std::string& expected) const;

  // These throw Error(kModel) if the value is of another type.
  std::string text() const;
  bool flag() const;
  int64_t integer() const;  // not negative
  std::vector<JsonNode> items() const;
  void require_object() const;

  // A key of an object; find() gives nullopt where it is absent or null.
  JsonNode at(std::string_view key) const;
  std::optional<JsonNode> find(std::string_view key) const;

  bool flag_or(std::string_view key, bool otherwise) const;

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace fsdp::tokenizer
