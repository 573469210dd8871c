#include "text/unicode/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <new>

#include "io/base/error.h"
#include "text/unicode/unicode_ranges.h"

namespace fsdp::tokenizer {
namespace {

constexpr size_t kMaxPattern = size_t{1} << 14;
constexpr uint32_t kMaxSteps = 1'000'000;  // of one match
constexpr uint32_t kMaxHeapKib = 16 << 10;
constexpr size_t kMaxJitStack = size_t{1} << 20;  // bytes

// White_Space; pcre2's own \s has U+180E besides.
constexpr std::string_view kSpaces =
    R"(\t-\r\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// Rewrites a pattern so that pcre2 reads it as Oniguruma does; refuses what it cannot.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& key) : pattern_(pattern), key_(key) {}

  std::string run() {
    if (pattern_.empty() || pattern_.size() > kMaxPattern) {
      refuse("a pattern of " + std::to_string(pattern_.size()) + " bytes");
    }
    while (at_ < pattern_.size()) {
      if (is_in_class_) {
        translate_in_class();
      } else {
        translate_outside();
      }
    }
    return result_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw io::Error(io::ErrorKind::kModel,
                    "[tokenizer] " + key_ + ": got " + what + " at offset " + std::to_string(at_) + " of the pattern " +
                        io::in_quotes(pattern_) +
                        ", expected what docs/tokenizers.md lists. Use an equal pattern without it.");
  }

  bool starts(std::string_view text) const { return std::string_view(pattern_).substr(at_).starts_with(text); }
  void take(size_t count) {
    result_.append(pattern_, at_, count);
    at_ += count;
  }

  void translate_outside() {
    const char c = pattern_[at_];
    if (c == '\\') return translate_escape();
    if (c == '(') return translate_group();
    if (c == '[') {
      is_in_class_ = true;
      take(starts("[^") ? 2 : 1);
      if (starts("]")) refuse("an empty class");
      return;
    }
    if (c == '}' && (starts("}+") || starts("}*") || starts("}?"))) refuse("a quantifier after a quantifier");
    if (c == '^' || c == '$') refuse("an anchor");
    if (c == '{') check_quantifier();
    take(1);
  }

  // {n}, {n,} and {n,m} only: other braces are text in one engine and an error in the other.
  void check_quantifier() {
    size_t i = at_ + 1;
    const size_t first = i;
    while (i < pattern_.size() &&
           (std::isdigit(static_cast<unsigned char>(pattern_[i])) != 0 || (pattern_[i] == ',' && i > first)))
      ++i;
    if (i == first || i >= pattern_.size() || pattern_[i] != '}') refuse("a brace that is no quantifier");
  }

  void translate_in_class() {
    if (starts("]")) {
      is_in_class_ = false;
    } else if (starts("[") || starts("&&")) {
      refuse("a class inside a class");
    } else if (starts("\\")) {
      return translate_escape();
    }
    take(1);
  }

  void translate_group() {
    static constexpr std::string_view kGroups[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    for (const std::string_view group : kGroups) {
      if (starts(group)) return take(group.size());
    }
    if (starts("(?i:")) return translate_caseless();
    if (starts("(?") || starts("(*")) refuse("a group of an unknown kind");
    take(1);
  }

  // Without the letter pairs that Unicode folds into one letter (ss, st, ff, fi, fl): pcre2 does not.
  void translate_caseless() {
    size_t end = at_ + 4;
    char previous = '\0';
    for (; end < pattern_.size() && pattern_[end] != ')'; ++end) {
      const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(pattern_[end])));
      const bool is_letter = c >= 'a' && c <= 'z';
      const bool folds =
          (previous == 's' && (c == 's' || c == 't')) || (previous == 'f' && (c == 'f' || c == 'i' || c == 'l'));
      if ((!is_letter && c != '\'' && c != '|') || folds) refuse("a case-insensitive group of more than plain words");
      previous = c;
    }
    take(std::min(end + 1, pattern_.size()) - at_);
  }

  void translate_escape() {
    if (at_ + 1 >= pattern_.size()) refuse("a backslash at the end");
    const char c = pattern_[at_ + 1];
    if (c == 's' || c == 'S') {
      const std::string_view set = c == 's' ? kSpaces : kNoSpaces;
      result_.append(is_in_class_ ? "" : "[").append(set).append(is_in_class_ ? "" : "]");
      at_ += 2;
      return;
    }
    if (c == 'p' || c == 'P') return translate_property();
    static constexpr std::string_view kSame = "rntfd";
    const bool is_symbol = std::ispunct(static_cast<unsigned char>(c)) != 0;
    if (kSame.find(c) == std::string_view::npos && !is_symbol)
      refuse("the escape " + io::in_quotes(pattern_.substr(at_, 2)));
    take(2);
  }

  // General categories and scripts. pcre2 takes the bare name of a script for the wider Script_Extensions.
  void translate_property() {
    static constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                                       "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                                       "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
    static constexpr std::string_view kScripts[] = {"Han",   "Hiragana", "Katakana", "Hangul", "Latin",
                                                    "Greek", "Cyrillic", "Arabic",   "Hebrew", "Thai"};
    const auto has = [](const auto& names, std::string_view name) {
      return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    const size_t end = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == std::string::npos) {
      refuse("a property without braces");
    }
    const std::string_view name = std::string_view(pattern_).substr(at_ + 3, end - at_ - 3);
    const bool is_category = has(kCategories, name);
    if (!is_category && !has(kScripts, name)) refuse("the property " + io::in_quotes(name));
    const bool is_negated = pattern_[at_ + 1] == 'P';
    const std::string property = (is_category ? "p{" : "p{sc:") + std::string(name) + "}";
    if (is_in_class_) {
      // What is new cannot be taken out of a class again.
      result_ += (is_negated ? "\\P" + property.substr(1) : "\\" + property + new_members_of(name));
    } else {
      result_ += (is_negated ? "[^\\" : "[\\") + property + new_members_of(name) + "]";
    }
    at_ = end + 1;
  }

  // pcre2's tables may be older than those of `tokenizers`.
  static std::string new_members_of(std::string_view property) {
    std::string set;
    for (const NewMembers& members : unicode_ranges::new_members()) {
      if (members.property != property) continue;
      for (const CodePointRange& range : members.ranges) {
        char text[32];
        std::snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", static_cast<unsigned>(range.first),
                      static_cast<unsigned>(range.last));
        set += text;
      }
    }
    return set;
  }

  const std::string& pattern_;
  const std::string& key_;
  std::string result_;
  size_t at_ = 0;
  bool is_in_class_ = false;
};

// What matching needs besides the pattern.
struct MatchMemory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(size_t{32} << 10, kMaxJitStack, nullptr);

  MatchMemory() {
    if (data == nullptr || stack == nullptr) throw std::bad_alloc();
  }
  ~MatchMemory() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
  }
  MatchMemory(const MatchMemory&) = delete;
  MatchMemory& operator=(const MatchMemory&) = delete;
};

MatchMemory& match_memory() {
  thread_local MatchMemory memory;
  return memory;
}

pcre2_jit_stack* jit_stack_of_thread(void*) { return match_memory().stack; }

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  std::string key;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, const std::string& key) {
  const std::string translated = Translator(pattern, key).run();
  auto compiled = std::make_shared<Code>();
  compiled->key = key;
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  const auto refuse = [&](const std::string& what) {
    throw io::Error(io::ErrorKind::kModel, "[tokenizer] " + key + ": got the pattern " + io::in_quotes(pattern) + ", " +
                                               what + ". Repair it.");
  };
  if (compiled->code == nullptr) {
    PCRE2_UCHAR text[256] = {};
    pcre2_get_error_message(error, text, sizeof text);
    refuse("expected one that pcre2 can compile: " + std::string(reinterpret_cast<const char*>(text)));
  }
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing != 0) refuse("expected one that never matches the empty text");
  compiled->limits = pcre2_match_context_create(nullptr);
  if (compiled->limits == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(compiled->limits, kMaxSteps);
  pcre2_set_heap_limit(compiled->limits, kMaxHeapKib);
  pcre2_jit_stack_assign(compiled->limits, jit_stack_of_thread, nullptr);
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without it, matching is only slower
  code_ = std::move(compiled);
}

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from) const {
  pcre2_match_data* const data = match_memory().data;
  const auto match = [&](uint32_t options) {
    return pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, data, code_->limits);
  };
  int count = match(0);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);  // slower, with memory from the heap
  if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
  const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(data);
  if (count < 0 || place[1] <= place[0] || place[0] < from) {
    throw io::Error(io::ErrorKind::kModel, "[tokenizer] " + code_->key +
                                               ": got a text that its pattern is too slow for (pcre2 " +
                                               std::to_string(count) + "), expected at most " +
                                               std::to_string(kMaxSteps) + " steps per match. Simplify the pattern.");
  }
  return Match{place[0], place[1]};
}

}  // namespace fsdp::tokenizer
