#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/regex.h"

namespace fsdp::tokenizer {

// One step of the normalizer of tokenizer.json.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kPrepend,  // `content` in front of a text that is not empty
    kReplace,  // each `pattern` (or match of `regex`) by `content`
  };
  Kind kind;
  std::string pattern;
  std::shared_ptr<const Regex> regex;
  std::string content;
};

// Immutable; const calls are thread-safe.
class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps = {}) : steps_(std::move(steps)) {}

  // The normal form of `text`, valid UTF-8: `text` itself where nothing changes, else in `storage`.
  std::string_view normalize(std::string_view text, std::string& storage) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace fsdp::tokenizer
