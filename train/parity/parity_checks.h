#pragma once

#include "train/model/parallelize.h"
#include "train/parity/parity.h"

namespace fsdp::train {

// What a correct implementation stays within, by precision.
struct ParityTolerances {
  double logits_abs;
  double loss_abs;
  std::optional<double> grad_abs;
  double grad_rel;
  double curve_first_loss_abs;  // of step 0
  double curve_loss_abs;
  double curve_mean_loss_abs;  // mean over the steps
  double curve_norm_rel;
  double final_abs;       // any entry of the final parameters
  double final_norm_rel;  // 2-norm of all differences / 2-norm of all
};

ParityTolerances parity_tolerances(const ParityOptions& options);

// The three comparisons of check_parity(), each COLLECTIVE, on a model with the weights of options.model.
ParityReport check_expected(const ParityOptions& options, const World& world, ShardedModel& model);
ParityReport check_packed(const ParityOptions& options, const World& world, ShardedModel& model);
ParityReport check_curve(const ParityOptions& options, const World& world, ShardedModel& model);

}  // namespace fsdp::train
