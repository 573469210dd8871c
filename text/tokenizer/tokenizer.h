#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/base/error.h"

namespace fsdp::tokenizer {

class Pipeline;
class TextStream;

// Whether the template of tokenizer.json (a begin token, ...) is put around the ids.
enum class SpecialTokens { kAdd, kNone };
// Where a part of a text stands: some tokenizers put a space in front of a text.
enum class Position { kStart, kInside };
// Whether decoding leaves special tokens out.
enum class SkipSpecial { kYes, kNo };

// Text to token ids and back, as Hugging Face's `tokenizers` does it for the same files. Immutable; a cheap handle
// (copies share everything); const calls are thread-safe. Which parts of tokenizer.json are supported:
// docs/tokenizers.md.
class Tokenizer {
 public:
  // A folder with tokenizer.json (and, where they exist, tokenizer_config.json, special_tokens_map.json and
  // chat_template.jinja), the tokenizer.json itself, or a folder with the byte tokenizer's fsdp_tokenizer.json. Throws
  // Error(kModel) naming what is wrong or not supported.
  static Tokenizer load(const std::filesystem::path& path);

  // The byte tokenizer of text/tokenizer/byte_tokenizer.h: ids 0..255 are bytes, 256 begin, 257 end, 258 pad. Takes any
  // bytes, also such that are not UTF-8; its special tokens are never recognised in text; kAdd puts 256 in front.
  static Tokenizer bytes();

  // Appends the ids of `text` (UTF-8, of any length) to `ids`. Special tokens in the text are recognised. Throws
  // Error(kData) with the offset if the text is not UTF-8.
  void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const;
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special = SpecialTokens::kNone) const;

  // The same for a part of a larger text between two special tokens, in which nothing is recognised as a special token:
  // for content that somebody else wrote. Added tokens that are not special are recognised.
  void encode_part(std::string_view text, Position position, std::vector<int32_t>& ids) const;

  // Valid UTF-8: what is not becomes U+FFFD. Ids that no token has are left out.
  std::string decode(const std::vector<int32_t>& ids, SkipSpecial skip = SkipSpecial::kNo) const;

  // Highest id + 1, added tokens included.
  int64_t vocab_size() const;
  // Of the exact content of a vocabulary entry or added token, written as in tokenizer.json.
  std::optional<int32_t> id_of(std::string_view token) const;
  // The entry as tokenizer.json writes it; "" for an id that no token has.
  std::string token(int32_t id) const;
  bool is_special(int32_t id) const;

  // Of tokenizer_config.json, else special_tokens_map.json.
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> pad() const;
  // Jinja text of chat_template.jinja or tokenizer_config.json; "" if there is none.
  const std::string& chat_template() const;

  // Of the content of the files above: identifies the tokenizer in a data set.
  uint64_t hash() const;
  // "bytes", else a short description such as "BPE 1400 tokens".
  const std::string& name() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}

  std::shared_ptr<const Pipeline> pipeline_;
};

// Ids one by one to text that never ends inside a UTF-8 sequence. All that push() returned plus finish() is what
// decode() gives for the same ids. Not thread-safe.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // The text that is certain after this id; may be empty.
  std::string push(int32_t id);
  // What was held back. The decoder can then be used for another text.
  std::string finish();

 private:
  std::shared_ptr<const Pipeline> pipeline_;
  SkipSpecial skip_;
  std::unique_ptr<TextStream> stream_;
};

}  // namespace fsdp::tokenizer
