#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer_training/word_counts.h"

namespace fsdp::tokenizer_training {

struct BpeOptions {
  int64_t vocab_size = 0;                   // special tokens included; at least 256 more than these
  uint64_t min_frequency = 2;               // a pair that occurs less often is not merged
  std::vector<std::string> special_tokens;  // the first ids, in this order
};

// Throws Error(kUsage) if the size is out of range or a special token is empty, not UTF-8 or there twice.
void check_bpe_options(const BpeOptions& options);

// A byte-level vocabulary.
struct BpeModel {
  std::vector<std::string> tokens;  // by id, as tokenizer.json writes them: bytes as printable characters
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of what is put together, first merge first
};

// Byte pair encoding (Sennrich et al., 2016): the most frequent pair of neighbours becomes a token, again and again.
// Gives the tokens and merges that `BpeTrainer` of Hugging Face's tokenizers gives for the same words (special tokens
// first, then the 256 bytes in the order of their printable characters, then merges; of pairs that are equally
// frequent, the one of lower ids first), whatever the order of the words. `progress` is called with the number of
// tokens now and then. May end with fewer tokens than asked for: there are no more pairs. Throws Error(kUsage) for
// impossible options.
BpeModel train_bpe(const WordCounts& words, const BpeOptions& options,
                   const std::function<void(int64_t)>& progress = {});

}  // namespace fsdp::tokenizer_training
