#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/config/config.h"
#include "train/data/data_splits.h"
#include "train/model/model_choice.h"
#include "train/preference/preference_loss.h"
#include "train/preference/references.h"

namespace fsdp::train {

// Sums over pairs.
struct PreferenceSums {
  double loss = 0;
  double margin = 0;
  double correct = 0;  // pairs whose chosen answer has the higher reward
  double pairs = 0;
};

// What a run with tune.loss = "dpo" minimises.
struct PreferenceObjective {
  PreferenceRule rule;
  References train;
  std::optional<References> heldout;

  // The sum of the losses of a batch's pairs, 0-dim fp64, differentiable; `sums` grows.
  at::Tensor loss_of(models::Decoder& model, const Batch& batch, const References& references,
                     PreferenceSums& sums) const;
  // COLLECTIVE. Over the first `num_pairs` pairs of the held-out split; 0: all of it.
  PreferenceSums evaluate(ShardedModel& model, const World& world, const PackedSplit& split, int64_t num_pairs) const;
};

// Do the data fit the loss, and can this run have it? Throws Error(kUsage) that names the key and the fix.
void check_objective(const Config& config, const models::DecoderConfig& model, const Splits& splits);

// COLLECTIVE. References are those of the weights that `model` has now, which are those that `choice` and the adapter
// of tune.lora_from give; they are kept beside the data under a name that tells these.
PreferenceObjective make_objective(const Config& config, const World& world, ShardedModel& model, const Splits& splits,
                                   const ModelChoice& choice, const std::function<void(const std::string& line)>& tell);

}  // namespace fsdp::train
