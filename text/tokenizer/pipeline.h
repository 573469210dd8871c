#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/stages/decoder.h"
#include "text/tokenizer/token_table.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::tokenizer {

// What a tokenizer says about itself.
struct Description {
  std::string name;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  std::string chat_template;
  uint64_t hash = 0;
};

// A tokenizer: how text becomes ids, and all that is needed for the way back. Const calls are thread-safe.
class Pipeline {
 public:
  Pipeline(TokenTable tokens, Decoder decoder, Description description)
      : tokens_(std::move(tokens)), decoder_(std::move(decoder)), description_(std::move(description)) {}
  virtual ~Pipeline() = default;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // As Tokenizer::encode.
  virtual void encode(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids) const = 0;
  // As Tokenizer::encode_part.
  virtual void encode_part(std::string_view text, Position position, std::vector<int32_t>& ids) const = 0;

  const TokenTable& tokens() const { return tokens_; }
  const Decoder& decoder() const { return decoder_; }
  const Description& description() const { return description_; }

 private:
  TokenTable tokens_;
  Decoder decoder_;
  Description description_;
};

}  // namespace fsdp::tokenizer
