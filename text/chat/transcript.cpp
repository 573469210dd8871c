#include "text/chat/transcript.h"

#include <utility>

namespace fsdp::chat {

int32_t control_id(const tokenizer::Tokenizer& tokenizer, std::string_view token, std::string_view format) {
  const std::optional<int32_t> id = tokenizer.id_of(token);
  if (!id.has_value()) {
    throw io::Error(io::ErrorKind::kUsage, "[chat] format " + std::string(format) + ": got a tokenizer without " +
                                               io::in_quotes(token) + " (" + tokenizer.name() +
                                               "), expected one of the family. Choose another chat format.");
  }
  return *id;
}

Transcript::Transcript(const tokenizer::Tokenizer& tokenizer, std::string_view format)
    : tokenizer_(tokenizer), format_(format) {}

void Transcript::control(std::string_view token, Author author) {
  pieces_.push_back({control_id(tokenizer_, token, format_), author, std::string(token)});
}

void Transcript::text(std::string_view text, Author author) {
  if (!text.empty()) {
    pieces_.push_back({-1, author, std::string(text)});
  }
}

void Transcript::begin() {
  if (const std::optional<int32_t> id = tokenizer_.bos()) {
    pieces_.push_back({*id, Author::kOthers, tokenizer_.token(*id)});
  }
}

void Transcript::end(Author author) {
  const std::optional<int32_t> id = tokenizer_.eos();
  if (!id.has_value()) {
    throw io::Error(io::ErrorKind::kUsage, "[chat] format " + format_ + ": got a tokenizer without an end token (" +
                                               tokenizer_.name() +
                                               "), expected one. Name its eos_token in tokenizer_config.json.");
  }
  pieces_.push_back({*id, author, tokenizer_.token(*id)});
}

std::string Transcript::str() const {
  std::string text;
  for (const Piece& piece : pieces_) {
    text += piece.text;
  }
  return text;
}

}  // namespace fsdp::chat
