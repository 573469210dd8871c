#include "tests/text/tokenizer/tokenizer_files.h"

#include <cstdio>

#include "text/tokenizer/stages/byte_level.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr const char* kMark = "\xE2\x96\x81";

void add_merges(const Merges& merges, Json& model) {
  model["merges"] = Json::array();
  for (const auto& [left, right] : merges) {
    model["merges"].push_back({left, right});
    if (!model["vocab"].contains(left + right)) model["vocab"][left + right] = model["vocab"].size();
  }
}

}  // namespace

Tokenizer TokenizerFolder::load(const Json& tokenizer) const {
  write("tokenizer.json", tokenizer.dump());
  return Tokenizer::load(path());
}

Json byte_level_json(const Merges& merges) {
  Json model = {{"type", "BPE"}, {"vocab", Json::object()}};
  for (size_t byte = 0; byte < 256; ++byte) model["vocab"][byte_level::characters()[byte]] = byte;
  add_merges(merges, model);
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", model}};
}

Json llama2_json(const std::string& alphabet, const Merges& merges) {
  Json model = {{"type", "BPE"}, {"unk_token", "<unk>"}, {"byte_fallback", true}, {"fuse_unk", true}};
  model["vocab"] = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    model["vocab"][name] = 3 + byte;
  }
  for (size_t i = 0; i < alphabet.size(); i += length_of(alphabet[i])) {
    model["vocab"][alphabet.substr(i, length_of(alphabet[i]))] = model["vocab"].size();
  }
  add_merges(merges, model);
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}};
  const Json replace_back = {{"type", "Replace"}, {"pattern", {{"String", kMark}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  return {{"version", "1.0"},
          {"added_tokens",
           Json::array({added_token(0, "<unk>", {{"special", true}}), added_token(1, "<s>", {{"special", true}}),
                        added_token(2, "</s>", {{"special", true}})})},
          {"normalizer",
           {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", kMark}}, replace})}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders", Json::array({replace_back, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip})}}},
          {"model", model}};
}

Json added_token(int id, const std::string& content, const Json& flags) {
  Json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  if (flags.is_object()) token.update(flags);
  return token;
}

}  // namespace fsdp::tokenizer
