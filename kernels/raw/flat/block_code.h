// Numbers kept as one of 256 fractions of the largest magnitude in their block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace fsdp::kernels::raw {

// A list of fractions, ready to be looked up and searched. The nearest fraction is found from the upper bits of a
// number, which leave at most two to choose from, and one comparison of the lower ones.
class BlockCodes {
 public:
  // `fractions`: 256, ascending, none beyond -1 and 1. Throws std::invalid_argument where two borders between
  // neighbours are so near that upper bits cannot tell them apart.
  explicit BlockCodes(const float* fractions);

  // The definition: how many borders are below `fraction`, a border being half of its neighbours' sum in fp32. NaN:
  // 255.
  uint8_t code_of(float fraction) const;

  const float* fractions() const { return fractions_.data(); }
  // What the kernel reads. A magnitude's upper bits, from first_key() on, number the steps; those of negative numbers
  // come after those of the others. A step has the code of its smallest magnitude in its upper 8 bits, and in the lower
  // ones from which lower bits on the next code holds, which is higher, or for a negative number lower.
  const uint32_t* steps() const { return steps_.data(); }
  int num_lower_bits() const { return num_lower_bits_; }
  uint32_t first_key() const { return first_key_; }
  uint32_t keys() const { return keys_; }

 private:
  bool make_steps();
  bool add_step(uint32_t key, uint32_t sign);

  std::array<float, 256> fractions_;
  std::array<float, 255> borders_;
  std::vector<uint32_t> steps_;
  int num_lower_bits_ = 0;
  uint32_t first_key_ = 0;
  uint32_t keys_ = 0;
};

// numbers[i] = fraction of codes[i] * scale. Functions are single-threaded and allocate nothing.
void decode_block(const uint8_t* codes, float scale, const BlockCodes& code, float* numbers, int64_t count);
// Returns the scale, the largest magnitude; codes are those of numbers[i] / scale, the nearest fractions. Zeros have
// scale 0; if a number is not finite, neither is the scale.
float encode_block(const float* numbers, const BlockCodes& code, uint8_t* codes, int64_t count);

}  // namespace fsdp::kernels::raw
