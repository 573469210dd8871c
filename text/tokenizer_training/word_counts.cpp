#include "text/tokenizer_training/word_counts.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "io/base/hash.h"

namespace fsdp::tokenizer_training {

uint64_t WordCounts::hash_of(std::string_view word) { return io::hash_bytes(word); }

void WordCounts::add(std::string_view word, uint64_t hash, uint64_t count) {
  reserve(size_ + 1);
  const size_t mask = places_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    Word& place = places_[at];
    if (place.count == 0) {
      place = {hash, text_.size(), count, static_cast<uint32_t>(word.size())};
      text_ += word;
      ++size_;
      return;
    }
    if (place.hash == hash && std::string_view(text_).substr(place.start, place.length) == word) {
      place.count += count;
      return;
    }
  }
}

void WordCounts::add(const WordCounts& other) {
  // First: words in the order of one table would crowd together at the start of a smaller one.
  reserve(size_ + other.size_);
  other.for_each([&](std::string_view text, const Word& word) { add(text, word.hash, word.count); });
}

void WordCounts::reserve(size_t num_words) {
  if (2 * num_words <= places_.size()) {
    return;
  }
  std::vector<Word> places(std::bit_ceil(std::max<size_t>(2 * num_words, 1024)));
  const size_t mask = places.size() - 1;
  for (const Word& word : places_) {
    size_t at = word.hash & mask;
    while (word.count > 0 && places[at].count > 0) {
      at = (at + 1) & mask;
    }
    if (word.count > 0) {
      places[at] = word;
    }
  }
  places_ = std::move(places);
}

size_t WordCounts::drop_below(uint64_t count) {
  size_t num_kept = 0;
  for_each([&](std::string_view, const Word& word) { num_kept += word.count >= count ? 1 : 0; });
  WordCounts kept;
  kept.reserve(num_kept);
  for_each([&](std::string_view text, const Word& word) {
    if (word.count >= count) {
      kept.add(text, word.hash, word.count);
    }
  });
  const size_t dropped = size_ - kept.size_;
  *this = std::move(kept);
  return dropped;
}

}  // namespace fsdp::tokenizer_training
