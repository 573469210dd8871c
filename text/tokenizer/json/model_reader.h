#pragma once

#include <string>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json/json_node.h"
#include "text/tokenizer/stages/added_tokens.h"

namespace fsdp::tokenizer {

// "model" of tokenizer.json, of type BPE.
struct BpeModel {
  Vocabulary vocabulary;
  PairTable merges;
  Bpe::Options options;
  size_t num_merges = 0;
  int32_t highest_id = -1;
};

// Both throw Error(kModel), naming the key.
BpeModel read_model(const JsonNode& root, Bpe::Alphabet alphabet);
// "added_tokens", with the ids that `tokenizers` gives them: of the vocabulary, else one after another behind it.
std::vector<AddedToken> read_added_tokens(const JsonNode& root, const BpeModel& model);

}  // namespace fsdp::tokenizer
