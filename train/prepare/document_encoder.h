#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/format.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::train {

// Turns a document into what a model is trained on. Const calls are thread-safe.
class DocumentEncoder {
 public:
  // Plain text: the tokenizer's template (a begin token, ...) and the end token, if there is one, are put around it.
  explicit DocumentEncoder(tokenizer::Tokenizer tokenizer);
  // Lines of JSON that hold conversations.
  DocumentEncoder(tokenizer::Tokenizer tokenizer, chat::Format format);

  // Appends to `ids` and, for conversations, to `is_answer`. Throws io::Error(kData) for what is no conversation, or is
  // no UTF-8; then nothing was appended.
  void encode(std::string_view document, std::vector<int32_t>& ids, std::vector<uint8_t>& is_answer) const;

  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_answers() const { return format_.has_value(); }
  // What identifies the result, besides the document.
  std::string description() const;

 private:
  tokenizer::Tokenizer tokenizer_;
  std::optional<chat::Format> format_;
};

// The encoder that the options of `fsdp prepare` ask for. `tokenizer` is "bytes" or a path; `chat` "", "auto" or the
// name of a format. Throws Error(kUsage) for an unknown format, io::Error(kModel) for a tokenizer that is missing or
// not supported.
DocumentEncoder make_encoder(const std::string& tokenizer, const std::string& chat);

}  // namespace fsdp::train
