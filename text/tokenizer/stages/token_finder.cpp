#include "text/tokenizer/stages/token_finder.h"

#include <algorithm>
#include <utility>

namespace fsdp::tokenizer {
namespace {

unsigned char byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

}  // namespace

TokenFinder::TokenFinder(std::vector<Needle> needles) {
  std::stable_sort(needles.begin(), needles.end(), [](const Needle& a, const Needle& b) { return a.text < b.text; });
  for (Needle& needle : needles) {
    if (!needles_.empty() && needles_.back().text == needle.text) {
      needles_.back().value = needle.value;
    } else {
      needles_.push_back(std::move(needle));
    }
  }
  for (const Needle& needle : needles_) ++begin_of_[byte_at(needle.text, 0) + size_t{1}];
  for (size_t byte = 0; byte < 256; ++byte) begin_of_[byte + 1] += begin_of_[byte];
  if (!needles_.empty() && needles_.front().text[0] == needles_.back().text[0])
    only_start_ = byte_at(needles_.front().text, 0);
}

// Where a text of the set may start, at or after `from`.
size_t TokenFinder::next_candidate(std::string_view text, size_t from) const {
  if (only_start_ >= 0) return std::min(text.find(static_cast<char>(only_start_), from), text.size());
  const auto starts = [this](unsigned char byte) { return begin_of_[byte] != begin_of_[byte + size_t{1}]; };
  while (from < text.size() && !starts(byte_at(text, from))) ++from;
  return from;
}

// Those that begin with what was read so far stand side by side, the shortest first.
std::optional<TokenFinder::Match> TokenFinder::longest_at(std::string_view text, size_t first) const {
  const unsigned char head = byte_at(text, first);
  const Needle* begin = needles_.data() + begin_of_[head];
  const Needle* end = needles_.data() + begin_of_[head + size_t{1}];
  std::optional<Match> longest;
  for (size_t length = 1; begin != end; ++length) {
    if (begin->text.size() == length) {
      longest = Match{first, first + length, begin->value};
      ++begin;
    }
    if (first + length >= text.size()) break;
    const unsigned char next = byte_at(text, first + length);
    const auto goes_on = [&](const Needle& needle) { return byte_at(needle.text, length) == next; };
    if (begin != end && goes_on(*begin) && goes_on(end[-1])) continue;  // such as runs of spaces of many lengths
    begin = std::lower_bound(begin, end, next, [&](const Needle& needle, unsigned char byte) {
      return byte_at(needle.text, length) < byte;
    });
    end = std::upper_bound(begin, end, next, [&](unsigned char byte, const Needle& needle) {
      return byte < byte_at(needle.text, length);
    });
  }
  return longest;
}

std::optional<TokenFinder::Match> TokenFinder::find(std::string_view text, size_t from) const {
  if (is_empty()) return std::nullopt;
  for (size_t first = next_candidate(text, from); first < text.size(); first = next_candidate(text, first + 1)) {
    if (const std::optional<Match> match = longest_at(text, first)) return match;
  }
  return std::nullopt;
}

}  // namespace fsdp::tokenizer
