#include "text/tokenizer/tokenizer.h"

#include <utility>

#include "text/tokenizer/byte_pipeline.h"
#include "text/tokenizer/byte_tokenizer.h"
#include "text/tokenizer/json/tokenizer_json.h"
#include "text/tokenizer/pipeline.h"
#include "text/tokenizer/stages/decoder.h"

namespace fsdp::tokenizer {

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  const char* const marker = train::byte_tokenizer::kMarkerFile;
  std::error_code ignored;
  if (path.filename() == marker ||
      (!fs::exists(path / "tokenizer.json", ignored) && fs::exists(path / marker, ignored))) {
    check_byte_marker(path.filename() == marker ? path : path / marker);
    return bytes();
  }
  if (!fs::is_directory(path, ignored)) return Tokenizer(read_tokenizer_json(path));
  if (fs::exists(path / "tokenizer.json", ignored)) return Tokenizer(read_tokenizer_json(path / "tokenizer.json"));
  const bool has_sentencepiece = fs::exists(path / "tokenizer.model", ignored);
  throw io::Error(io::ErrorKind::kModel,
                  "[tokenizer] " + io::in_quotes(path.native()) + ": got a folder " +
                      (has_sentencepiece ? "with tokenizer.model only" : "without a tokenizer") +
                      ", expected tokenizer.json. Save it there with AutoTokenizer.from_pretrained(...)."
                      "save_pretrained(...) of the transformers package.");
}

Tokenizer Tokenizer::bytes() {
  static const std::shared_ptr<const Pipeline> only = make_byte_pipeline();
  return Tokenizer(only);
}

void Tokenizer::encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const {
  pipeline_->encode(text, special, ids);
}

void Tokenizer::encode_part(std::string_view text, Position position, std::vector<int32_t>& ids) const {
  pipeline_->encode_part(text, position, ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::vector<int32_t> ids;
  encode(text, special, ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, SkipSpecial skip) const {
  const TokenTable& tokens = pipeline_->tokens();
  TextStream stream(pipeline_->decoder());
  std::string text;
  for (const int32_t id : ids) {
    if (!tokens.has(id) || (skip == SkipSpecial::kYes && tokens.is_special(id))) continue;
    stream.push(tokens.decoded(id), text);
  }
  stream.finish(text);
  return text;
}

int64_t Tokenizer::vocab_size() const { return pipeline_->tokens().size(); }
std::optional<int32_t> Tokenizer::id_of(std::string_view token) const { return pipeline_->tokens().find(token); }
std::string Tokenizer::token(int32_t id) const {
  return pipeline_->tokens().has(id) ? pipeline_->tokens().token(id) : std::string();
}
bool Tokenizer::is_special(int32_t id) const { return pipeline_->tokens().is_special(id); }
std::optional<int32_t> Tokenizer::bos() const { return pipeline_->description().bos; }
std::optional<int32_t> Tokenizer::eos() const { return pipeline_->description().eos; }
std::optional<int32_t> Tokenizer::pad() const { return pipeline_->description().pad; }
const std::string& Tokenizer::chat_template() const { return pipeline_->description().chat_template; }
uint64_t Tokenizer::hash() const { return pipeline_->description().hash; }
const std::string& Tokenizer::name() const { return pipeline_->description().name; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip)
    : pipeline_(tokenizer.pipeline_), skip_(skip), stream_(std::make_unique<TextStream>(pipeline_->decoder())) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  const TokenTable& tokens = pipeline_->tokens();
  std::string text;
  if (!tokens.has(id) || (skip_ == SkipSpecial::kYes && tokens.is_special(id))) return text;
  stream_->push(tokens.decoded(id), text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  stream_->finish(text);
  return text;
}

}  // namespace fsdp::tokenizer
