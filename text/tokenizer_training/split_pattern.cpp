#include "text/tokenizer_training/split_pattern.h"

#include <nlohmann/json.hpp>

namespace fsdp::tokenizer_training {
namespace {

using Json = nlohmann::ordered_json;

enum class Regex { kUsed, kNotUsed };

Json byte_level(Regex regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", regex == Regex::kUsed}};
}

Json sequence(Json first, Json second) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
}

}  // namespace

std::optional<SplitPattern> find_split_pattern(std::string_view name) {
  if (name == "gpt2") return SplitPattern::kGpt2;
  if (name == "llama3") return SplitPattern::kLlama3;
  if (name == "digits") return SplitPattern::kDigits;
  return std::nullopt;
}

tokenizer::PreTokenizer pre_tokenizer_of(SplitPattern pattern) {
  using Step = tokenizer::SplitStep;
  std::vector<Step> steps;
  if (pattern == SplitPattern::kDigits) {
    Step digits{};
    digits.kind = Step::Kind::kDigit;
    steps.push_back(std::move(digits));
  }
  Step words{};
  words.kind = Step::Kind::kWordPattern;
  words.pattern = pattern == SplitPattern::kLlama3 ? tokenizer::WordPattern::kLlama3 : tokenizer::WordPattern::kGpt2;
  steps.push_back(std::move(words));
  return tokenizer::PreTokenizer(std::move(steps));
}

Json pre_tokenizer_json(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kLlama3: {
      const std::string regex(tokenizer::regex_of(tokenizer::WordPattern::kLlama3));
      const Json split = {
          {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
      return sequence(split, byte_level(Regex::kNotUsed));
    }
    case SplitPattern::kDigits:
      return sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(Regex::kUsed));
    case SplitPattern::kGpt2:
      break;
  }
  return byte_level(Regex::kUsed);
}

}  // namespace fsdp::tokenizer_training
