#include "text/tokenizer/stages/pre_tokenizer.h"

#include <algorithm>

#include "text/unicode/unicode.h"

namespace fsdp::tokenizer {
namespace {

using SplitKind = SplitStep::Kind;

struct Part {
  size_t first;
  size_t end;
  bool is_match;
};

// The first character of a class at or after `from`.
std::optional<Regex::Match> find_class(std::string_view text, size_t from, uint8_t wanted) {
  const CharacterClasses& classes = CharacterClasses::get();
  size_t length;
  for (size_t at = from; at < text.size(); at += length) {
    if ((classes.at(text.data() + at, length) & wanted) != 0) return Regex::Match{at, at + length};
  }
  return std::nullopt;
}

std::optional<Regex::Match> find_match(const SplitStep& step, std::string_view text, size_t from) {
  switch (step.kind) {
    case SplitKind::kWordPattern:
      if (from == text.size()) return std::nullopt;
      return Regex::Match{from, from + match_word(step.pattern, text.data() + from, text.data() + text.size())};
    case SplitKind::kRegex:
      return step.regex->find(text, from);
    case SplitKind::kText: {
      const size_t at = text.find(step.text, from);
      if (at == std::string_view::npos) return std::nullopt;
      return Regex::Match{at, at + step.text.size()};
    }
    default:
      return find_class(text, from, kDigit);
  }
}

// The whole text as matches and what lies between them.
std::vector<Part> find_parts(const SplitStep& step, std::string_view text) {
  std::vector<Part> parts;
  size_t done = 0;
  while (const auto match = find_match(step, text, done)) {
    if (match->first > done) parts.push_back({done, match->first, step.inverted});
    parts.push_back({match->first, match->end, !step.inverted});
    done = match->end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), step.inverted});
  return parts;
}

// Joins parts as `behavior` says; a part that is a match joins the one before it unless that was a match itself.
std::vector<Part> joined_forwards(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<Part> result;
  bool was_match = false;
  for (const Part& part : parts) {
    const bool joins =
        behavior == SplitBehavior::kContiguous ? part.is_match == was_match : part.is_match && !was_match;
    if (joins && !result.empty()) {
      result.back().end = part.end;
    } else {
      result.push_back(part);
    }
    was_match = part.is_match;
  }
  return result;
}

std::vector<Part> joined_backwards(const std::vector<Part>& parts) {
  std::vector<Part> result;
  bool was_match = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_match && !was_match && !result.empty()) {
      result.back().first = part->first;
    } else {
      result.push_back(*part);
    }
    was_match = part->is_match;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::vector<Part> joined(std::vector<Part> parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      return parts;
    case SplitBehavior::kIsolated:
      return parts;
    case SplitBehavior::kMergedWithNext:
      return joined_backwards(parts);
    default:
      return joined_forwards(parts, behavior);
  }
}

}  // namespace

void PreTokenizer::run(size_t step, std::string_view text, bool is_start, WordSink& sink) const {
  if (step == steps_.size()) return sink.take(text);
  const SplitStep& what = steps_[step];
  if (what.kind == SplitKind::kMetaspace) return run_metaspace(step, text, is_start, sink);
  if (what.kind == SplitKind::kPrefixSpace) {
    if (text.starts_with(' ')) return run(step + 1, text, is_start, sink);
    return run(step + 1, " " + std::string(text), is_start, sink);
  }
  if (what.behavior != SplitBehavior::kIsolated) return run_general(step, text, is_start, sink);
  if (what.kind == SplitKind::kWordPattern) return run_word_pattern(step, text, is_start, sink);
  run_isolated(step, text, is_start, sink);
}

void PreTokenizer::run_word_pattern(size_t step, std::string_view text, bool is_start, WordSink& sink) const {
  const WordPattern pattern = steps_[step].pattern;
  const bool is_last = step + 1 == steps_.size();
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const size_t length = match_word(pattern, at, end);
    if (is_last) {
      sink.take({at, length});
    } else {
      run(step + 1, {at, length}, is_start && at == text.data(), sink);
    }
    at += length;
  }
}

void PreTokenizer::run_isolated(size_t step, std::string_view text, bool is_start, WordSink& sink) const {
  size_t done = 0;
  const auto pass_on = [&](size_t end) {
    if (end > done) run(step + 1, text.substr(done, end - done), is_start && done == 0, sink);
    done = end;
  };
  while (const auto match = find_match(steps_[step], text, done)) {
    pass_on(match->first);
    pass_on(match->end);
  }
  pass_on(text.size());
}

void PreTokenizer::run_general(size_t step, std::string_view text, bool is_start, WordSink& sink) const {
  for (const Part& part : joined(find_parts(steps_[step], text), steps_[step].behavior)) {
    run(step + 1, text.substr(part.first, part.end - part.first), is_start && part.first == 0, sink);
  }
}

void PreTokenizer::run_metaspace(size_t step, std::string_view text, bool is_start, WordSink& sink) const {
  const SplitStep& what = steps_[step];
  std::string marked;
  marked.reserve(text.size() + text.size() / 2);
  const bool prepends =
      what.prepend == SplitStep::Prepend::kAlways || (what.prepend == SplitStep::Prepend::kFirst && is_start);
  if (prepends && !text.starts_with(' ') && !text.starts_with(what.text)) marked += what.text;
  for (const char c : text) {
    if (c == ' ') {
      marked += what.text;
    } else {
      marked += c;
    }
  }
  const std::string_view whole = marked;
  if (!what.splits) return run(step + 1, whole, is_start, sink);
  for (size_t at = 0; at < whole.size();) {
    const size_t end = std::min(whole.find(what.text, at + what.text.size()), whole.size());
    run(step + 1, whole.substr(at, end - at), is_start && at == 0, sink);
    at = end;
  }
}

}  // namespace fsdp::tokenizer
