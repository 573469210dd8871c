#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::tokenizer_training {

// How often each distinct word occurs. Words are any bytes. Not thread-safe.
class WordCounts {
 public:
  struct Word {
    uint64_t hash = 0;
    uint64_t start = 0;   // in the text
    uint64_t count = 0;   // 0: an empty place of the table
    uint32_t length = 0;  // bytes
  };

  // `word` is shorter than 4 GiB and not empty.
  void add(std::string_view word) { add(word, hash_of(word), 1); }
  void add(std::string_view word, uint64_t hash, uint64_t count);
  void add(const WordCounts& other);

  size_t size() const { return size_; }
  // About what the words take in memory; the same for the same words in any order.
  size_t num_bytes() const { return text_.size() + 2 * size_ * sizeof(Word); }

  // Calls `visit(text, word)` for each distinct word, in no particular order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Word& word : places_) {
      if (word.count > 0) visit(std::string_view(text_).substr(word.start, word.length), word);
    }
  }

  // Forgets words that occur less often than `count`. Returns how many.
  size_t drop_below(uint64_t count);

  static uint64_t hash_of(std::string_view word);

 private:
  // Room for so many words in a table that is at most half full.
  void reserve(size_t num_words);

  std::string text_;          // of all words, one after another
  std::vector<Word> places_;  // open addressing, a power of two of them
  size_t size_ = 0;
};

}  // namespace fsdp::tokenizer_training
