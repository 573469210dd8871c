#pragma once

#include "fsdp/fsdp.h"
#include "train/config.h"

namespace fsdp::train {

// COLLECTIVE. A whole training run: opens the data, builds or loads the model, shards it, trains, evaluates, and writes
// config.toml, metrics.jsonl and model/ into output.folder. Prints on rank 0. Throws fsdp::Error or io::Error; what is
// wrong with the input is found before anything is written.
void run_training(const Config& config, const World& world);

}  // namespace fsdp::train
