#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode/regex.h"
#include "text/unicode/word_patterns.h"

namespace fsdp::tokenizer {

// Takes words one after another; a word is valid only during the call.
class WordSink {
 public:
  virtual ~WordSink() = default;
  virtual void take(std::string_view word) = 0;
};

// What becomes of a match and of the text around it.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One step of the pre-tokenizer of tokenizer.json: cuts each piece that the step before left.
struct SplitStep {
  enum class Kind {
    kWordPattern,  // a known pattern
    kRegex,        // another one
    kText,         // `text`
    kDigit,        // a character that Digits takes
    kMetaspace,    // spaces become `text`; maybe one in front; cut in front of each `text` if `splits`
    kPrefixSpace,  // a space in front, if there is none
  };
  enum class Prepend { kAlways, kFirst, kNever };

  Kind kind;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool inverted = false;  // what lies between matches counts as match
  WordPattern pattern = WordPattern::kGpt2;
  std::shared_ptr<const Regex> regex;
  std::string text;
  Prepend prepend = Prepend::kNever;
  bool splits = true;
};

// Cuts normalized text into words. Immutable; const calls are thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<SplitStep> steps = {}) : steps_(std::move(steps)) {}

  // `is_start`: `text` stands at the very start of what the user gave. Valid UTF-8, not empty.
  void split(std::string_view text, bool is_start, WordSink& sink) const { run(0, text, is_start, sink); }

 private:
  void run(size_t step, std::string_view text, bool is_start, WordSink& sink) const;
  void run_word_pattern(size_t step, std::string_view text, bool is_start, WordSink& sink) const;
  void run_metaspace(size_t step, std::string_view text, bool is_start, WordSink& sink) const;
  void run_isolated(size_t step, std::string_view text, bool is_start, WordSink& sink) const;
  void run_general(size_t step, std::string_view text, bool is_start, WordSink& sink) const;

  std::vector<SplitStep> steps_;
};

}  // namespace fsdp::tokenizer
