#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::tokenizer {

inline constexpr uint32_t kNoMerge = UINT32_MAX;

struct Merge {
  uint32_t rank = kNoMerge;  // lower goes first
  int32_t id = -1;           // of the merged token
};

// Pair of token ids -> merge. A flat hash table with linear probing, filled once.
class PairTable {
 public:
  explicit PairTable(size_t num_pairs = 0) {
    size_t size = 16;
    while (size < num_pairs + num_pairs / 2) size *= 2;
    slots_.resize(size);
    mask_ = size - 1;
  }

  // At most as many different pairs as the constructor was told. The last merge of a pair counts.
  void insert(int32_t left, int32_t right, Merge merge) {
    const uint64_t key = key_of(left, right);
    size_t at = slot_of(key);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, merge};
  }

  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;  // ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    const uint64_t mixed = key * 0x9E3779B97F4A7C15ULL;
    return (mixed ^ mixed >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace fsdp::tokenizer
