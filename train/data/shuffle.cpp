#include "train/data/shuffle.h"

#include <algorithm>
#include <bit>

namespace fsdp::train {
namespace {

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Shuffle::Shuffle(uint64_t seed, uint64_t epoch, uint64_t size)
    : size_(size), half_bits_(std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2)) {
  for (size_t round = 0; round < keys_.size(); ++round) {
    keys_[round] = mix(mix(mix(seed) + epoch) + round);
  }
}

uint64_t Shuffle::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right ^ key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

uint64_t Shuffle::operator()(uint64_t index) const {
  // Ends: a permutation of the larger domain leads every inside value back inside along its cycle.
  do {
    index = permute(index);
  } while (index >= size_);
  return index;
}

}  // namespace fsdp::train
