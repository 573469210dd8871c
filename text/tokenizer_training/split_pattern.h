#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "text/tokenizer/stages/pre_tokenizer.h"

namespace fsdp::tokenizer_training {

// Where text is cut into words; tokens never cross the cuts.
enum class SplitPattern {
  kGpt2,    // GPT-2's: words with the space before them, numbers as a whole
  kLlama3,  // Llama 3's: numbers in groups of up to three digits, contractions in any case
  kDigits,  // SmolLM's: each digit alone, else GPT-2's
};

// "gpt2", "llama3" or "digits".
std::optional<SplitPattern> find_split_pattern(std::string_view name);

// Cuts text that way.
tokenizer::PreTokenizer pre_tokenizer_of(SplitPattern pattern);

// The "pre_tokenizer" of tokenizer.json.
nlohmann::ordered_json pre_tokenizer_json(SplitPattern pattern);

}  // namespace fsdp::tokenizer_training
