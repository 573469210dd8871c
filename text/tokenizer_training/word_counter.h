#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/stages/pre_tokenizer.h"
#include "text/tokenizer_training/word_counts.h"

namespace fsdp::tokenizer_training {

// The words of one thread or of all, in parts by their hash.
class WordTable {
 public:
  static constexpr size_t kNumParts = 16;

  void add(std::string_view word) {
    const uint64_t hash = WordCounts::hash_of(word);
    parts_[hash >> 60].add(word, hash, 1);
  }
  WordCounts& part(size_t index) { return parts_[index]; }
  size_t size() const;
  size_t num_bytes() const;

 private:
  std::array<WordCounts, kNumParts> parts_;
};

// Counts the words of many documents in several threads, in bounded memory. The result depends on the documents and
// their order alone, not on the number of threads. Not thread-safe itself.
class WordCounter {
 public:
  struct Options {
    int threads = 0;                            // 0: one per core
    uint64_t max_bytes = uint64_t{2} << 30;     // of distinct words; the rarest are forgotten when there are more
    uint64_t batch_bytes = uint64_t{32} << 20;  // of documents that are counted at a time
    uint64_t max_word_bytes = 1 << 16;          // longer words (base64, ...) are left out: they would take all the time
  };

  WordCounter(tokenizer::PreTokenizer pre_tokenizer, const Options& options);

  // Valid UTF-8.
  void add(std::string_view document);
  // All words. Nothing can be added afterwards.
  WordCounts finish();

  // Words that were forgotten, each time they were; those that were too long.
  uint64_t num_forgotten() const { return num_forgotten_; }
  uint64_t num_long() const { return num_long_; }

 private:
  void count_batch();
  void count_documents(std::vector<WordTable>& tables);
  void forget_rare();

  tokenizer::PreTokenizer pre_tokenizer_;
  Options options_;
  WordTable words_;
  std::vector<std::string> batch_;
  uint64_t bytes_in_batch_ = 0;
  uint64_t num_forgotten_ = 0;
  uint64_t num_long_ = 0;
};

}  // namespace fsdp::tokenizer_training
