#pragma once

#include "train/config/config.h"

namespace fsdp::train {

// Do the warm-ups of batch and sequences make sense, and can this run have them? Throws Error(kUsage) that names the
// key and the fix.
void check_warmups(const Config& config);

// train.batch_sequences of train.batch_tokens, where that counts. Throws Error(kUsage) where they do not come out even.
void resolve_batch(Config& config);

}  // namespace fsdp::train
