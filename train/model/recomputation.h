// Activations that blocks compute again instead of keeping them: less memory, more time.
#pragma once

#include <cstdint>
#include <string>

#include "models/decoder.h"

namespace fsdp::train {

// What a block computes again in its backward rather than keep: nothing; the norms' outputs and the product that the
// down projection reads; gate and up as well, at the price of their matrix products; everything but the block's input.
enum class Recompute { kNone, kElementwise, kGateUp, kBlock };

// Of the first of every `every` blocks.
struct Recomputation {
  Recompute what = Recompute::kNone;
  int64_t every = 1;
};

// Of train.recompute and train.recompute_every. Throws Error(kUsage) if they ask for every n-th block of nothing.
Recomputation parse_recomputation(const std::string& what, int64_t every = 1);

// Before the decoder is sharded.
void set_recomputation(models::Decoder& decoder, const Recomputation& recomputation);

// Bytes that one block keeps of one token between forward and backward, its input included, with activations of
// `element_size` bytes: what a fully trained block without adapters and biases holds. Statistics are fp32.
int64_t kept_bytes_per_token(const models::DecoderConfig& config, Recompute what, int64_t element_size);

}  // namespace fsdp::train
