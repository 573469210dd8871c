#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/pair_table.h"
#include "text/tokenizer/word_cache.h"

namespace fsdp::tokenizer {

// Looks texts up without making strings of them.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// What the model needs while it works; one per thread.
struct BpeScratch {
  struct Node {
    uint32_t previous;
    uint32_t next;
  };
  WordCache cache;
  std::vector<int32_t> ids;
  std::vector<Node> nodes;
  std::vector<uint64_t> heap;
};

// Byte pair encoding (Sennrich et al. 2016) of one word. Immutable; const calls are thread-safe.
class Bpe {
 public:
  // What a symbol is before the first merge.
  enum class Alphabet {
    kBytes,       // a byte, which the vocabulary writes in the byte alphabet
    kCharacters,  // a character
  };
  struct Options {
    Alphabet alphabet = Alphabet::kCharacters;
    bool byte_fallback = false;  // an unknown character becomes <0xNN> tokens
    bool fuse_unknown = false;   // unknown characters in a row become one token
    bool ignore_merges = false;  // a word that is in the vocabulary is that token
    int32_t unknown_id = -1;     // -1: unknown characters vanish
    // A character that no merge joins with another one in front of it: words can be cut there. "" if there is none.
    std::string separator;
  };

  // `vocabulary` is written as in tokenizer.json.
  Bpe(const Vocabulary& vocabulary, PairTable merges, Options options);

  // Appends the ids of `word`: valid UTF-8, not empty, below 2^31 bytes.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void read_bytes(const Vocabulary& vocabulary);
  void read_characters(const Vocabulary& vocabulary);
  void encode_part(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  template <class Table>
  void encode_cached(std::string_view word, Table& table, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void encode_new(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  void split(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t symbol_at(std::string_view word, size_t at, size_t& length) const;
  bool append_fallback(std::string_view character, std::vector<int32_t>& ids) const;

  Options options_;
  PairTable merges_;
  // Of a byte (kBytes) or an ASCII character (kCharacters); -1: not in the vocabulary.
  std::array<int32_t, 256> byte_ids_;
  bool knows_all_bytes_ = false;
  std::unordered_map<char32_t, int32_t> character_ids_;  // the other characters
  std::array<int32_t, 256> fallback_ids_;                // of <0xNN>; -1: not in the vocabulary
  Vocabulary words_;                                     // for ignore_merges; in raw bytes
};

}  // namespace fsdp::tokenizer
