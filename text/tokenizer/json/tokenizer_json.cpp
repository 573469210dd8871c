#include "text/tokenizer/json/tokenizer_json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "io/base/hash.h"
#include "io/base/json.h"
#include "text/tokenizer/bpe_pipeline.h"
#include "text/tokenizer/json/model_reader.h"
#include "text/tokenizer/json/special_names.h"
#include "text/tokenizer/json/stage_readers.h"
#include "text/tokenizer/json/text_file.h"
#include "text/tokenizer/stages/byte_level.h"

namespace fsdp::tokenizer {
namespace {

constexpr io::JsonLimits kLimits = {
    .max_bytes = uint64_t{256} << 20, .max_values = int64_t{1} << 24, .kind = io::ErrorKind::kModel};

void check_head(const JsonNode& root) {
  root.require_object();
  if (const auto version = root.find("version"); version && version->text() != "1.0") {
    version->fail(io::in_quotes(version->text()), "\"1.0\"");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (const auto node = root.find(key))
      node->fail("an object", "null: how long rows are is not the tokenizer's business");
  }
}

// What added tokens look like in text: their content, or for some its normal form.
std::string needle_of(const AddedToken& token, const Normalizer& normalizer) {
  std::string storage;
  return token.normalized ? std::string(normalizer.normalize(token.content, storage)) : token.content;
}

TokenTable make_table(const BpeModel& model, const std::vector<AddedToken>& added, const Normalizer& normalizer) {
  int32_t highest = model.highest_id;
  for (const AddedToken& token : added) highest = std::max(highest, token.id);
  TokenTable table(static_cast<size_t>(highest) + 1);
  for (const auto& [token, id] : model.vocabulary) table.set(id, token);
  std::unordered_set<std::string> special;
  for (const AddedToken& token : added) {
    table.set(token.id, token.content);
    table.set_decoded(token.id, needle_of(token, normalizer));
    if (token.special) special.insert(token.content);
  }
  for (int32_t id = 0; id <= highest; ++id) {
    if (table.has(id) && special.contains(table.decoded(id))) table.set_special(id);
  }
  return table;
}

// Spares the decoder the way from the byte alphabet to bytes, token by token.
void decode_ahead(Decoder& decoder, TokenTable& table) {
  if (decoder.stages.empty() || decoder.stages[0].kind != DecoderStage::Kind::kByteLevel) return;
  decoder.stages[0].kind = DecoderStage::Kind::kBytes;
  for (int32_t id = 0; id < table.size(); ++id) {
    if (!table.has(id)) continue;
    if (const auto bytes = byte_level::to_bytes(table.decoded(id))) table.set_decoded(id, *bytes);
  }
}

// The tokens that are looked for in raw text, or those that are in normalized text.
AddedTokens make_added_tokens(const JsonNode& root, const std::vector<AddedToken>& added, const Normalizer& normalizer,
                              bool normalized) {
  std::vector<AddedTokens::Needle> needles;
  for (const AddedToken& token : added) {
    if (token.normalized != normalized) continue;
    std::string text = needle_of(token, normalizer);
    if (text.empty())
      root.at("added_tokens").fail(io::in_quotes(token.content), "a text that the normalizer leaves something of");
    needles.push_back({std::move(text), token});
  }
  return AddedTokens(std::move(needles));
}

Description describe(const std::filesystem::path& file, const std::string& content, const BpeModel& model,
                     const TokenTable& table) {
  const SpecialNames names = read_special_names(file.parent_path());
  const auto id_of = [&](const std::optional<std::string>& name) { return name ? table.find(*name) : std::nullopt; };
  Description description;
  description.name = "BPE " + std::to_string(table.size()) + " tokens, " + std::to_string(model.num_merges) + " merges";
  description.bos = id_of(names.bos);
  description.eos = id_of(names.eos);
  description.pad = id_of(names.pad);
  description.chat_template = names.chat_template;
  description.hash = io::hash_bytes(io::hash_text(io::hash_bytes(content)) + io::hash_text(names.hash));
  return description;
}

}  // namespace

std::shared_ptr<const Pipeline> read_tokenizer_json(const std::filesystem::path& file) {
  const std::string content = read_text_file(file, kLimits.max_bytes);
  const nlohmann::json json = io::parse_json(content, file.native(), kLimits);
  const JsonNode root(json, file.native());
  check_head(root);
  PreTokenizerSteps steps = read_pre_tokenizer(root);
  const Normalizer normalizer(read_normalizer(root));
  BpeModel model = read_model(root, steps.alphabet);
  const std::vector<AddedToken> added = read_added_tokens(root, model);
  if (model.vocabulary.empty() && added.empty()) root.at("model").fail("an empty vocabulary", "at least one token");
  Decoder decoder = read_decoder(root);
  TokenTable table = make_table(model, added, normalizer);
  decode_ahead(decoder, table);
  Template around = read_post_processor(root);
  for (const auto* ids : {&around.prefix, &around.suffix}) {
    for (const int32_t id : *ids) {
      if (!table.has(id)) root.at("post_processor").fail("the id " + std::to_string(id), "ids of tokens");
    }
  }
  Description description = describe(file, content, model, table);
  EncoderStages stages{make_added_tokens(root, added, normalizer, false),
                       normalizer,
                       make_added_tokens(root, added, normalizer, true),
                       PreTokenizer(std::move(steps.steps)),
                       Bpe(model.vocabulary, std::move(model.merges), model.options),
                       std::move(around)};
  return std::make_shared<BpePipeline>(std::move(stages), std::move(table), std::move(decoder), std::move(description));
}

}  // namespace fsdp::tokenizer
