#include "text/unicode/word_patterns.h"

#include <array>

#include "text/unicode/unicode.h"

namespace fsdp::tokenizer {
namespace {

struct NamedPattern {
  WordPattern pattern;
  std::string_view regex;
};

constexpr std::array<NamedPattern, 3> kPatterns = {{
    {WordPattern::kGpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {WordPattern::kLlama3, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                           R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {WordPattern::kQwen2, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

constexpr uint8_t kNoSymbol = kLetter | kNumber | kSpace;  // the pattern's [^\s\p{L}\p{N}] has none of these

// Reads characters and their classes one after another.
class Reader {
 public:
  Reader(const char* at, const char* end) : classes_(&CharacterClasses::get()), at_(at), end_(end) {}

  const char* at() const { return at_; }
  bool is_end() const { return at_ == end_; }
  // Class and length of the character here; not at the end.
  uint8_t peek(size_t& length) const { return classes_->at(at_, length); }
  void skip(size_t length) { at_ += length; }

  // Takes characters of a class, at most `most`; returns whether there was one.
  bool take(uint8_t wanted, size_t most = SIZE_MAX) {
    const char* first = at_;
    size_t length;
    for (; most > 0 && !is_end() && (peek(length) & wanted) != 0; --most) skip(length);
    return at_ != first;
  }
  // Takes what is no space, letter or number.
  bool take_symbols() {
    const char* first = at_;
    size_t length;
    while (!is_end() && (peek(length) & kNoSymbol) == 0) skip(length);
    return at_ != first;
  }

 private:
  const CharacterClasses* classes_;
  const char* at_;
  const char* end_;
};

enum class Case { kExact, kIgnored };

// Length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, where an apostrophe stands; 0 if there is none.
size_t contraction(const char* at, const char* end, Case letter_case) {
  const auto letter = [&](std::ptrdiff_t i) {
    const char c = end - at > i ? at[i] : '\0';
    return letter_case == Case::kIgnored && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(1);
  const char second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  // U+017F is a capital of s, as Unicode folds cases.
  if (letter_case == Case::kIgnored && first == '\xC5' && second == '\xBF') return 3;
  return 0;
}

// \s+(?!\S)|\s+ where a space stands: all spaces, but for the last one if a word follows.
const char* match_spaces(Reader reader) {
  const char* const first = reader.at();
  const char* last = first;
  size_t length;
  while (!reader.is_end() && (reader.peek(length) & kSpace) != 0) {
    last = reader.at();
    reader.skip(length);
  }
  return reader.is_end() || last == first ? reader.at() : last;
}

// The same after \s*[\r\n]+: up to the last line break among the spaces, if there is one.
const char* match_spaces_and_lines(Reader reader) {
  const char* line_end = nullptr;
  const Reader start = reader;
  size_t length;
  while (!reader.is_end()) {
    const uint8_t kind = reader.peek(length);
    if ((kind & kSpace) == 0) break;
    reader.skip(length);
    if ((kind & kNewline) != 0) line_end = reader.at();
  }
  return line_end != nullptr ? line_end : match_spaces(start);
}

const char* match_gpt2(const char* at, const char* end) {
  if (*at == '\'') {
    if (const size_t length = contraction(at, end, Case::kExact)) return at + length;
  }
  Reader reader(at, end);
  if (*at == ' ') reader.skip(1);
  if (!reader.is_end() && (reader.take(kLetter) || reader.take(kNumber) || reader.take_symbols())) return reader.at();
  return match_spaces(Reader(at, end));
}

const char* match_llama3(const char* at, const char* end, size_t num_digits) {
  if (*at == '\'') {
    if (const size_t length = contraction(at, end, Case::kIgnored)) return at + length;
  }
  Reader reader(at, end);
  size_t length;
  const uint8_t kind = reader.peek(length);
  if ((kind & kNumber) != 0) {
    reader.take(kNumber, num_digits);
    return reader.at();
  }
  if ((kind & kLetter) != 0) {
    reader.take(kLetter);
    return reader.at();
  }
  if ((kind & kNewline) == 0) {
    reader.skip(length);
    if (reader.take(kLetter)) return reader.at();
  }
  reader = Reader(at, end);
  if (*at == ' ') reader.skip(1);
  if (reader.take_symbols()) {
    reader.take(kNewline);
    return reader.at();
  }
  return match_spaces_and_lines(Reader(at, end));
}

}  // namespace

std::string_view regex_of(WordPattern pattern) {
  for (const NamedPattern& known : kPatterns) {
    if (known.pattern == pattern) return known.regex;
  }
  return {};
}

std::optional<WordPattern> find_word_pattern(std::string_view regex) {
  for (const NamedPattern& known : kPatterns) {
    if (known.regex == regex) return known.pattern;
  }
  return std::nullopt;
}

size_t match_word(WordPattern pattern, const char* at, const char* end) {
  switch (pattern) {
    case WordPattern::kGpt2:
      return static_cast<size_t>(match_gpt2(at, end) - at);
    case WordPattern::kLlama3:
      return static_cast<size_t>(match_llama3(at, end, 3) - at);
    case WordPattern::kQwen2:
      return static_cast<size_t>(match_llama3(at, end, 1) - at);
  }
  return 1;
}

}  // namespace fsdp::tokenizer
