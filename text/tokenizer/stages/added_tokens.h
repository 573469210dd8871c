#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/stages/token_finder.h"
#include "text/unicode/unicode.h"

namespace fsdp::tokenizer {

// An entry of "added_tokens" of tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in normalized text
  bool special = false;
};

// Which added tokens are looked for; ordinary ones are those that are not special.
enum class Recognized { kAll, kOrdinary };

// Finds added tokens in text. Immutable; const calls are thread-safe.
class AddedTokens {
 public:
  struct Needle {
    std::string text;  // what to look for: the content, or its normal form
    AddedToken token;
  };
  explicit AddedTokens(std::vector<Needle> needles = {});

  // Calls on_token(id) and on_text(first, end) for what `text` consists of, in order; on_text never for nothing.
  template <class OnText, class OnToken>
  void split(std::string_view text, Recognized which, const OnText& on_text, const OnToken& on_token) const {
    size_t done = 0;
    size_t from = 0;
    while (const auto match = finder_.find(text, from)) {
      from = match->end;
      const AddedToken& token = tokens_[static_cast<size_t>(match->value)];
      if (token.special && which == Recognized::kOrdinary) {
        from = match->first + 1;  // an ordinary one may start inside
        continue;
      }
      if (token.single_word && touches_word(text, *match)) continue;
      const size_t first = token.lstrip ? before_spaces(text, done, match->first) : match->first;
      if (first > done) on_text(done, first);
      on_token(token.id);
      done = token.rstrip ? after_spaces(text, match->end) : match->end;
    }
    if (done < text.size()) on_text(done, text.size());
  }

 private:
  static bool touches_word(std::string_view text, const TokenFinder::Match& match);
  static size_t before_spaces(std::string_view text, size_t from, size_t at);
  static size_t after_spaces(std::string_view text, size_t at);

  std::vector<AddedToken> tokens_;
  TokenFinder finder_;
};

}  // namespace fsdp::tokenizer
