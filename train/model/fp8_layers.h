#pragma once

#include "fsdp/fsdp.h"
#include "models/decoder.h"
#include "train/config/config.h"

namespace fsdp::train {

// Of shard.precision = "fp8", else nothing: products of the linear maps in the blocks are made of fp8 numbers, but for
// those that shard.fp8_keep names. Throws Error(kUsage) for a name that no map has, listing those there are, for shapes
// that the recipe cannot take, for a recipe that the device does not multiply, and for settings of fp8 with another
// precision.
void use_fp8(const models::Decoder& decoder, const ShardConfig& config);

}  // namespace fsdp::train
