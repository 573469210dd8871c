#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::tokenizer {

// A pattern of tokenizer.json without a matcher of our own, run by pcre2. The package `tokenizers` runs patterns with
// Oniguruma: what the two read differently is refused. Immutable; const calls are thread-safe.
class Regex {
 public:
  // Throws Error(kModel) naming `key` and what in the pattern is not supported.
  Regex(const std::string& pattern, const std::string& key);

  struct Match {
    size_t first;
    size_t end;
  };
  // The first match at or after `from` in `text`, valid UTF-8; never empty. Throws Error(kModel) if the pattern is too
  // slow for this text.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace fsdp::tokenizer
