#include "text/tokenizer/byte_pipeline.h"

#include "io/base/hash.h"
#include "io/base/json.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::tokenizer {
namespace {

namespace bytes = train::byte_tokenizer;

class BytePipeline : public Pipeline {
 public:
  using Pipeline::Pipeline;

  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size() + 1);
    if (special == SpecialTokens::kAdd) ids.push_back(bytes::kBegin);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }

  void encode_part(std::string_view text, Position, std::vector<int32_t>& ids) const override {
    encode(text, SpecialTokens::kNone, ids);
  }
};

TokenTable make_tokens() {
  TokenTable tokens(bytes::kVocabSize);
  for (int32_t id = 0; id < bytes::kBegin; ++id) tokens.set(id, std::string(1, static_cast<char>(id)));
  tokens.set(bytes::kBegin, "<|begin|>");
  tokens.set(bytes::kEnd, "<|end|>");
  tokens.set(bytes::kPad, "<|pad|>");
  for (int32_t id = bytes::kBegin; id < bytes::kVocabSize; ++id) tokens.set_special(id);
  return tokens;
}

}  // namespace

std::shared_ptr<const Pipeline> make_byte_pipeline() {
  Decoder decoder;
  decoder.stages.push_back({.kind = DecoderStage::Kind::kBytes, .pattern = {}, .content = {}});
  Description description;
  description.name = bytes::kName;
  description.bos = bytes::kBegin;
  description.eos = bytes::kEnd;
  description.pad = bytes::kPad;
  description.hash = io::hash_bytes(bytes::marker_json());
  return std::make_shared<BytePipeline>(make_tokens(), std::move(decoder), std::move(description));
}

void check_byte_marker(const std::filesystem::path& file) {
  const nlohmann::json marker = io::read_json_file(file, {.max_bytes = 1 << 16, .kind = io::ErrorKind::kModel});
  if (marker.is_object() && marker.value("type", nlohmann::json()) == bytes::kName) return;
  throw io::Error(io::ErrorKind::kModel, "[tokenizer] " + io::in_quotes(file.native()) +
                                             ": got a marker of another type, expected \"type\": \"bytes\". Put the "
                                             "tokenizer.json of the model there instead.");
}

}  // namespace fsdp::tokenizer
