#include "text/tokenizer/stages/added_tokens.h"

#include <utility>

namespace fsdp::tokenizer {
namespace {

std::vector<TokenFinder::Needle> to_needles(const std::vector<AddedTokens::Needle>& needles) {
  std::vector<TokenFinder::Needle> result;
  for (size_t i = 0; i < needles.size(); ++i) result.push_back({needles[i].text, static_cast<int32_t>(i)});
  return result;
}

uint8_t class_before(std::string_view text, size_t at) {
  size_t length;
  return CharacterClasses::get().at(previous_character(text.data(), text.data() + at), length);
}

uint8_t class_behind(std::string_view text, size_t at) {
  size_t length;
  return CharacterClasses::get().at(text.data() + at, length);
}

}  // namespace

AddedTokens::AddedTokens(std::vector<Needle> needles) : finder_(to_needles(needles)) {
  for (Needle& needle : needles) tokens_.push_back(std::move(needle.token));
}

bool AddedTokens::touches_word(std::string_view text, const TokenFinder::Match& match) {
  return (match.first > 0 && (class_before(text, match.first) & kWord) != 0) ||
         (match.end < text.size() && (class_behind(text, match.end) & kWord) != 0);
}

// Where the white space that ends at `at` starts, but not before `from`.
size_t AddedTokens::before_spaces(std::string_view text, size_t from, size_t at) {
  while (at > from && (class_before(text, at) & kSpace) != 0) {
    at = static_cast<size_t>(previous_character(text.data(), text.data() + at) - text.data());
  }
  return at;
}

size_t AddedTokens::after_spaces(std::string_view text, size_t at) {
  while (at < text.size() && (class_behind(text, at) & kSpace) != 0) at += length_of(text[at]);
  return at;
}

}  // namespace fsdp::tokenizer
