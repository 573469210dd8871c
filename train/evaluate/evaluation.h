#pragma once

#include <functional>
#include <optional>

#include "text/tokenizer/tokenizer.h"
#include "train/base/metrics.h"
#include "train/config/config.h"
#include "train/data/packed_split.h"
#include "train/model/parallelize.h"
#include "train/preference/objective.h"

namespace fsdp::train {

// COLLECTIVE. Loss over the first `num_batches` batches of config.batch_sequences sequences of `split`; 0: all of it.
// Sequences are dealt out to the ranks; every rank runs as many forwards as the others, so that none waits. The sum is
// the same for any number of ranks, up to the order of addition; with config.world_invariant, where each forward has
// the sequences of a microbatch, to the last bit. `tokenizer` counts the bytes of text; null: they are not known.
// Nothing if `stop_asked` said yes on some rank. With an objective the split is of pairs, and what is said of them its
// loss.
std::optional<HeldoutLoss> evaluate(ShardedModel& model, const World& world, const PackedSplit& split,
                                    const TrainConfig& config, int64_t num_batches,
                                    const std::function<bool()>& stop_asked, const tokenizer::Tokenizer* tokenizer,
                                    const PreferenceObjective* objective = nullptr);

}  // namespace fsdp::train
