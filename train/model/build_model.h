#pragma once

#include "train/config/config.h"
#include "train/model/model_choice.h"
#include "train/model/parallelize.h"
#include "train/model/tuning.h"

namespace fsdp::train {

// COLLECTIVE. The model that a run trains, sharded, with its weights: random ones or those of `choice`, an adapter's
// where one is trained further. No rank ever holds all of it.
ShardedModel build_model(const ModelChoice& choice, const Tuning& tuning, const Config& config, const World& world,
                         c10::Device device);

}  // namespace fsdp::train
