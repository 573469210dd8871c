#include "text/tokenizer/stages/normalizer.h"

#include <utility>

#include "text/unicode/unicode.h"

namespace fsdp::tokenizer {
namespace {

using StepKind = NormalizerStep::Kind;

std::optional<Regex::Match> find_match(const NormalizerStep& step, std::string_view text, size_t from) {
  if (step.regex != nullptr) return step.regex->find(text, from);
  const size_t at = text.find(step.pattern, from);
  if (at == std::string_view::npos) return std::nullopt;
  return Regex::Match{at, at + step.pattern.size()};
}

void append_replaced(const NormalizerStep& step, std::string_view text, std::string& out) {
  size_t done = 0;
  while (const auto match = find_match(step, text, done)) {
    out.append(text.substr(done, match->first - done)).append(step.content);
    done = match->end;
  }
  out.append(text.substr(done));
}

}  // namespace

std::string_view Normalizer::normalize(std::string_view text, std::string& storage) const {
  for (const NormalizerStep& step : steps_) {
    if (text.empty() || (step.kind == StepKind::kNfc && is_nfc(text))) continue;
    std::string result;
    result.reserve(text.size() + text.size() / 2);
    switch (step.kind) {
      case StepKind::kNfc:
        append_nfc(text, result);
        break;
      case StepKind::kPrepend:
        result.append(step.content).append(text);
        break;
      case StepKind::kReplace:
        append_replaced(step, text, result);
        break;
    }
    storage = std::move(result);
    text = storage;
  }
  return text;
}

}  // namespace fsdp::tokenizer
