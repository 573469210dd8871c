#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace fsdp::chat {

// A chat as a family of models writes it: control tokens and the text between them. What the messages contain is always
// text, also where it reads like a control token. Refers to the tokenizer.
class Transcript {
 public:
  // Who wrote it: the training loss is on what the model has to write itself.
  enum class Author { kOthers, kModel };
  struct Piece {
    int32_t control = -1;  // id of the control token; -1 for text
    Author author = Author::kOthers;
    std::string text;
  };

  Transcript(const tokenizer::Tokenizer& tokenizer, std::string_view format);

  // Throws Error(kUsage) if the tokenizer has no such token.
  void control(std::string_view token, Author author = Author::kOthers);
  void text(std::string_view text, Author author = Author::kOthers);
  // The tokenizer's begin token; nothing if it has none.
  void begin();
  // The tokenizer's end token. Throws Error(kUsage) if it has none.
  void end(Author author);

  const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  // What the family's Jinja template gives.
  std::string str() const;

 private:
  const tokenizer::Tokenizer& tokenizer_;
  std::string format_;
  std::vector<Piece> pieces_;
};

// The text with `token` (the content of a control token) resolved: its id. Throws Error(kUsage) naming the format that
// needs it.
int32_t control_id(const tokenizer::Tokenizer& tokenizer, std::string_view token, std::string_view format);

}  // namespace fsdp::chat
