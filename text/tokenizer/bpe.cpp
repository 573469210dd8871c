#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

#include "text/tokenizer/stages/byte_level.h"
#include "text/unicode/utf8.h"

namespace fsdp::tokenizer {
namespace {

// Up to this many symbols, looking at all pairs for each merge is faster than a heap.
constexpr size_t kShort = 48;

int32_t id_in(const Vocabulary& vocabulary, std::string_view text) {
  const auto found = vocabulary.find(text);
  return found == vocabulary.end() ? -1 : found->second;
}

// Merges the `size` symbols at `ids` in place; returns how many are left. At most kShort.
size_t merge_short(int32_t* ids, size_t size, const PairTable& merges) {
  Merge found[kShort];  // of each symbol with the next one
  for (size_t i = 0; i + 1 < size; ++i) found[i] = merges.find(ids[i], ids[i + 1]);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (found[i].rank < found[best].rank) best = i;
    }
    if (found[best].rank == kNoMerge) break;
    ids[best] = found[best].id;
    --size;
    std::memmove(ids + best + 1, ids + best + 2, (size - best - 1) * sizeof *ids);
    std::memmove(found + best, found + best + 1, (size - best - 1) * sizeof *found);
    if (best + 1 < size) found[best] = merges.find(ids[best], ids[best + 1]);
    if (best > 0) found[best - 1] = merges.find(ids[best - 1], ids[best]);
  }
  return size;
}

// The same for any number, in O(n log n): a linked list of symbols, and a heap of (rank, place of the left symbol).
class LongMerge {
 public:
  LongMerge(int32_t* ids, size_t size, const PairTable& merges, BpeScratch& scratch)
      : ids_(ids), size_(static_cast<uint32_t>(size)), merges_(merges), nodes_(scratch.nodes), heap_(scratch.heap) {}

  size_t run() {
    nodes_.resize(size_);
    heap_.clear();
    for (uint32_t i = 0; i < size_; ++i) nodes_[i] = {i - 1, i + 1};  // none before the first: wraps to beyond the end
    for (uint32_t i = 0; i + 1 < size_; ++i) {
      if (const Merge merge = merges_.find(ids_[i], ids_[i + 1]); merge.rank != kNoMerge)
        heap_.push_back(key(merge, i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t top = heap_.back();
      heap_.pop_back();
      merge_at(static_cast<uint32_t>(top), static_cast<uint32_t>(top >> 32));
    }
    return static_cast<size_t>(std::remove(ids_, ids_ + size_, kGone) - ids_);
  }

 private:
  static constexpr int32_t kGone = -1;

  static uint64_t key(const Merge& merge, uint32_t place) { return static_cast<uint64_t>(merge.rank) << 32 | place; }

  // Merges the symbol at `left` with the next one, if that is still what the heap's entry was about.
  void merge_at(uint32_t left, uint32_t rank) {
    const uint32_t right = nodes_[left].next;
    if (ids_[left] == kGone || right >= size_) return;
    const Merge merge = merges_.find(ids_[left], ids_[right]);
    if (merge.rank != rank) return;
    ids_[left] = merge.id;
    ids_[right] = kGone;
    const uint32_t next = nodes_[right].next;
    nodes_[left].next = next;
    if (next < size_) nodes_[next].previous = left;
    if (nodes_[left].previous < size_) push(nodes_[left].previous, left);
    if (next < size_) push(left, next);
  }

  void push(uint32_t left, uint32_t right) {
    const Merge merge = merges_.find(ids_[left], ids_[right]);
    if (merge.rank == kNoMerge) return;
    heap_.push_back(key(merge, left));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  int32_t* ids_;
  uint32_t size_;
  const PairTable& merges_;
  std::vector<BpeScratch::Node>& nodes_;
  std::vector<uint64_t>& heap_;
};

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, PairTable merges, Options options)
    : options_(std::move(options)), merges_(std::move(merges)) {
  byte_ids_.fill(-1);
  if (options_.alphabet == Alphabet::kBytes) {
    read_bytes(vocabulary);
  } else {
    read_characters(vocabulary);
  }
  knows_all_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    fallback_ids_[static_cast<size_t>(byte)] = id_in(vocabulary, text);
  }
}

void Bpe::read_bytes(const Vocabulary& vocabulary) {
  for (size_t byte = 0; byte < 256; ++byte) byte_ids_[byte] = id_in(vocabulary, byte_level::characters()[byte]);
  if (!options_.ignore_merges) return;
  for (const auto& [text, id] : vocabulary) {
    if (const auto bytes = byte_level::to_bytes(text)) words_.emplace(*bytes, id);
  }
}

void Bpe::read_characters(const Vocabulary& vocabulary) {
  for (const auto& [text, id] : vocabulary) {
    if (text.empty() || length_of(text[0]) != text.size()) continue;
    if (text.size() == 1) {
      byte_ids_[static_cast<unsigned char>(text[0])] = id;
    } else {
      character_ids_.emplace(decode_at(text.data()).value, id);
    }
  }
  if (options_.ignore_merges) words_ = vocabulary;
}

void Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  const std::string& separator = options_.separator;
  if (!separator.empty()) {
    // Cut in front of each run of separators.
    size_t at = 0;
    while ((at = word.find(separator, at)) != std::string_view::npos) {
      if (at > 0) encode_part(word.substr(0, at), scratch, ids);
      word.remove_prefix(at);
      at = 0;
      while (word.substr(at).starts_with(separator)) at += separator.size();
    }
  }
  if (!word.empty()) encode_part(word, scratch, ids);
}

void Bpe::encode_part(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (word.size() <= WordCache::Short::kMaxBytes) {
    encode_cached(word, scratch.cache.short_words, scratch, ids);
  } else if (word.size() <= WordCache::Long::kMaxBytes) {
    encode_cached(word, scratch.cache.long_words, scratch, ids);
  } else {
    encode_new(word, scratch, ids);
  }
}

template <class Table>
void Bpe::encode_cached(std::string_view word, Table& table, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  const typename Table::Key key(word);
  const uint64_t hash = key.hash(word.size());
  if (table.append(word, key, hash, ids)) return;
  const size_t first = ids.size();
  encode_new(word, scratch, ids);
  table.store(word, key, hash, ids.data() + first, ids.size() - first);
}

void Bpe::encode_new(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    if (const int32_t id = id_in(words_, word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  const size_t first = ids.size();
  split(word, ids);
  const size_t size = ids.size() - first;
  const size_t left = size <= kShort ? merge_short(ids.data() + first, size, merges_)
                                     : LongMerge(ids.data() + first, size, merges_, scratch).run();
  ids.resize(first + left);
}

// Appends the symbols of `word` before the first merge.
void Bpe::split(std::string_view word, std::vector<int32_t>& ids) const {
  if (knows_all_bytes_) {
    for (const char c : word) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  bool has_unknown = false;  // not appended yet, as the next one may belong to the same token
  for (size_t at = 0, length = 0; at < word.size(); at += length) {
    const int32_t id = symbol_at(word, at, length);
    if (id >= 0) {
      if (std::exchange(has_unknown, false)) ids.push_back(options_.unknown_id);
      ids.push_back(id);
    } else if (options_.byte_fallback && append_fallback(word.substr(at, length), ids)) {
      continue;
    } else if (options_.unknown_id >= 0) {
      if (has_unknown && !options_.fuse_unknown) ids.push_back(options_.unknown_id);
      has_unknown = true;
    }
  }
  if (has_unknown) ids.push_back(options_.unknown_id);
}

// Id of the symbol that starts at `at`, or -1; sets its length in bytes.
int32_t Bpe::symbol_at(std::string_view word, size_t at, size_t& length) const {
  length = options_.alphabet == Alphabet::kBytes ? 1 : length_of(word[at]);
  if (length == 1) return byte_ids_[static_cast<unsigned char>(word[at])];
  const auto found = character_ids_.find(decode_at(word.data() + at).value);
  return found == character_ids_.end() ? -1 : found->second;
}

// Appends a <0xNN> token for each byte of the character, if the vocabulary has all of them.
bool Bpe::append_fallback(std::string_view character, std::vector<int32_t>& ids) const {
  if (options_.alphabet == Alphabet::kBytes) {
    character = byte_level::characters()[static_cast<unsigned char>(character[0])];
  }
  const auto id_of = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char c : character) ids.push_back(id_of(c));
  return true;
}

}  // namespace fsdp::tokenizer
