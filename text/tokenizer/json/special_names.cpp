#include "text/tokenizer/json/special_names.h"

#include "io/base/hash.h"
#include "io/base/json.h"
#include "text/tokenizer/json/json_node.h"
#include "text/tokenizer/json/text_file.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

constexpr uint64_t kMaxFile = uint64_t{16} << 20;

// A token is written as its text or as an object with "content".
void read_token(const JsonNode& node, std::string_view key, std::optional<std::string>& token) {
  const auto value = node.find(key);
  if (!value || token) return;
  token = value->json().is_object() ? value->at("content").text() : value->text();
}

// One template, or a list of named ones of which "default" counts.
std::string read_chat_template(const JsonNode& value) {
  if (!value.json().is_array()) return value.text();
  for (const JsonNode& entry : value.items()) {
    if (entry.at("name").text() == "default") return entry.at("template").text();
  }
  return {};
}

}  // namespace

SpecialNames read_special_names(const std::filesystem::path& folder) {
  SpecialNames names;
  std::error_code ignored;
  std::string hashes;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path, ignored)) continue;
    const std::string text = read_text_file(path, kMaxFile);
    const nlohmann::json json =
        io::parse_json(text, path.native(), {.max_bytes = kMaxFile, .kind = io::ErrorKind::kModel});
    const JsonNode node(json, path.native());
    read_token(node, "bos_token", names.bos);
    read_token(node, "eos_token", names.eos);
    read_token(node, "pad_token", names.pad);
    if (const auto value = node.find("chat_template"); value && names.chat_template.empty()) {
      names.chat_template = read_chat_template(*value);
    }
    hashes += name + io::hash_text(io::hash_bytes(text));
  }
  if (const auto path = folder / "chat_template.jinja"; std::filesystem::exists(path, ignored)) {
    names.chat_template = read_text_file(path, kMaxFile);
    if (find_invalid_utf8(names.chat_template)) {
      throw io::Error(io::ErrorKind::kModel,
                      "[tokenizer] " + io::in_quotes(path.native()) +
                          ": got bytes that are not UTF-8, expected a Jinja template. Repair it.");
    }
    hashes += "chat_template.jinja" + io::hash_text(io::hash_bytes(names.chat_template));
  }
  if (!hashes.empty()) names.hash = io::hash_bytes(hashes);
  return names;
}

}  // namespace fsdp::tokenizer
