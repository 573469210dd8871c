// Activations that blocks compute again instead of keeping them: less memory, more time.
#pragma once

#include <cstdint>
#include <string>

#include "models/config/activations.h"
#include "models/decoder.h"

namespace fsdp::train {

using models::BlockInputs;
using models::kept_bytes_per_token;
using models::Recompute;

// Of the first of every `every` blocks.
struct Recomputation {
  Recompute what = Recompute::kNone;
  int64_t every = 1;
  BlockInputs inputs = BlockInputs::kKept;  // kOnHost: with Recompute::kBlock
};

// Of train.recompute and train.recompute_every. Throws Error(kUsage) if they ask for every n-th block of nothing.
Recomputation parse_recomputation(const std::string& what, int64_t every = 1);

// Before the decoder is sharded.
void set_recomputation(models::Decoder& decoder, const Recomputation& recomputation);

}  // namespace fsdp::train
