#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace fsdp::tokenizer_training {

// Two neighbouring tokens: the left id in the upper half.
using PairKey = uint64_t;
inline PairKey pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
inline int32_t left_of(PairKey key) { return static_cast<int32_t>(key >> 32); }
inline int32_t right_of(PairKey key) { return static_cast<int32_t>(key & 0xFFFFFFFF); }

// How often every pair of neighbours occurs, and in which words; the most frequent one on demand.
class PairQueue {
 public:
  struct Entry {
    int64_t count = 0;
    PairKey key = 0;
    std::vector<uint32_t> words;  // where the pair occurs, or did: ascending
  };

  // `count` more (or fewer) of the pair. A word is named where it gained one; words ascend between two calls of
  // publish().
  void change(PairKey key, int64_t count) { pairs_[key].count += count; }
  void gain(PairKey key, int64_t count, uint32_t word) {
    Pair& pair = pairs_[key];
    pair.count += count;
    if (pair.words.empty()) gained_.push_back(key);
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
  }

  // Makes what was gained available to pop().
  void publish() {
    for (const PairKey key : gained_) {
      Pair& pair = pairs_[key];
      if (pair.count > 0) push({pair.count, key, std::move(pair.words)});
      pair.words = {};
    }
    gained_.clear();
  }

  // Takes out the most frequent pair, of several the one of the lowest ids. False if there is none.
  bool pop(Entry& entry) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), is_after);
      entry = std::move(heap_.back());
      heap_.pop_back();
      const int64_t count = pairs_[entry.key].count;
      if (count == entry.count) return true;
      entry.count = count;  // it became rarer since it was pushed
      push(std::move(entry));
    }
    return false;
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  // gained since the last publish()
  };

  static bool is_after(const Entry& a, const Entry& b) {
    return a.count != b.count ? a.count < b.count : a.key > b.key;
  }
  void push(Entry entry) {
    heap_.push_back(std::move(entry));
    std::push_heap(heap_.begin(), heap_.end(), is_after);
  }

  std::unordered_map<PairKey, Pair> pairs_;
  std::vector<PairKey> gained_;
  std::vector<Entry> heap_;
};

}  // namespace fsdp::tokenizer_training
