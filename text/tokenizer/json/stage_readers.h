#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json/json_node.h"
#include "text/tokenizer/stages/decoder.h"
#include "text/tokenizer/stages/normalizer.h"
#include "text/tokenizer/stages/pre_tokenizer.h"

namespace fsdp::tokenizer {

// The parts of tokenizer.json. All throw Error(kModel), naming the key, for what is wrong or would change ids and is
// not supported.

std::vector<NormalizerStep> read_normalizer(const JsonNode& root);

struct PreTokenizerSteps {
  std::vector<SplitStep> steps;
  Bpe::Alphabet alphabet = Bpe::Alphabet::kCharacters;
};
PreTokenizerSteps read_pre_tokenizer(const JsonNode& root);

Decoder read_decoder(const JsonNode& root);

// The ids around a text.
struct Template {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};
Template read_post_processor(const JsonNode& root);

}  // namespace fsdp::tokenizer
