#include "text/tokenizer_training/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "io/base/atomic_file.h"
#include "io/base/json.h"

namespace fsdp::tokenizer_training {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

int32_t id_of(const BpeModel& model, const std::string& token) {
  const auto end = model.tokens.end();
  return static_cast<int32_t>(std::find(model.tokens.begin(), end, token) - model.tokens.begin());
}

Json added_tokens(const BpeModel& model, const TokenizerOptions& options) {
  Json list = Json::array();
  for (const std::string& token : options.special_tokens) {
    list.push_back({{"id", id_of(model, token)},
                    {"content", token},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
  }
  return list;
}

Json byte_level(bool trims_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", trims_offsets}, {"use_regex", true}};
}

// Puts the begin token in front.
Json post_processor(const BpeModel& model, const TokenizerOptions& options) {
  const std::string& begin = options.begin_token;
  if (begin.empty()) {
    return byte_level(false);
  }
  const auto special = [&](int type) { return Json{{"SpecialToken", {{"id", begin}, {"type_id", type}}}}; };
  const auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  const Json tokens = {{begin, {{"id", begin}, {"ids", {id_of(model, begin)}}, {"tokens", {begin}}}}};
  const Json pair = Json::array({special(0), text("A", 0), special(1), text("B", 1)});
  const Json processor = {{"type", "TemplateProcessing"},
                          {"single", Json::array({special(0), text("A", 0)})},
                          {"pair", pair},
                          {"special_tokens", tokens}};
  return {{"type", "Sequence"}, {"processors", Json::array({byte_level(false), processor})}};
}

// Line by line: an ordered JSON object of this size takes quadratic time.
std::string model_json(const BpeModel& model) {
  std::string text =
      "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
      "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {";
  for (size_t id = 0; id < model.tokens.size(); ++id) {
    text += (id == 0 ? "\n      " : ",\n      ") + io::json_string(model.tokens[id]) + ": " + std::to_string(id);
  }
  text += "\n    },\n    \"merges\": [";
  const auto quoted = [&](int32_t id) { return io::json_string(model.tokens[static_cast<size_t>(id)]); };
  for (size_t i = 0; i < model.merges.size(); ++i) {
    const auto& [left, right] = model.merges[i];
    text += (i == 0 ? "\n      [" : ",\n      [") + quoted(left) + ", " + quoted(right) + "]";
  }
  return text + "\n    ]\n  }";
}

// The roles, as both of the smaller files name them.
Json roles(const TokenizerOptions& options) {
  Json json = Json::object();
  const auto add = [&](const char* role, const std::string& token) {
    if (!token.empty()) json[role] = token;
  };
  add("bos_token", options.begin_token);
  add("eos_token", options.end_token);
  add("pad_token", options.pad_token);
  return json;
}

}  // namespace

std::string tokenizer_json(const BpeModel& model, const TokenizerOptions& options) {
  const Json head = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens(model, options)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre_tokenizer_json(options.pattern)},
                     {"post_processor", post_processor(model, options)},
                     {"decoder", byte_level(true)}};
  std::string text = head.dump(2);
  text.resize(text.size() - 2);  // "\n}"
  return text + ",\n  \"model\": " + model_json(model) + "\n}\n";
}

void write_tokenizer(const fs::path& folder, const BpeModel& model, const TokenizerOptions& options) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw io::system_error("tokenizer", folder, error.value(), "expected the folder to be made");
  }
  Json config = roles(options);
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  io::write_file_atomically(folder / "tokenizer.json", tokenizer_json(model, options));
  io::write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
  io::write_file_atomically(folder / "special_tokens_map.json", roles(options).dump(2) + "\n");
}

}  // namespace fsdp::tokenizer_training
