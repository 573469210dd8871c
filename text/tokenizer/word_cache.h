#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace fsdp::tokenizer {

// A short word as a key: up to `kWords` * 8 bytes. With the length, the words are different for different texts.
template <size_t kWords>
struct WordKey {
  uint64_t words[kWords];

  // text.size() must be in 1..kWords * 8.
  explicit WordKey(std::string_view text) : words{} {
    const char* data = text.data();
    const size_t size = text.size();
    if (size >= 8) {
      size_t i = 0;
      for (; (i + 1) * 8 <= size; ++i) std::memcpy(&words[i], data + i * 8, 8);
      // The rest overlaps what is there already: no byte behind the text is read.
      if (i * 8 < size) std::memcpy(&words[i], data + size - 8, 8);
    } else if (size >= 4) {
      uint32_t first;
      uint32_t last;
      std::memcpy(&first, data, 4);
      std::memcpy(&last, data + size - 4, 4);
      words[0] = static_cast<uint64_t>(last) << 32 | first;
    } else {
      const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(data[i])); };
      words[0] = byte(0) << 16 | byte(size / 2) << 8 | byte(size - 1);
    }
  }

  uint64_t hash(size_t size) const {
    uint64_t value = size * 0x9E3779B97F4A7C15ULL;
    for (const uint64_t word : words) {
      const unsigned __int128 product = static_cast<unsigned __int128>(value ^ word) * 0xD6E8FEB86659FD93ULL;
      value = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    return value;
  }
};

// Word -> ids, for words of up to `kWords` * 8 bytes and `kIds` ids. Of fixed size: a new word takes the place of the
// one that was there. Not thread-safe.
template <size_t kWords, size_t kIds>
class WordTable {
 public:
  using Key = WordKey<kWords>;
  static constexpr size_t kMaxBytes = kWords * 8;

  explicit WordTable(size_t num_slots) : slots_(num_slots), mask_(num_slots - 1) {}

  // Appends the ids of `word` and returns true, if they are known.
  bool append(std::string_view word, const Key& key, uint64_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash & mask_];
    if (slot.size != word.size() || std::memcmp(slot.key, key.words, sizeof slot.key) != 0) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }

  void store(std::string_view word, const Key& key, uint64_t hash, const int32_t* ids, size_t num_ids) {
    if (num_ids > kIds) return;
    Slot& slot = slots_[hash & mask_];
    std::memcpy(slot.key, key.words, sizeof slot.key);
    slot.size = static_cast<uint16_t>(word.size());
    slot.num_ids = static_cast<uint16_t>(num_ids);
    std::copy_n(ids, num_ids, slot.ids);
  }

 private:
  struct alignas(64) Slot {
    uint64_t key[kWords] = {};
    uint16_t size = 0;  // 0: free
    uint16_t num_ids = 0;
    int32_t ids[kIds] = {};
  };

  std::vector<Slot> slots_;
  size_t mask_;
};

// The ids of words seen lately: 64 bytes a slot for short words, 128 for longer ones. About 3 MiB. Not thread-safe.
struct WordCache {
  using Short = WordTable<2, 11>;
  using Long = WordTable<6, 19>;
  Short short_words{size_t{1} << 15};
  Long long_words{size_t{1} << 13};
};

}  // namespace fsdp::tokenizer
