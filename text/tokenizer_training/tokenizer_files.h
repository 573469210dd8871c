#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer_training/bpe_trainer.h"
#include "text/tokenizer_training/split_pattern.h"

namespace fsdp::tokenizer_training {

// What tokenizer.json says besides the model.
struct TokenizerOptions {
  SplitPattern pattern = SplitPattern::kGpt2;
  std::vector<std::string> special_tokens;  // the first of the model's tokens
  std::string end_token;                    // one of them; "": none
  std::string begin_token;                  // one of them, put in front of every text; "": none
  std::string pad_token;                    // one of them; "": none
};

// Content of tokenizer.json as the tokenizers package writes it (version 1.0).
std::string tokenizer_json(const BpeModel& model, const TokenizerOptions& options);

// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json, each whole or not at all, into `folder`,
// which is made where it does not exist. Throws Error(kFileSystem).
void write_tokenizer(const std::filesystem::path& folder, const BpeModel& model, const TokenizerOptions& options);

}  // namespace fsdp::tokenizer_training
