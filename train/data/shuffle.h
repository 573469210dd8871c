#pragma once

#include <array>
#include <cstdint>

namespace fsdp::train {

// A pseudo-random permutation of 0 .. size-1 that is computed, not stored: four Feistel rounds over the smallest even
// number of bits that holds size-1; results outside the range are permuted again until they are inside. The round
// function is SplitMix64's mixer, keyed by (seed, epoch, round). After: Black & Rogaway 2002, "Ciphers with arbitrary
// finite domains".
class Shuffle {
 public:
  // size >= 1.
  Shuffle(uint64_t seed, uint64_t epoch, uint64_t size);

  // Where position `index` < size goes.
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t permute(uint64_t value) const;

  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, 4> keys_;
};

}  // namespace fsdp::train
