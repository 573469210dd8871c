#include "train/config/toml_text.h"

#include <algorithm>

namespace fsdp::train {
namespace {

constexpr size_t kTripleLength = 3;

// Where what begins at `begin` with a quote ends: behind the quotes that close it, or at the end of its line.
size_t end_of_string(std::string_view text, size_t begin) {
  const char quote = text[begin];
  const bool is_triple = text.substr(begin, kTripleLength) == std::string_view(quote == '"' ? "\"\"\"" : "'''");
  const std::string_view closing = text.substr(begin, is_triple ? kTripleLength : 1);
  for (size_t i = begin + closing.size(); i < text.size(); ++i) {
    if (text.substr(i, closing.size()) == closing) return i + closing.size();
    if (text[i] == '\n' && !is_triple) return i;
    if (text[i] == '\\' && quote == '"') ++i;
  }
  return text.size();
}

}  // namespace

std::optional<TextPosition> find_unquoted_non_ascii(std::string_view text) {
  TextPosition position;
  size_t line_begin = 0;
  const size_t byte_order_mark = text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
  size_t quoted_until = byte_order_mark;
  for (size_t i = byte_order_mark; i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++position.line;
      line_begin = i + 1;
    }
    if (i < quoted_until) continue;
    if (text[i] == '"' || text[i] == '\'') quoted_until = end_of_string(text, i);
    if (text[i] == '#') quoted_until = std::min(text.find('\n', i), text.size());
    if (static_cast<unsigned char>(text[i]) < 0x80) continue;
    position.column = static_cast<int64_t>(i - line_begin) + 1;
    return position;
  }
  return std::nullopt;
}

}  // namespace fsdp::train
