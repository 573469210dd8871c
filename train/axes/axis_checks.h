#pragma once

#include "models/config/decoder_config.h"
#include "train/axes/rank_place.h"
#include "train/config/config.h"

namespace fsdp::train {

// Local. Throws Error(kUsage) where a run cannot be cut as [mesh] says: sizes of the model or of sequences that the
// ranks do not divide, with the nearest ones that they do, and the values of the key that fit; settings that do not go
// with it, by name.
void check_axes(const Config& config, const models::DecoderConfig& model, const RankPlace& place);

}  // namespace fsdp::train
