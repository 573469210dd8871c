#pragma once

#include "fsdp/fsdp.h"
#include "train/base/stop_signal.h"
#include "train/config/config.h"

namespace fsdp::train {

// Dry: everything is checked and the plan printed; nothing is built, trained or written.
enum class RunKind { kReal, kDry };

// COLLECTIVE. A whole training run: opens the data, builds or loads the model, shards it, goes on from a checkpoint if
// asked to, trains, evaluates, and writes config.toml, metrics.jsonl, ledger.jsonl, checkpoints/ and model/ into
// output.folder, which it locks. Prints on rank 0. Returns the exit code: 0, or 75 if a signal stopped it and it can be
// resumed. Throws fsdp::Error or io::Error; what is wrong with the input is found before anything is written.
// `stop_signal`: made before `world`, whose threads shall not take signals.
int run_training(const Config& config, const World& world, StopSignal& stop_signal, RunKind kind = RunKind::kReal);

}  // namespace fsdp::train
