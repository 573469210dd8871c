#include "app/gguf/vocabulary_gguf.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "io/base/error.h"
#include "io/base/json.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Numbers that llama.cpp gives to kinds of tokens.
enum class TokenKind : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

constexpr const char* kLlama3Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr const char* kQwen2Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

std::vector<json> steps_of(const json& pre_tokenizer) {
  if (pre_tokenizer.is_object() && pre_tokenizer.value("type", "") == "Sequence")
    return pre_tokenizer.value("pretokenizers", std::vector<json>());
  return {pre_tokenizer};
}

bool is_byte_level(const json& step, bool cuts_words) {
  return step.is_object() && step.value("type", "") == "ByteLevel" && !step.value("add_prefix_space", true) &&
         step.value("use_regex", true) == cuts_words;
}

// How a text is cut into words, by the name that llama.cpp has for it.
std::optional<std::string> word_cut_name(const json& pre_tokenizer) {
  const std::vector<json> steps = steps_of(pre_tokenizer);
  if (steps.size() == 1 && is_byte_level(steps[0], true)) return "gpt-2";
  if (steps.size() != 2 || !steps[0].is_object()) return std::nullopt;
  const std::string kind = steps[0].value("type", "");
  if (kind == "Digits" && steps[0].value("individual_digits", false) && is_byte_level(steps[1], true)) return "smollm";
  if (kind != "Split" || steps[0].value("behavior", "") != "Isolated" || !is_byte_level(steps[1], false))
    return std::nullopt;
  const json pattern = steps[0].value("pattern", json::object()).value("Regex", json());
  if (pattern == kLlama3Words) return "llama-bpe";
  if (pattern == kQwen2Words) return "qwen2";
  return std::nullopt;
}

std::optional<fs::path> tokenizer_json_of(const io::WeightSource& source) {
  for (const fs::path& companion : source.companions())
    if (companion.filename() == "tokenizer.json") return companion;
  return std::nullopt;
}

// Of added tokens, by id; all others are normal.
std::map<int64_t, TokenKind> added_kinds(const json& file) {
  std::map<int64_t, TokenKind> kinds;
  for (const json& token : file.value("added_tokens", json::array()))
    kinds[token.value("id", int64_t{-1})] =
        token.value("special", false) ? TokenKind::kControl : TokenKind::kUserDefined;
  return kinds;
}

// "a b": as strings in older files, as pairs in newer ones.
std::vector<std::string> merges_of(const json& model) {
  std::vector<std::string> merges;
  for (const json& merge : model.value("merges", json::array()))
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  return merges;
}

GgufVocabulary no_vocabulary(const std::string& why) {
  return {{{"tokenizer.ggml.model", std::string("no_vocab")}}, why};
}

}  // namespace

GgufVocabulary gguf_vocabulary(const io::WeightSource& source, int64_t vocab_size) {
  const auto path = tokenizer_json_of(source);
  if (!path) return no_vocabulary("the source has no tokenizer.json");
  const json file = io::read_json_file(*path, {.kind = io::ErrorKind::kModel});
  const json model = file.value("model", json::object());
  const auto words = word_cut_name(file.value("pre_tokenizer", json()));
  if (model.value("type", "") != "BPE" || !words)
    return no_vocabulary("its tokenizer is none of the byte-level ones that llama.cpp knows by name");
  const tokenizer::Tokenizer tokens = tokenizer::Tokenizer::load(*path);
  const std::map<int64_t, TokenKind> added = added_kinds(file);
  std::vector<std::string> texts;
  std::vector<int32_t> kinds;
  for (int64_t id = 0; id < vocab_size; ++id) {
    const std::string text = id < tokens.vocab_size() ? tokens.token(static_cast<int32_t>(id)) : "";
    const auto kind = added.find(id);
    texts.push_back(text.empty() ? "[PAD" + std::to_string(id) + "]" : text);
    kinds.push_back(static_cast<int32_t>(text.empty()          ? TokenKind::kUnused
                                         : kind != added.end() ? kind->second
                                                               : TokenKind::kNormal));
  }
  GgufVocabulary vocabulary{{{"tokenizer.ggml.model", std::string("gpt2")},
                             {"tokenizer.ggml.pre", *words},
                             {"tokenizer.ggml.tokens", std::move(texts)},
                             {"tokenizer.ggml.token_type", std::move(kinds)},
                             {"tokenizer.ggml.merges", merges_of(model)}},
                            ""};
  const auto add_id = [&](const std::string& key, std::optional<int32_t> id) {
    if (id) vocabulary.metadata.emplace_back("tokenizer.ggml." + key, static_cast<uint32_t>(*id));
  };
  add_id("bos_token_id", tokens.bos());
  add_id("eos_token_id", tokens.eos());
  add_id("padding_token_id", tokens.pad());
  const std::vector<int32_t> framed = tokens.encode("a", tokenizer::SpecialTokens::kAdd);
  if (tokens.bos())
    vocabulary.metadata.emplace_back("tokenizer.ggml.add_bos_token",
                                     !framed.empty() && framed.front() == *tokens.bos());
  if (!tokens.chat_template().empty())
    vocabulary.metadata.emplace_back("tokenizer.chat_template", tokens.chat_template());
  return vocabulary;
}

}  // namespace fsdp::app
