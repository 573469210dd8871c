#include "text/tokenizer_training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "io/base/error.h"
#include "text/tokenizer/stages/byte_level.h"
#include "text/tokenizer_training/pair_queue.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer_training {
namespace {

constexpr size_t kNumBytes = 256;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

// Tokens get ids in the order in which they come; one that is there already keeps its id.
class Vocabulary {
 public:
  int32_t add(std::string token) {
    const auto [at, is_new] = ids_.try_emplace(token, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(token));
    return at->second;
  }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& operator[](int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::vector<std::string> take() { return std::move(tokens_); }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
};

// The ids of the 256 bytes.
std::array<int32_t, kNumBytes> add_bytes(Vocabulary& vocabulary) {
  const auto& characters = tokenizer::byte_level::characters();
  std::array<size_t, kNumBytes> order{};
  for (size_t byte = 0; byte < kNumBytes; ++byte) order[byte] = byte;
  // UTF-8 sorts as code points do.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return characters[a] < characters[b]; });
  std::array<int32_t, kNumBytes> ids{};
  for (const size_t byte : order) ids[byte] = vocabulary.add(characters[byte]);
  return ids;
}

// The words as tokens, which become fewer with every merge.
class Words {
 public:
  Words(const WordCounts& counts, const std::array<int32_t, kNumBytes>& byte_ids) {
    counts.for_each([&](std::string_view text, const WordCounts::Word& word) {
      words_.push_back({tokens_.size(), word.length, static_cast<int64_t>(word.count)});
      for (const char byte : text) tokens_.push_back(byte_ids[static_cast<unsigned char>(byte)]);
    });
  }

  void count_pairs(PairQueue& queue) const {
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const int32_t* const tokens = tokens_.data() + words_[w].start;
      for (uint32_t i = 1; i < words_[w].length; ++i) {
        queue.gain(pair_key(tokens[i - 1], tokens[i]), words_[w].count, w);
      }
    }
    queue.publish();
  }

  // Puts the pair together wherever it occurs in word `w`, from left to right.
  void merge(uint32_t w, PairKey pair, int32_t merged, PairQueue& queue) {
    Word& word = words_[w];
    int32_t* const tokens = tokens_.data() + word.start;
    const int32_t left = left_of(pair);
    const int32_t right = right_of(pair);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < word.length; ++kept) {
      if (tokens[i] != left || i + 1 == word.length || tokens[i + 1] != right) {
        tokens[kept] = tokens[i++];
        continue;
      }
      if (kept > 0) {
        queue.change(pair_key(tokens[kept - 1], left), -word.count);
        queue.gain(pair_key(tokens[kept - 1], merged), word.count, w);
      }
      i += 2;
      if (i < word.length) {
        queue.change(pair_key(right, tokens[i]), -word.count);
        queue.gain(pair_key(merged, tokens[i]), word.count, w);
      }
      tokens[kept] = merged;
    }
    word.length = kept;
  }

 private:
  struct Word {
    uint64_t start;   // in tokens_
    uint32_t length;  // tokens
    int64_t count;
  };

  std::vector<Word> words_;
  std::vector<int32_t> tokens_;
};

// A pair may be merged a second time, when a token that it makes could be made in two ways; the later time counts.
std::vector<std::pair<int32_t, int32_t>> without_repetitions(const std::vector<PairKey>& merges) {
  std::set<PairKey> seen;
  std::vector<std::pair<int32_t, int32_t>> kept;
  for (size_t i = merges.size(); i-- > 0;) {
    if (seen.insert(merges[i]).second) kept.emplace_back(left_of(merges[i]), right_of(merges[i]));
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

[[noreturn]] void refuse(const std::string& detail) { throw io::Error(io::ErrorKind::kUsage, "[tokenizer] " + detail); }

}  // namespace

void check_bpe_options(const BpeOptions& options) {
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || tokenizer::find_invalid_utf8(token).has_value()) {
      refuse("special token " + io::in_quotes(token) + ": got " +
             (token.empty() ? "nothing" : "bytes that are not UTF-8") + ", expected text such as '<|endoftext|>'.");
    }
    if (!seen.insert(token).second) {
      refuse("special token " + io::in_quotes(token) + ": got it twice, expected each once. Remove one.");
    }
  }
  const auto smallest = static_cast<int64_t>(kNumBytes + options.special_tokens.size());
  if (options.vocab_size < smallest || options.vocab_size > kMaxVocab) {
    refuse("vocabulary size: got " + std::to_string(options.vocab_size) + ", expected " + std::to_string(smallest) +
           " (256 bytes and " + std::to_string(options.special_tokens.size()) + " special tokens) to " +
           std::to_string(kMaxVocab) + ".");
  }
}

BpeModel train_bpe(const WordCounts& words, const BpeOptions& options, const std::function<void(int64_t)>& progress) {
  check_bpe_options(options);
  Vocabulary vocabulary;
  for (const std::string& token : options.special_tokens) vocabulary.add(token);
  const auto byte_ids = add_bytes(vocabulary);

  Words corpus(words, byte_ids);
  PairQueue queue;
  corpus.count_pairs(queue);
  std::vector<PairKey> merges;
  PairQueue::Entry top;
  while (vocabulary.size() < options.vocab_size && queue.pop(top)) {
    if (top.count < 1 || static_cast<uint64_t>(top.count) < options.min_frequency) {
      break;
    }
    const int32_t merged = vocabulary.add(vocabulary[left_of(top.key)] + vocabulary[right_of(top.key)]);
    merges.push_back(top.key);
    for (const uint32_t word : top.words) corpus.merge(word, top.key, merged, queue);
    queue.publish();
    if (progress && merges.size() % 64 == 0) progress(vocabulary.size());
  }
  return {vocabulary.take(), without_repetitions(merges)};
}

}  // namespace fsdp::tokenizer_training
