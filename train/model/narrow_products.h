#pragma once

#include "models/decoder.h"
#include "train/config/config.h"

namespace fsdp::train {

// Of shard.precision = "o1", else nothing: the linear maps and the head of an fp32 decoder multiply bf16 numbers,
// forward and backward. Everything else stays fp32, attention, norms and residuals among it.
void use_narrow_products(const models::Decoder& decoder, const ShardConfig& config);

}  // namespace fsdp::train
