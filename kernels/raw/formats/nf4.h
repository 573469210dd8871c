// Weights as 4-bit codes with a scale for each block, whose scales are codes too: what QLoRA keeps its base in.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// Elements that share a scale, and blocks whose scales share one.
constexpr int64_t kNf4Block = 64;
constexpr int64_t kNf4Group = 256;

// Where the bytes of a tensor of `numel` elements lie in its record, one run of bytes: the scales of groups and the
// mean of all blocks' scales in fp32, the scales of blocks as bytes, the codes, two in a byte, the first in its upper
// half. Codes, bytes of scales and fp32 numbers are those of bitsandbytes' quantize_4bit(quant_type="nf4",
// compress_statistics=True, blocksize=64) on the CPU, whose `weight`, `absmax`, `nested_absmax` and `nested_offset`
// they are. Its mean is the sum that LibTorch makes on one thread with vectors of 8 numbers, on any processor. After:
// Dettmers et al. 2023 (QLoRA), 2015 (8-bit approximations).
struct Nf4Layout {
  int64_t numel = 0;

  int64_t num_blocks() const { return (numel + kNf4Block - 1) / kNf4Block; }
  int64_t num_groups() const { return (num_blocks() + kNf4Group - 1) / kNf4Group; }
  // Bytes before each part.
  static constexpr int64_t group_scales() { return 0; }
  int64_t mean() const { return num_groups() * int64_t{sizeof(float)}; }
  int64_t block_scales() const { return mean() + int64_t{sizeof(float)}; }
  int64_t codes() const { return block_scales() + num_blocks(); }
  int64_t num_bytes() const { return codes() + (numel + 1) / 2; }
};

// Functions are single-threaded. Numbers must be finite.

// Scales of the blocks that x [count] begins, one every kNf4Block elements, and its codes [(count + 1) / 2] where
// `codes` is not null.
void nf4_encode(const float* x, int64_t count, float* scales, uint8_t* codes);

// What a record says of the scales [layout.num_blocks()] of all its blocks: everything before its codes.
void nf4_encode_scales(const float* scales, const Nf4Layout& layout, uint8_t* record);

// Elements [first, first + count) of a record, which may begin and end anywhere.
void nf4_decode(const uint8_t* record, const Nf4Layout& layout, int64_t first, int64_t count, float* out);
void nf4_decode(const uint8_t* record, const Nf4Layout& layout, int64_t first, int64_t count, Bf16* out);

// What the 16 codes and the 256 bytes of scales stand for.
const float* nf4_values();
const float* nf4_scale_values();

}  // namespace fsdp::kernels::raw
