#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "text/unicode/unicode_ranges.h"

namespace fsdp::tokenizer {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;
constexpr char32_t kFirstInteresting = 0x300;  // below: normal form C, and nothing composes with what comes before
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

void mark(std::vector<uint8_t>& classes, std::span<const CodePointRange> ranges, uint8_t bit) {
  for (const CodePointRange& range : ranges) {
    for (char32_t value = range.first; value <= range.last; ++value) classes[value] |= bit;
  }
}

// \w of Rust's regex crate is Alphabetic, marks, decimal digits, connectors and joiners. Alphabetic is letters, letter
// numbers, some marks and these circled letters.
void mark_words(std::vector<uint8_t>& classes) {
  mark(classes, unicode_ranges::letters(), kWord);
  mark(classes, unicode_ranges::marks(), kWord);
  for (const CodePointRange& range : unicode_ranges::numbers()) {
    for (char32_t value = range.first; value <= range.last; ++value) {
      if (utf8proc_category(static_cast<utf8proc_int32_t>(value)) != UTF8PROC_CATEGORY_NO) classes[value] |= kWord;
    }
  }
  for (char32_t value = 0; value < 0x10000; ++value) {
    if (utf8proc_category(static_cast<utf8proc_int32_t>(value)) == UTF8PROC_CATEGORY_PC) classes[value] |= kWord;
  }
  constexpr CodePointRange kRest[] = {
      {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  mark(classes, kRest, kWord);
}

std::vector<uint8_t> make_classes() {
  std::vector<uint8_t> classes(kNumCodePoints, 0);
  mark(classes, unicode_ranges::letters(), kLetter);
  mark(classes, unicode_ranges::numbers(), kNumber);
  mark(classes, unicode_ranges::spaces(), kSpace);
  mark(classes, unicode_ranges::digits(), kDigit);
  mark_words(classes);
  classes['\r'] |= kNewline;
  classes['\n'] |= kNewline;
  return classes;
}

// What the normalizer does about a character; bits.
enum NfcRole : uint8_t {
  kUnstable = 1,  // a mark, or has another normal form, or may compose with a character before it
  kInert = 2,     // of a Unicode version after that of the normalizer: never changes
};

void mark_unstable(char32_t value, std::vector<uint8_t>& roles) {
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(value));
  if (property->combining_class != 0) roles[value] |= kUnstable;
  const bool is_hangul_syllable = value >= 0xAC00 && value <= 0xD7A3;
  if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0 || is_hangul_syllable) return;
  utf8proc_int32_t parts[8];
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(value), parts, 8, UTF8PROC_DECOMPOSE, nullptr);
  if (count < 1 || count > 8) return;
  if (count > 1) roles[static_cast<size_t>(parts[count - 1])] |= kUnstable;
  const auto size = utf8proc_normalize_utf32(parts, count, kCompose);
  if (size != 1 || static_cast<char32_t>(parts[0]) != value) roles[value] |= kUnstable;
}

std::vector<uint8_t> make_roles() {
  std::vector<uint8_t> roles(kNumCodePoints, 0);
  mark(roles, unicode_ranges::unnormalized(), kInert);
  for (char32_t value = kFirstInteresting; value < kNumCodePoints; ++value) {
    if (roles[value] != kInert) mark_unstable(value, roles);
  }
  constexpr CodePointRange kHangul[] = {{0x1161, 0x1175}, {0x11A8, 0x11C2}};  // vowels and finals
  mark(roles, kHangul, kUnstable);
  return roles;
}

uint8_t role_of(char32_t value) {
  static const std::vector<uint8_t> roles = make_roles();
  return value < kFirstInteresting ? 0 : roles[value];
}

bool is_unstable_at(const char* at) { return (role_of(decode_at(at).value) & kUnstable) != 0; }

uint8_t combining_class(utf8proc_int32_t value) {
  return static_cast<uint8_t>(utf8proc_get_property(value)->combining_class);
}

// Step by step, as utf8proc_map would sort a long run of marks in quadratic time.
void append_normalized(std::string_view text, std::string& out) {
  std::vector<utf8proc_int32_t> values;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_at(text.data() + i);
    utf8proc_int32_t parts[8];
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), parts, 8, UTF8PROC_DECOMPOSE, nullptr);
    values.insert(values.end(), parts, parts + std::clamp<utf8proc_ssize_t>(count, 0, 8));
    i += point.length;
  }
  const auto is_starter = [](utf8proc_int32_t value) { return combining_class(value) == 0; };
  for (auto at = values.begin(); at != values.end();) {
    at = std::find_if_not(at, values.end(), is_starter);
    const auto end = std::find_if(at, values.end(), is_starter);
    std::stable_sort(at, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
  const auto size = utf8proc_normalize_utf32(values.data(), static_cast<utf8proc_ssize_t>(values.size()), kCompose);
  for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(static_cast<char32_t>(values[static_cast<size_t>(i)]), out);
}

// First unstable character at or after `from`; its start, or the end of the text.
size_t find_unstable(std::string_view text, size_t from) {
  while (from < text.size()) {
    if (static_cast<unsigned char>(text[from]) < 0xCC) {  // U+0300 is CC 80
      from += length_of(text[from]);
      continue;
    }
    if (is_unstable_at(text.data() + from)) return from;
    from += length_of(text[from]);
  }
  return text.size();
}

}  // namespace

CharacterClasses::CharacterClasses() {
  const std::vector<uint8_t> classes = make_classes();
  constexpr size_t kBlock = size_t{1} << kBits;
  std::unordered_map<std::string_view, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const uint8_t* const first = classes.data() + block * kBlock;
    const std::string_view content(reinterpret_cast<const char*>(first), kBlock);
    const auto [place, is_new] = known.try_emplace(content, static_cast<uint16_t>(known.size()));
    if (is_new) blocks_.insert(blocks_.end(), first, first + kBlock);
    index_[block] = place->second;
  }
}

const CharacterClasses& CharacterClasses::get() {
  static const CharacterClasses only;
  return only;
}

bool is_nfc(std::string_view text) { return find_unstable(text, 0) == text.size(); }

void append_nfc(std::string_view text, std::string& out) {
  size_t done = 0;
  for (;;) {
    size_t at = find_unstable(text, done);
    if (at == text.size()) break;
    size_t end = at + length_of(text[at]);
    while (end < text.size() && is_unstable_at(text.data() + end)) end += length_of(text[end]);
    // The stable character before it may change too; from the next stable one on nothing does.
    if (at > done) {
      const char* const before = previous_character(text.data(), text.data() + at);
      if ((role_of(decode_at(before).value) & kInert) == 0) at = static_cast<size_t>(before - text.data());
    }
    out.append(text.substr(done, at - done));
    append_normalized(text.substr(at, end - at), out);
    done = end;
  }
  out.append(text.substr(done));
}

}  // namespace fsdp::tokenizer
