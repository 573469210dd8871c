// What the blocks of a decoder keep between forward and backward, as arithmetic.
#pragma once

#include <cstdint>

#include "models/config/decoder_config.h"

namespace fsdp::models {

// What a block computes again in its backward rather than keep: nothing; the norms' outputs and the product that the
// down projection reads; gate and up as well, at the price of their matrix products; everything but the block's input.
enum class Recompute { kNone, kElementwise, kGateUp, kBlock };

// Where the input of such a block is between forward and backward: where it was, or in the host's memory.
enum class BlockInputs { kKept, kOnHost };

// Bytes that one block keeps of one token between forward and backward, its input included, with activations of
// `element_size` bytes: what a fully trained block without adapters and biases holds. Statistics are fp32.
int64_t kept_bytes_per_token(const DecoderConfig& config, Recompute what, int64_t element_size);
// The same of block `layer`, where those with experts differ from others; experts on other ranks send as many rows as
// they get.
int64_t kept_bytes_per_token(const DecoderConfig& config, int64_t layer, Recompute what, int64_t element_size);

// On a GPU, logits of at most so many bytes are made whole; larger ones are never all in memory.
inline constexpr int64_t kMostWholeLogitBytes = int64_t{256} << 20;

}  // namespace fsdp::models
