#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/format.h"
#include "text/tokenizer/tokenizer.h"

namespace fsdp::train {

// What the lines of chats are.
enum class ChatLines { kConversations, kPairs };

// Turns a document into what a model is trained on. Const calls are thread-safe.
class DocumentEncoder {
 public:
  // Plain text: the tokenizer's template (a begin token, ...) and the end token, if there is one, are put around it.
  explicit DocumentEncoder(tokenizer::Tokenizer tokenizer);
  // Lines of JSON that hold conversations.
  DocumentEncoder(tokenizer::Tokenizer tokenizer, chat::Format format, ChatLines lines = ChatLines::kConversations);

  // Appends to `ids` and, for conversations, to `is_answer`. Of a pair the chosen chat comes first, then the rejected
  // one: returns where that begins in `ids`; else nothing. Throws io::Error(kData) for what is no conversation, or is
  // no UTF-8; then nothing was appended.
  std::optional<size_t> encode(std::string_view document, std::vector<int32_t>& ids,
                               std::vector<uint8_t>& is_answer) const;

  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_answers() const { return format_.has_value(); }
  ChatLines lines() const { return lines_; }
  // What identifies the result, besides the document.
  std::string description() const;

 private:
  tokenizer::Tokenizer tokenizer_;
  std::optional<chat::Format> format_;
  ChatLines lines_ = ChatLines::kConversations;
};

// The encoder that the options of `fsdp prepare` ask for. `tokenizer` is "bytes" or a path; `chat` "", "auto" or the
// name of a format. Throws Error(kUsage) for an unknown format, io::Error(kModel) for a tokenizer that is missing or
// not supported.
DocumentEncoder make_encoder(const std::string& tokenizer, const std::string& chat,
                             ChatLines lines = ChatLines::kConversations);

}  // namespace fsdp::train
