#include "text/chat/encoding.h"

#include <algorithm>
#include <utility>

namespace fsdp::chat {
namespace {

using Author = Transcript::Author;

class Encoder {
 public:
  explicit Encoder(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(const Transcript::Piece& piece) {
    if (piece.control < 0) {
      if (piece.author == Author::kOthers && length_of_others_ < text_.size()) {
        flush();  // an answer without an end token
      }
      text_ += piece.text;
      length_of_others_ = piece.author == Author::kOthers ? text_.size() : length_of_others_;
      return;
    }
    flush();
    rendered_.ids.push_back(piece.control);
    rendered_.is_answer.push_back(piece.author == Author::kModel ? 1 : 0);
  }

  Rendered finish() {
    flush();
    return std::move(rendered_);
  }

 private:
  // Text between control tokens is tokenized as one, so that the ids are those of the whole: where others stop and the
  // model begins is where the ids start to differ from those of the others' text alone.
  void flush() {
    const std::vector<int32_t> whole = encode_text(text_);
    size_t border = 0;
    if (length_of_others_ == text_.size()) {
      border = whole.size();
    } else if (length_of_others_ > 0) {
      const std::string_view others = std::string_view(text_).substr(0, length_of_others_);
      const std::vector<int32_t> start = encode_text(others);
      border = static_cast<size_t>(std::mismatch(start.begin(), start.end(), whole.begin(), whole.end()).first -
                                   start.begin());
    }
    rendered_.ids.insert(rendered_.ids.end(), whole.begin(), whole.end());
    rendered_.is_answer.insert(rendered_.is_answer.end(), border, 0);
    rendered_.is_answer.insert(rendered_.is_answer.end(), whole.size() - border, 1);
    text_.clear();
    length_of_others_ = 0;
  }

  std::vector<int32_t> encode_text(std::string_view text) const {
    std::vector<int32_t> ids;
    const bool is_start = rendered_.ids.empty();
    tokenizer_.encode_part(text, is_start ? tokenizer::Position::kStart : tokenizer::Position::kInside, ids);
    return ids;
  }

  const tokenizer::Tokenizer& tokenizer_;
  std::string text_;             // of the pieces since the last control token
  size_t length_of_others_ = 0;  // the start of it that the model does not write
  Rendered rendered_;
};

}  // namespace

Rendered encode(const Transcript& transcript) {
  Encoder encoder(transcript.tokenizer());
  for (const Transcript::Piece& piece : transcript.pieces()) {
    encoder.add(piece);
  }
  return encoder.finish();
}

}  // namespace fsdp::chat
