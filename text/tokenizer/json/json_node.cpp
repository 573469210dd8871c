#include "text/tokenizer/json/json_node.h"

#include <algorithm>

#include "io/base/error.h"

namespace fsdp::tokenizer {

namespace {

constexpr size_t kMaxItems = size_t{1} << 20;

// A key as it stands, or in quotes if it is not a plain word: it comes from the file.
std::string printable(std::string_view key) {
  const bool is_plain = std::all_of(key.begin(), key.end(), [](char c) { return c == '_' || (c >= 'a' && c <= 'z'); });
  return is_plain && !key.empty() ? std::string(key) : io::in_quotes(key);
}

}  // namespace

std::string JsonNode::place() const { return io::in_quotes(file_) + ": " + (path_.empty() ? "the file" : path_); }

void JsonNode::fail(const std::string& got, const std::string& expected) const {
  throw io::Error(io::ErrorKind::kModel,
                  "[tokenizer] " + place() + ": got " + got + ", expected " + expected + ". See docs/tokenizers.md.");
}

std::string JsonNode::text() const {
  if (!value_->is_string()) fail(value_->type_name(), "a string");
  return value_->get<std::string>();
}

bool JsonNode::flag() const {
  if (!value_->is_boolean()) fail(value_->type_name(), "true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer() const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > INT32_MAX) {
    fail(value_->is_number() ? value_->dump() : value_->type_name(), "a whole number from 0 to 2^31 - 1");
  }
  return static_cast<int64_t>(value_->get<uint64_t>());
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) fail(value_->type_name(), "an array");
  if (value_->size() > kMaxItems) fail(std::to_string(value_->size()) + " entries", "fewer");
  std::vector<JsonNode> result;
  result.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    result.emplace_back((*value_)[i], file_, path_ + "[" + std::to_string(i) + "]");
  }
  return result;
}

void JsonNode::require_object() const {
  if (!value_->is_object()) fail(value_->type_name(), "an object");
}

JsonNode JsonNode::at(std::string_view key) const {
  if (const auto node = find(key)) return *node;
  fail("no " + io::in_quotes(key), "this key");
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  require_object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, file_, (path_.empty() ? "" : path_ + ".") + printable(key));
}

bool JsonNode::flag_or(std::string_view key, bool otherwise) const {
  const auto node = find(key);
  return node ? node->flag() : otherwise;
}

}  // namespace fsdp::tokenizer
