#include "train/tokenizer_training/word_counts.h"

#include <utility>

#include "io/hash.h"

namespace fsdp::tokenizer_training {

uint64_t WordCounts::hash_of(std::string_view word) { return io::hash_bytes(word); }

void WordCounts::add(std::string_view word, uint64_t hash, uint64_t count) {
  if (2 * (size_ + 1) > places_.size()) {
    grow();
  }
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
  other.for_each([&](std::string_view text, const Word& word) { add(text, word.hash, word.count); });
}

void WordCounts::grow() {
  std::vector<Word> places(places_.empty() ? 1024 : 2 * places_.size());
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
  WordCounts kept;
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
